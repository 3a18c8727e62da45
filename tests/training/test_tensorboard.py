"""Curves for TensorBoard, read back from real event files."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from manigraph.training.evaluation import Evaluation
from manigraph.training.loop import StepRecord
from manigraph.training.tensorboard import TensorBoardLog


def record(step: int, loss: float = 0.5) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        terms={"classification": 0.25, "anchor": float("nan")},
        learning_rate=0.125,
        momentum=0.75,
        images_per_second=1024.0,
        health={"largest_class": 0.0625},
    )


def evaluation(error: float) -> Evaluation:
    return Evaluation(num_images=300, error=error, class_errors=(error,), calibration_error=1.0)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each point of each curve."""
    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_every_quantity_is_a_curve(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path / "new" / "folder") as log:
        log.step(record(20))
        log.evaluation("validation", 20, evaluation(3.5))
        log.evaluation("test", 20, evaluation(4.5))
    assert curves(tmp_path / "new" / "folder") == {
        "loss": [(20, 0.5)],
        "terms/classification": [(20, 0.25)],
        "terms/anchor": [(20, pytest.approx(float("nan"), nan_ok=True))],
        "schedule/learning_rate": [(20, 0.125)],
        "schedule/momentum": [(20, 0.75)],
        "speed/images_per_second": [(20, 1024.0)],
        "health/largest_class": [(20, 0.0625)],
        "error/validation": [(20, 3.5)],
        "error/test": [(20, 4.5)],
    }


def test_points_are_on_disk_after_close_and_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.step(record(1))
    log.close()
    log.close()
    assert curves(tmp_path)["loss"] == [(1, 0.5)]


def test_a_resumed_run_shows_no_step_twice(tmp_path: Path) -> None:
    with TensorBoardLog(tmp_path) as log:
        for step in (10, 20, 30, 40):
            log.step(record(step))
            log.evaluation("validation", step, evaluation(3.5))
    time.sleep(1.1)  # event files are read in the order of the second in which they were made
    with TensorBoardLog(tmp_path, first_step=20) as log:
        for step in (30, 40, 50):
            log.step(record(step, loss=0.25))
    shown = curves(tmp_path)
    assert shown["loss"] == [(10, 0.5), (20, 0.5), (30, 0.25), (40, 0.25), (50, 0.25)]
    assert shown["error/validation"] == [(10, 3.5), (20, 3.5)]


WITHOUT_TENSORBOARD = """
import sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorboard":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from manigraph.errors import UserError
from manigraph.training.tensorboard import TensorBoardLog
try:
    TensorBoardLog(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""


def test_without_the_package_the_error_names_the_way_out(tmp_path: Path) -> None:
    program = [sys.executable, "-W", "error", "-c", WITHOUT_TENSORBOARD, str(tmp_path / "log")]
    result = subprocess.run(program, capture_output=True, text=True, check=True)
    assert result.stdout == (
        "TensorBoard cannot be used (No module named 'tensorboard'): pip install 'manigraph[tensorboard]'\n"
    )
    assert result.stderr == ""
    assert not (tmp_path / "log").exists()


def test_tensorboard_is_imported_only_when_used() -> None:
    program = "import sys, manigraph.training.tensorboard; sys.exit('tensorboard' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
