"""`manigraph watch RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from manigraph.errors import UserError
from manigraph.options import parse

SEEN = (
    "status.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "warnings.jsonl",
    "analysis.json",
    "verdict.json",
)
"""Files whose change changes the page."""


@dataclass(frozen=True)
class WatchOptions:
    """Serve the report of a run while it is being trained; the page keeps itself up to date.

    Read-only, and for this machine alone unless told otherwise. Ctrl-C ends it; the training goes on.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    host: str = "127.0.0.1"
    """Address to listen at. Anybody who can reach another one can read the report."""
    port: int = 8765
    """Its port; 0 takes a free one."""


def run(arguments: list[str]) -> int:
    """Serve until interrupted."""
    options: WatchOptions = parse(WatchOptions, arguments, program="manigraph watch")

    from manigraph.cli.report import page_of
    from manigraph.reports.facts import RunFacts
    from manigraph.reports.html import render
    from manigraph.reports.server import PageServer
    from manigraph.runs import RunDirectory

    path = RunDirectory.open(options.run).path
    _check_host(options.host)

    def page() -> str:
        return render(page_of(RunFacts.read(path)), watch=True)

    def state() -> list[Any]:
        # A killed run says nothing: that it is no longer held does.
        return [RunDirectory(path).status().state, *(_stamp(path / name) for name in SEEN)]

    with PageServer(options.host, options.port, page, state) as server:
        print(f"watching {path} at {server.address} (Ctrl-C ends it)", flush=True)
        if server.hosts is None:
            print("manigraph: other machines can read this report", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()
    return 0


def _check_host(host: str) -> None:
    import ipaddress

    if host == "localhost":
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UserError(f"--host needs an address such as 127.0.0.1 or 0.0.0.0, got '{host}'") from None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
