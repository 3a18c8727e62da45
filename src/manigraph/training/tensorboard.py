"""A run as TensorBoard shows it; needs the extra `tensorboard`."""

from pathlib import Path
from types import TracebackType

from manigraph.errors import UserError
from manigraph.training.evaluation import Evaluation
from manigraph.training.loop import StepRecord


class TensorBoardLog:
    """Writes the curves of a run as an event file; use as a context manager, or close it.

    Args:
        folder: Where event files go; made if it is missing.
        first_step: The step at which the run was resumed. What an earlier file says about later steps is
            taken back, because they are made again.
    """

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        try:
            # Half a second of import that runs without TensorBoard do not pay.
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                f"TensorBoard cannot be used ({error}): pip install 'manigraph[tensorboard]'"
            ) from None
        # Steps from `purge_step` on are forgotten; the one of the checkpoint itself is not made again.
        self._writer = SummaryWriter(folder, purge_step=first_step + 1, flush_secs=30)

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, record: StepRecord) -> None:
        """Some steps are done."""
        scalars = {
            "loss": record.loss,
            **{f"terms/{name}": value for name, value in record.terms.items()},
            "schedule/learning_rate": record.learning_rate,
            "schedule/momentum": record.momentum,
            "speed/images_per_second": record.images_per_second,
            **{f"health/{name}": value for name, value in record.health.items()},
        }
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, record.step)

    def evaluation(self, part: str, step: int, evaluation: Evaluation) -> None:
        """The error was measured on the way."""
        self._writer.add_scalar(f"error/{part}", evaluation.error, step)

    def close(self) -> None:
        """Write what is not yet on disk; a second time does nothing."""
        self._writer.close()
