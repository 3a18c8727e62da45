"""Takes its time to be imported, in processes that others started; leaves a mark when it begins to."""

import os
import time
from multiprocessing import current_process
from pathlib import Path

from tests.experiments.calls import prepare_until_told

if current_process().name != "MainProcess" and "IMPORTING" in os.environ:
    Path(os.environ["IMPORTING"]).touch()
    time.sleep(1)


def prepare_until_told_after_import(mark: Path) -> None:
    prepare_until_told(mark)
