"""Methods that learn from unlabelled data, as estimators of scikit-learn."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor, nn

from manigraph import engine
from manigraph.build import Job, build, build_algorithm
from manigraph.config import Config
from manigraph.data.preprocessing import Preprocessing
from manigraph.data.sources.base import Dataset
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.estimator.inputs import InputFormat, first_inputs, further_inputs
from manigraph.estimator.labels import (
    Numbers,
    class_numbers,
    is_unlabelled,
    known_classes,
    label_column,
)
from manigraph.estimator.settings import automatic_config
from manigraph.estimator.values import checked
from manigraph.nn import load_trained_state
from manigraph.nn.memory import trained_state
from manigraph.recipes.automatic import expected_shares
from manigraph.session import clean_images
from manigraph.training.estimate import estimate_run
from manigraph.training.execution import Execution, choose_device
from manigraph.training.loop import StepRecord

PREDICTED_AT_ONCE = 512
LINES = 10
"""That `verbose` prints of one training."""

_one_at_a_time = threading.Lock()
"""Weights and dropout masks come from torch's global random numbers, which threads share."""


class SemiSupervisedClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no types
    ClassifierMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Any method of `manigraph list algorithms`, with the interface of scikit-learn.

    X holds images (N, height, width) or (N, height, width, channels), of bytes or floats; or names of image
    files; or vectors (N, features). What is not set is chosen from the data (`manigraph.estimator.settings`).

    Args:
        algorithm: Name of the method.
        settings: Settings of the method by name, as in `manigraph train digits --help` after `--method.`;
            others are chosen.
        unlabelled: The label that means that the class is not known; among strings its text means it too.
            None, NaN and empty text always do. With None here, nothing else does, and -1 can be a class.
        backbone: Network that makes the features (`manigraph list backbones`). `head` is none: for vectors
            that are good features already; for long embeddings of a pretrained network `auto` is quicker.
        width: Multiplier on its channels.
        dropout: Its dropout rate.
        image_size: Names of files: side in pixels to which images are resized and cropped.
        augmentation: How views of images are made: `translation` in pixels, `rotation` in degrees, `scale`,
            and `flip`, which is off unless asked for, since letters and digits do not bear it; of vectors:
            `neighbours`, towards one of which a view goes.
        max_iter: Number of updates; by default 50 passes over the data, at least 500 and at most 3,000.
        minutes: Make only as many updates as fit into this time, which is measured on a few of them. The
            result then depends on how fast the machine is at that moment.
        labelled_batch: Labelled images in a batch, if there are so many.
        unlabelled_batch: Unlabelled images in a batch, if there are so many.
        learning_rate: The highest.
        weight_decay: L2 penalty on all weights.
        warm_start: Go on from the weights of the last `fit`, on data of the same kind with the same classes,
            such as after more labels were given.
        random_state: Decides everything random. The same machine with as many threads gives the same bits.
        device: `auto` takes a GPU if there is one; else `cpu`, `cuda`, `cuda:1`.
        runs: Folder in which to leave a run directory, which the command line reads; by default none is
            written.
        verbose: Print how training goes.

    Attributes:
        classes_: Labels of the classes, in the order of the columns of `predict_proba`.
        n_iter_: Updates that were made.
        loss_: Of the last update.
        notes_: What is worth knowing about the data, one sentence each.
        config_: All settings of the training.
        run_: The run directory, if `runs` was given.
        n_features_in_: Number of features, if X holds vectors.

    Examples:
        >>> import numpy as np
        >>> from sklearn.datasets import make_blobs
        >>> from manigraph import SemiSupervisedClassifier
        >>> X, truth = make_blobs(200, centers=3, random_state=0, cluster_std=0.5)
        >>> y = np.full(200, -1)  # the class is not known, but for two of each
        >>> for c in range(3):
        ...     y[np.flatnonzero(truth == c)[:2]] = c
        >>> model = SemiSupervisedClassifier("pi_vat", max_iter=50, random_state=0).fit(X, y)
        >>> model.predict(X[:3]).tolist() == truth[:3].tolist()
        True
        >>> model.predict_proba(X[:3]).shape
        (3, 3)
    """

    def __init__(
        self,
        algorithm: str = "manifold_graph",
        *,
        settings: Mapping[str, Any] | None = None,
        unlabelled: Any = -1,
        backbone: str = "auto",
        width: float | None = None,
        dropout: float | None = None,
        image_size: int | None = None,
        augmentation: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        minutes: float | None = None,
        labelled_batch: int = 32,
        unlabelled_batch: int = 128,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: str | torch.device = "auto",
        runs: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.unlabelled = unlabelled
        self.backbone = backbone
        self.width = width
        self.dropout = dropout
        self.image_size = image_size
        self.augmentation = augmentation
        self.max_iter = max_iter
        self.minutes = minutes
        self.labelled_batch = labelled_batch
        self.unlabelled_batch = unlabelled_batch
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.runs = runs
        self.verbose = verbose

    def _method_settings(self) -> Mapping[str, Any]:
        return self.settings or {}

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all of X and the labels there are.

        Args:
            X: Images, names of image files, or vectors.
            y: Their labels, of any kind; -1 (see `unlabelled`), None, NaN or "" where the class is not known.
        """
        given = self._given()
        goes_on = bool(self.warm_start) and hasattr(self, "classes_")
        if goes_on and self.runs is not None:
            raise UserError(
                "warm_start and runs cannot be used together: a run directory begins at the start"
            )
        if goes_on:
            format_: InputFormat = self._format
            inputs = further_inputs(self, X, format_)
        else:
            format_, inputs = first_inputs(self, X, given["image_size"])
        classes, numbers = self._labels(y, inputs, goes_on=goes_on)
        counts = np.bincount(numbers[numbers >= 0], minlength=len(classes)).tolist()
        config = self._config(format_, counts, len(inputs))
        dataset = Dataset(
            name="X",
            images=inputs,
            classes=torch.from_numpy(numbers),
            class_names=[str(label) for label in classes],
            train=torch.arange(len(inputs)),
            test=torch.arange(0),
        )
        before = (self._weights, self._preprocessing) if goes_on else None
        found = self._train(config, dataset, before)
        self.classes_ = classes
        self.notes_ = _notes(classes, counts, len(inputs))
        if "dark_images" in found:
            self.notes_.append(
                f"the brightest pixel is {int(inputs.max())} of 255, so strong views are made as of images "
                f"that are nearly black: scale the pixels up to 255, or give them as floats"
            )
        self._format: InputFormat = format_
        self._model: Any = self._built_model()
        for note in self.notes_ if self.verbose else ():
            self._say(note)
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The likeliest class of each row of X."""
        probs = self.predict_proba(X)  # first: it says so if nothing was fitted yet
        predicted: npt.NDArray[Any] = self.classes_[probs.argmax(axis=1)]
        return predicted

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """(N, classes) probability of each class, in the order of `classes_`."""
        probs: npt.NDArray[np.float64] = self._outputs(X, lambda model: model).softmax(dim=1).numpy()
        return probs

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """(N, size) features that the last linear layer gets: with the graph, those that went through it."""
        features: npt.NDArray[Any] = self._outputs(X, lambda model: model.final_features).numpy()
        return features

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right predictions among the rows of X whose class is known.

        So a y with unlabelled rows can be given to `cross_val_score` and `GridSearchCV` as it is.
        """
        check_is_fitted(self)
        labels = label_column(y)
        check_consistent_length(X, labels)
        known = ~is_unlabelled(labels, self.unlabelled)
        if not known.any():
            raise UserError(f"none of the {len(labels)} labels is known: there is nothing to compare with")
        numbers = class_numbers(labels, self.classes_)
        if (numbers[known] < 0).all():
            example = labels[known].tolist()[0]
            raise UserError(
                f"no label in y is one of the classes that were learned: {example!r} is not among "
                f"{_few(self.classes_.tolist())}"
            )
        never_seen = sorted({str(label) for label in labels[known & (numbers < 0)].tolist()})
        if never_seen:
            warnings.warn(
                f"{int((known & (numbers < 0)).sum())} labels are of classes that fit has never seen "
                f"({_few(never_seen)}), and count as errors",
                stacklevel=2,
            )
        right = self.predict_proba(X).argmax(axis=1) == numbers
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(right[known], weights=weights))

    # Training

    def _labels(self, y: Any, inputs: Tensor, *, goes_on: bool) -> tuple[npt.NDArray[Any], Numbers]:
        labels = label_column(y)
        check_consistent_length(inputs, labels)
        missing = is_unlabelled(labels, self.unlabelled)
        if missing.all():
            raise UserError(
                f"none of the {len(labels)} rows has a label: give that of at least one row for each class"
            )
        classes, numbers = known_classes(labels, missing)
        if len(classes) < 2:
            hint = "" if self.unlabelled is None or not missing.any() else self._hint_at_unlabelled()
            raise UserError(
                f"y holds only one class, {classes.tolist()[0]!r}: give labels of at least two classes{hint}"
            )
        if goes_on and classes.tolist() != self.classes_.tolist():
            raise UserError(
                f"warm_start goes on with the classes {_few(self.classes_.tolist())}, but y holds "
                f"{_few(classes.tolist())}: give labels of just these, or set warm_start=False"
            )
        return classes, numbers

    def _hint_at_unlabelled(self) -> str:
        return f" ({self.unlabelled!r} means unlabelled; if it is a class of yours, set unlabelled=None)"

    def _given(self) -> dict[str, Any]:
        """All parameters, of the types that the constructor says they have."""
        types = get_type_hints(SemiSupervisedClassifier.__init__)
        del types["return"]
        return {name: checked(name, getattr(self, name), hint) for name, hint in types.items()}

    def _config(self, format_: InputFormat, counts: list[int], num_inputs: int) -> Config[Any]:
        given = self._given()
        max_iter, minutes = given["max_iter"], given["minutes"]
        labelled_batch, unlabelled_batch = given["labelled_batch"], given["unlabelled_batch"]
        if max_iter is not None and max_iter < 1:
            raise UserError(f"max_iter must be at least 1, got {max_iter}")
        if minutes is not None and not minutes > 0:
            raise UserError(f"minutes must be above 0, got {minutes}")
        if min(labelled_batch, unlabelled_batch) < 2:
            raise UserError(
                f"labelled_batch and unlabelled_batch must be at least 2, got {labelled_batch} and "
                f"{unlabelled_batch}"
            )
        config = automatic_config(
            self.algorithm,
            shape=format_.shape,
            label_counts=counts,
            num_inputs=num_inputs,
            settings=self._method_settings(),
            augmentation=self.augmentation or {},
            backbone=self.backbone,
            width=given["width"],
            dropout=given["dropout"],
            steps=max_iter,
            labelled_batch=labelled_batch,
            unlabelled_batch=unlabelled_batch,
            learning_rate=given["learning_rate"],
            weight_decay=given["weight_decay"],
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        every = max(1, config.training.steps // LINES) if self.verbose else config.training.steps
        return replace(config, training=replace(config.training, log_every=every))

    def _train(
        self,
        config: Config[Any],
        dataset: Dataset,
        before: tuple[dict[str, Tensor], Preprocessing] | None,
    ) -> set[str]:
        """Trains and keeps what came out: settings, weights, preprocessing; kinds of findings in the data."""
        execution = Execution(device=str(self.device))
        with _one_at_a_time:
            try:
                if self.runs is None:
                    return self._train_in_memory(config, dataset, execution, before)
                return self._train_into_run(config, dataset, execution, Path(self.runs))
            except NonFiniteLossError as error:
                reason = str(error).partition(": ")[2].partition("; ")[0]
                raise UserError(
                    f"training failed because {reason}: set a lower learning_rate than "
                    f"{config.schedule.max_learning_rate:g}"
                ) from error

    def _train_in_memory(
        self,
        config: Config[Any],
        dataset: Dataset,
        execution: Execution,
        before: tuple[dict[str, Tensor], Preprocessing] | None,
    ) -> set[str]:
        weights, preprocessing = before if before is not None else (None, None)
        with torch.random.fork_rng():
            job = build(config, dataset=dataset, execution=execution, preprocessing=preprocessing)
            trainer = job.trainer
            if weights is not None:
                try:
                    load_trained_state(trainer.algorithm, weights)
                except RuntimeError:
                    raise UserError(
                        "warm_start cannot go on with weights of another network: set algorithm, backbone, "
                        "width and settings as before, or warm_start=False"
                    ) from None
            if self.minutes is not None:
                _limit_time(job, self.minutes)
            began, records = time.perf_counter(), []

            def on_step(record: StepRecord) -> None:
                records.append(record)
                if self.verbose:
                    left = (time.perf_counter() - began) * (trainer.config.steps / record.step - 1)
                    self._say(
                        f"update {record.step} of {trainer.config.steps}, loss {record.loss:.3f}, "
                        f"{left:.0f} s left"
                    )

            trainer.run(job.batches, on_step)
            trainer.refresh_statistics(clean_images(job))
        self.config_ = replace(config, training=trainer.config)
        self._weights = {
            name: value.detach().cpu().clone()
            for name, value in trained_state(trainer.evaluated_algorithm()).items()
        }
        self._preprocessing = job.preprocessing
        self._conclude(trainer.step, records[-1].loss, records[-1].health)
        return {finding.kind for finding in job.check.findings}

    def _train_into_run(
        self, config: Config[Any], dataset: Dataset, execution: Execution, runs: Path
    ) -> set[str]:
        if self.minutes is not None:
            raise UserError("minutes and runs cannot be used together: set max_iter instead")
        try:
            run, _ = engine.train(config, runs, dataset=dataset, execution=execution)
        except OSError as error:
            raise UserError(
                f"cannot write into '{runs}': {error.strerror or error}; name another folder for runs"
            ) from error
        self.config_ = config
        self._weights = safetensors.torch.load_file(run.path / "model.safetensors")
        self._preprocessing = engine.load(run).preprocessing
        last = run.read_lines("metrics.jsonl")[-1]
        self.run_ = run.path
        self._conclude(last["step"], last["loss"], last["health"])
        return {finding["kind"] for finding in run.read_json("check.json")["findings"]}

    def _conclude(self, steps: int, loss: float, health: Mapping[str, float]) -> None:
        self.n_iter_, self.loss_ = steps, loss
        if health.get("largest_class", 0.0) >= 1.0:
            warnings.warn(
                f"after {steps} updates all predictions of the last batch fall into one class: set a higher "
                f"max_iter or a lower learning_rate",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _say(self, text: str) -> None:
        print(f"[{type(self).__name__}] {text}")

    # Prediction

    def _outputs(self, X: Any, part: Callable[[Any], Callable[[Tensor], Tensor]]) -> Tensor:
        """What a part of the model makes of X, in float64."""
        check_is_fitted(self)
        inputs = further_inputs(self, X, self._format)
        model = self._ready_model()
        device, is_image = next(model.parameters()).device, self._format.is_image
        function = part(model)
        results = []
        with torch.inference_mode():
            for chunk in inputs.split(PREDICTED_AT_ONCE):
                prepared = self._preprocessing(chunk).to(device)
                results.append(function(prepared if is_image else prepared.double()).double().cpu())
        return torch.cat(results)

    def _ready_model(self) -> Any:
        if self._model is None:  # it was pickled without
            self._model = self._built_model()
        return self._model

    def _built_model(self) -> nn.Module:
        with _one_at_a_time, torch.random.fork_rng():
            algorithm = build_algorithm(self.config_, self._format.shape, len(self.classes_))
        load_trained_state(algorithm, self._weights)
        model = algorithm.inference_model().eval().to(choose_device(str(self.device)))
        # Vectors are cheap, and in float64 a prediction does not depend on what it was asked together with.
        return model if self._format.is_image else model.double()

    @property
    def _n_features_out(self) -> int:
        """For scikit-learn's names of the columns of `transform`."""
        model = self._ready_model()
        parameter = next(model.parameters())
        with torch.inference_mode():
            return int(model.final_features(parameter.new_zeros(1, *self._format.shape)).shape[1])

    def __getstate__(self) -> dict[str, Any]:
        # The model is made of the weights again, on whatever device there is then.
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_model": None} if "_model" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _limit_time(job: Job, minutes: float) -> None:
    """Make the training as short as it must be, if it would take longer."""
    trainer = job.trainer
    measured = estimate_run(trainer, job.batches, lambda: 0, 0)
    steps = trainer.config.steps
    steps = min(steps, max(1, int(60 * minutes * steps / measured.seconds_of(steps))))
    trainer.config = replace(trainer.config, steps=steps, log_every=min(trainer.config.log_every, steps))


def _notes(classes: npt.NDArray[Any], counts: list[int], num_inputs: int) -> list[str]:
    notes = []
    if sum(counts) == num_inputs:
        notes.append("all rows have labels: the unlabelled part of training uses the same rows")
    if shares := expected_shares(counts):
        notes.append(
            f"classes are expected to be about as frequent as their labels ({100 * min(shares):.0f} to "
            f"{100 * max(shares):.0f} %): set class_shares if they are not"
        )
    once = [str(label) for label, count in zip(classes, counts, strict=True) if count == 1]
    if once:
        notes.append(
            f"{len(once)} of {len(classes)} classes have one label only ({_few(once)}): a few more help most"
        )
    return notes


def _few(names: list[Any]) -> str:
    shown = ", ".join(str(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown}, … ({len(names)} in all)"
