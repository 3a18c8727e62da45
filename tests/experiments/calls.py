"""What engines are asked to call in the tests; needs no torch, so that processes start at once."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from manigraph.training.stopping import stop_requests

PATIENCE = 300.0
"""Seconds after which something has failed, also on a busy machine."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Fails instead of waiting for ever."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def ask_when(condition: Callable[[], object], process: Callable[[], int], number: signal.Signals) -> None:
    """Send a signal from beside, as soon as something is so."""

    def send() -> None:
        wait_until(condition, "the right moment")
        os.kill(process(), number)

    threading.Thread(target=send, daemon=True).start()


def is_alive(process: int) -> bool:
    """Whether there is such a process; one that only waits to be buried does not count."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def double(number: int) -> int:
    return 2 * number


def double_or_die(number: int) -> int:
    """2 kills the process that should have doubled it."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def meet(mark: Path) -> str:
    """Waits for a second call beside it; the GPUs that this one sees."""
    mark.touch()
    wait_until(lambda: len(list(mark.parent.iterdir())) == 2, "the other call")
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def calls_beside(mark: Path) -> int:
    """How many calls there are at the same moment, this one included."""
    mark.touch()
    time.sleep(0.1)
    number = len(list(mark.parent.iterdir()))
    mark.unlink()
    return number


def train_until_told(mark: Path) -> str:
    """As training does: hears signals, and has something to write before it ends."""
    with stop_requests() as stop:
        mark.write_text(str(os.getpid()))
        wait_until(lambda: stop, "a signal")
        time.sleep(0.2)
        mark.with_suffix(".checkpoint").touch()
    return "told"


def finish_whatever_is_told(mark: Path) -> None:
    """As a step that takes very long."""
    with stop_requests() as stop:
        mark.write_text(str(os.getpid()))
        wait_until(lambda: stop, "a signal")
        mark.with_suffix(".told").touch()
        time.sleep(2 * PATIENCE)


def prepare_until_told(mark: Path) -> None:
    """As whatever is not training: hears nothing."""
    mark.write_text(str(os.getpid()))
    time.sleep(2 * PATIENCE)


def cut_off_once(mark: Path) -> str:
    """The first call never ends; the second does."""
    if mark.exists():
        return f"again, after {mark.read_text()}"
    mark.write_text(str(os.getpid()))
    time.sleep(2 * PATIENCE)
    return "never"
