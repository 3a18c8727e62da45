"""Where a process and all that it started listen for connections, as Linux tells it."""

import ipaddress
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"


def addresses_listened_on(process: int) -> set[str]:
    sockets = {
        link
        for number in (process, *_descendants(process))
        for link in _links(Path(f"/proc/{number}/fd"))
        if link.startswith("socket:")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.add(_readable(fields[1].partition(":")[0]))
    return found


def _readable(address: str) -> str:
    """From words of 32 bits, the lowest byte of each first."""
    words = [bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _descendants(process: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = [process]
    for number in found:
        found += [child for child, parent in parents.items() if parent == number]
    return found[1:]


def _links(folder: Path) -> list[str]:
    links = []
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                links.append(str(entry.readlink()))
    return links
