"""An engine in a process that can be killed: `python -m tests.experiments.drive ENGINE CALL THING...`."""

import sys
from pathlib import Path
from typing import Any

from manigraph.errors import Interrupted
from manigraph.experiments.engines import LocalEngine, RayEngine, SlurmEngine
from tests.experiments import calls, slow_to_import

ENGINES = {"LocalEngine": LocalEngine, "RayEngine": RayEngine, "SlurmEngine": SlurmEngine, "Path": Path}


def main(engine_text: str, call: str, *texts: str) -> None:
    engine: Any = eval(engine_text, ENGINES)
    function = getattr(calls, call, None) or getattr(slow_to_import, call)
    things = [int(text) if text.isdecimal() else Path(text) for text in texts]
    try:
        for outcome in engine.outcomes(function, things):
            print(outcome, flush=True)
    except Interrupted as stop:
        print("stopped with", stop.exit_code)
    except KeyboardInterrupt:
        print("ended at once")


if __name__ == "__main__":
    main(*sys.argv[1:])
