"""Being asked to stop: SIGTERM and Ctrl-C end a run at its next step, not in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Take note of signals instead of dying of them; a second Ctrl-C ends the process at once.

    Python hears signals in its main thread only: in another thread, nobody is heard.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
