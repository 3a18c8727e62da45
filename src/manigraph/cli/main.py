"""`manigraph COMMAND`: finds the command and turns errors into one sentence."""

import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence

from manigraph import __version__
from manigraph.errors import (
    DiskFullError,
    Interrupted,
    NonFiniteLossError,
    ProcessLostError,
    UnknownNameError,
    UserError,
    shown,
)

COMMANDS = {
    "train": "train a classifier by a recipe or on a folder of images",
    "lr-find": "find how high the learning rate may go, before training",
    "check": "look at a data set for what would make training wrong",
    "evaluate": "measure a trained run on its test images",
    "predict": "say what a trained run sees in image files",
    "explain": "say why a trained run takes an image for what it does",
    "suggest": "say which unlabelled images to label next",
    "report": "write a page about a run, or about several side by side",
    "watch": "show a run in the browser while it is being trained",
    "figures": "draw what a trained run has learned: its features and its graph",
    "export": "write a trained run as ONNX and torch.export files",
    "demo": "compare methods on digits with 20 labels, in about three minutes",
    "reproduce": "measure a table of results: methods, labels, seeds",
    "data": "download data sets, show and clear what is stored",
    "bench": "measure how fast the methods train on this machine",
    "list": "name the algorithms, recipes, data sets and backbones",
}

LONGEST_MESSAGE = 2000
"""Characters: a file that somebody sent may hold a name of a million."""

HELP = """\
usage: manigraph COMMAND [OPTIONS]

Train an image classifier from a few labels and many unlabelled images.

commands:
{commands}

options:
  -h, --help     show this help; `manigraph COMMAND --help` shows a command's options
  --version      show the version
  --traceback    show the full traceback of an error (or set MANIGRAPH_TRACEBACK=1)

start here:
  manigraph demo
  manigraph train digits --algorithm manifold_graph --data.labels 50
  manigraph check photos/          (a folder for each class and a folder `unlabelled`)
  manigraph train photos/
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code is 0, 1 for a failure, 2 for a wrong command line, 3 for bad files."""
    rest = list(sys.argv[1:] if arguments is None else arguments)
    want_traceback = bool(os.environ.get("MANIGRAPH_TRACEBACK"))
    if "--traceback" in rest:
        rest.remove("--traceback")
        want_traceback = True
    try:
        code = _run(rest)
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()  # now, where it is known what to do if nobody reads it
        return code
    except BrokenPipeError as error:
        return _unread() if _nobody_reads() else _complain(str(error), 1)
    except UserError as error:
        if want_traceback:
            raise
        return _complain(str(error), 2)
    except Interrupted as interruption:
        return _complain(str(interruption), interruption.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except (NonFiniteLossError, ProcessLostError, DiskFullError, OSError) as error:
        if want_traceback:
            raise
        return _complain(str(error), 1)
    except Exception as error:
        if want_traceback:
            raise
        message = " ".join(str(error).split())
        return _complain(
            f"unexpected {type(error).__name__}: {message} (run again with --traceback and report it)", 1
        )


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        listing = "\n".join(f"  {name:<12} {summary}" for name, summary in COMMANDS.items())
        print(HELP.format(commands=listing), end="")
        return 0
    command, *arguments = arguments
    if command == "--version":
        print(f"manigraph {__version__}")
        return 0
    if command not in COMMANDS:
        raise UnknownNameError("command", command, COMMANDS)
    module = importlib.import_module(f"manigraph.cli.{command.replace('-', '_')}")
    code: int = module.run(arguments)
    return code


def _nobody_reads() -> bool:
    """Whether the output is the pipe that broke, and not one to a process of ours."""
    try:
        output = select.poll()
        output.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, AttributeError):  # it is no file at all
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _unread() -> int:
    """Whoever read the output, such as `head`, has closed it: end as other programs do, without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
    return 128 + signal.SIGPIPE


def _complain(message: str, code: int) -> int:
    variables = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    rank = next((os.environ[name] for name in variables if name in os.environ), "0")
    who = "manigraph" if rank == "0" else f"manigraph (process {rank})"
    text = shown(message) if len(message) <= LONGEST_MESSAGE else f"{shown(message[:LONGEST_MESSAGE])} …"
    print(f"{who}: {text}", file=sys.stderr)
    return code
