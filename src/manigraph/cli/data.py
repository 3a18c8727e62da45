"""`manigraph data get|list|clear`."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated

import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from manigraph.catalogue import DATASETS
from manigraph.data.download import ORIGINALS, get
from manigraph.data.locations import Locations
from manigraph.errors import UnknownNameError, UserError
from manigraph.options import parse

CACHE_FOLDERS = ("decoded", "fingerprints")
"""What `clear` deletes; everything else in the cache folder, such as downloads, stays."""

LINES_PER_FILE = 10

HELP = f"""\
usage: manigraph data get NAME [--data_dir DIR]
       manigraph data list [--data_dir DIR]
       manigraph data clear

actions:
  get      download the original files of a data set ({", ".join(ORIGINALS)});
           a download that broke off goes on where it ended
  list     show which data sets are stored, where, and how big the cache is
  clear    delete the cache of decoded pixels; downloaded files stay

environment variables:
  MANIGRAPH_DATA      the data folder, unless --data_dir names another
  MANIGRAPH_CACHE     the cache folder
  MANIGRAPH_MIRROR    a server that has the files under their own names:
                      MANIGRAPH_MIRROR/cifar-10-binary.tar.gz
"""


@dataclass(frozen=True)
class GetOptions:
    """Download the original files of a data set."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the data set."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Data folder, instead of the usual one; the files go into a folder NAME in it."""


@dataclass(frozen=True)
class ListOptions:
    """Show which data sets are stored, where, and how big the cache is."""

    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Data folder, instead of the usual one."""


@dataclass(frozen=True)
class ClearOptions:
    """Delete the cache of decoded pixels; downloaded files stay."""


def run(arguments: list[str]) -> int:
    """Run one of the actions."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    action, rest = arguments[0], arguments[1:]
    if action not in ACTIONS:
        raise UnknownNameError("action", action, ACTIONS)
    return ACTIONS[action](rest)


def _run_get(arguments: list[str]) -> int:
    options: GetOptions = parse(GetOptions, arguments, program="manigraph data get")
    if options.name not in ORIGINALS and options.name in DATASETS:
        raise UserError(f"data set '{options.name}' has nothing to download: it can be used as it is")
    locations = Locations.default(options.data_dir)
    console = Console()
    with DownloadDisplay(console) as display:
        folder = get(options.name, locations, display.advance)
    size = decimal(_size(folder))
    console.print(f"{options.name} is in {folder} ({size})", markup=False, highlight=False, soft_wrap=True)
    return 0


def _run_list(arguments: list[str]) -> int:
    options: ListOptions = parse(ListOptions, arguments, program="manigraph data list")
    locations = Locations.default(options.data_dir)
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("data set", style="cyan", no_wrap=True)
    table.add_column("stored")
    for name in DATASETS:
        table.add_row(name, _stored(name, locations.data / name))
    console.print(table)
    console.print()
    size = decimal(sum(_size(locations.cache / name) for name in CACHE_FOLDERS))
    console.print(f"data folder   {locations.data}", markup=False, soft_wrap=True)
    console.print(f"cache folder  {locations.cache} ({size} of decoded pixels)", markup=False, soft_wrap=True)
    return 0


def _run_clear(arguments: list[str]) -> int:
    parse(ClearOptions, arguments, program="manigraph data clear")
    cache = Locations.default().cache
    folders = [cache / name for name in CACHE_FOLDERS if os.path.lexists(cache / name)]
    for folder in folders:
        if folder.is_symlink() or not folder.is_dir():
            raise UserError(f"'{folder}' is not a folder of the cache: delete it yourself if it may go")
    freed = sum(_size(folder) for folder in folders)
    for folder in folders:
        shutil.rmtree(folder)
    print(f"freed {decimal(freed)} in {cache}")
    return 0


ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "get": _run_get,
    "list": _run_list,
    "clear": _run_clear,
}


def _stored(name: str, folder: Path) -> str:
    """What a person wants to know of a data set's folder, in a few words."""
    if name not in ORIGINALS:
        return "nothing to download"
    size = decimal(_size(folder))
    if any(folder.glob("*.part")):
        return f"{size}, not finished: manigraph data get {name}"
    if not any(folder.rglob("*")):
        return f"no: manigraph data get {name}"
    return size


def _size(folder: Path) -> int:
    """Bytes in all files of a folder; links are not followed, and what vanishes meanwhile is nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(parent, name).lstat().st_size
            except OSError:
                continue
    return total


class DownloadDisplay:
    """A bar for each file in a terminal, plain lines elsewhere; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def __enter__(self) -> "DownloadDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, what: str, done: int, total: int) -> None:
        """`done` of `total` bytes; a remark if both are zero."""
        if done == total == 0:
            self._print(what)
        elif self._live:
            if what not in self._tasks:
                # Starting at what was there already keeps it out of the speed.
                self._tasks[what] = self._progress.add_task(what, total=total or None, completed=done)
            self._progress.update(self._tasks[what], completed=done)
        elif self._passes_milestone(what, done, total):
            self._print(f"{what}: {decimal(done)} of {decimal(total)} ({100 * done // total} %)")

    def _passes_milestone(self, what: str, done: int, total: int) -> bool:
        """True about ten times for each file whose size is known."""
        tenth = done * LINES_PER_FILE // total if total else 0
        passes = tenth > self._tenths.get(what, 0)
        self._tenths[what] = tenth
        return passes

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
