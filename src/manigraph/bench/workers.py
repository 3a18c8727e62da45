"""Contenders in processes of their own, where they differ in what a process has only one of."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from manigraph.bench.turns import Work

READY = "ready"


@contextmanager
def in_processes(module: str, arguments: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Work]]:
    """A process for each contender, which runs `serve` in `module` with its arguments; they end together.

    Each does its work when it is called, and sleeps otherwise.
    """
    with ExitStack() as stack:
        yield {name: _start(stack, module, own) for name, own in arguments.items()}


def _start(stack: ExitStack, module: str, arguments: Sequence[str]) -> Work:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(process)  # closes its input, at which it ends
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers = process.stdin, process.stdout

    def work() -> None:
        requests.write("\n")
        requests.flush()
        wait()

    def wait() -> None:
        if answers.readline().strip() != READY:
            raise RuntimeError(f"the process of {module} {' '.join(arguments)} ended early: see above")

    wait()
    return work


def serve(work: Callable[[], object]) -> None:
    """Do the work once for every line of the input."""
    print(READY, flush=True)
    for _ in sys.stdin:
        work()
        print(READY, flush=True)
