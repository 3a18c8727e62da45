"""One training step of public toolkits against ours: the same network, the same tensors, their code.

    pip install --no-deps --target FOLDER semilearn==0.3.2 LAMDA-SSL==1.0.2 ModSSC==1.2.2

puts the toolkits where nothing else finds them; what they need beyond torch, numpy and scikit-learn is
stubbed, so that no other torch is pulled in. All contenders have CNN-13 of the same width with the same
first weights, the same batch, ready in memory, and the same threads. Ours is `Trainer.train_step` as in
every run, with weights in torch's channels-last layout, and with an entropy term where theirs has one.
Theirs have torch's default layout and its own operations, and optimiser, schedule and average of the
weights as the toolkit's own defaults have them. How often the network is run, and what of it is in the
gradient, is their code's decision: that is what is measured.

**semilearn.** `semilearn.get_config` with its defaults (SGD with Nesterov momentum, cosine, average of the
weights, `use_cat`) and `semilearn.get_algorithm` build the algorithm around our network, which is wrapped,
as theirs return features too. A step is the body of `AlgorithmBase.train`: `process_batch`, `train_step`,
and `call_hook` before and after, which leads to `ParamUpdateHook` (backward pass, optimiser, schedule) and
`EMAHook`. Left out are the hooks that evaluate, save and log, and `TimerHook`, which needs CUDA. The
consistency weight is that of the middle of a run.

**LAMDA-SSL.** The estimators `FixMatch`, `VAT` and `PiModel` with their defaults (SGD with Nesterov
momentum, cosine, average of the weights). After `init_model`, `init_ema`, `init_optimizer` and `start_fit`,
a step is `DeepModelMixin.fit_batch_loop` over one batch: `train`, then `get_loss` and `optimize`. Its
`CosineAnnealingLR` passes torch an argument that is gone, so torch's own with the same settings is put in
its place. `MeanTeacher` is left out: it compares a detached student with a teacher that is in no gradient,
so its step is one of supervised training, with a backward pass over the labelled images alone.

**ModSSC.** `FixMatchMethod`, `VATMethod`, `PiModelMethod` and `MeanTeacherMethod` with their defaults, and
AdamW as in all factories of its `TorchModelBundle`. The step is inside of `fit`, so one step is one `fit`
over data of one batch, with `unsup_warm_up` 0, as the warm-up would be that of a run of one step. Checking
the data and taking the batch out of it, a copy, are in its time, since they are in `fit`.
`MeanTeacherMethod._init_teacher`, which belongs to a run and not to a step, is called once. VAT and Mean
Teacher run all passes with batch norm in evaluation mode, the labelled one too. FixMatch has the weak views
in a pass of their own without gradient (`use_cat` is off by default), where those of semilearn and
LAMDA-SSL have all images in one pass.

**Stubbed**, only while `importable` is entered: `torchvision` and `timm`, which do not import with every
build of torch, and other packages that no step needs (`STUBS`), by empty classes; `LAMDA_SSL.Split`, which
needs an older scikit-learn, as does `ClassifierMixin._estimator_type`, given back here; `Tensor.cuda`,
which semilearn calls in any case, returns the tensor itself; semilearn's search for a free port is skipped.
"""

import contextlib
import copy
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from sklearn.base import ClassifierMixin
from torch import Tensor, nn

from manigraph.bench.data import random_dataset
from manigraph.bench.settings import use_usual_layout
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job, build
from manigraph.catalogue import RECIPES
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.errors import UserError
from manigraph.native import native
from manigraph.nn.classifier import Classifier
from manigraph.training.execution import Execution

METHODS = {"vat": "VAT", "pi_model": "Π-model", "fixmatch": "FixMatch", "mean_teacher": "Mean Teacher"}
"""Our algorithms that toolkits have too."""

PATIENCE = Patience()
"""A round has up to four steps of several seconds each."""

LONG_RUN = 2**20
"""Steps of the run that a step is taken from: what changes in the course of a run hardly changes."""


@dataclass(frozen=True)
class ToolkitSetting:
    """A network and a batch."""

    width: float
    labelled: int
    unlabelled: int
    side: int

    @property
    def name(self) -> str:
        """In words."""
        images = f"{self.labelled} + {self.unlabelled} images of {self.side}x{self.side}"
        return f"CNN-13 at width {self.width:g}, {images}"


WHOLE = ToolkitSetting(width=1.0, labelled=32, unlabelled=128, side=32)
QUICK = ToolkitSetting(width=1 / 16, labelled=8, unlabelled=32, side=16)
"""Of a quick look: the ratios are those of small things, such as Python's own time."""


@dataclass(frozen=True)
class Images:
    """A batch as toolkits get it, in torch's default layout."""

    labelled: Tensor
    labels: Tensor
    weak: Tensor
    strong: Tensor
    """The second view; VAT takes the first alone."""

    @classmethod
    def of(cls, batch: Batch) -> "Images":
        """The images of one of our batches."""
        views = [view.contiguous() for view in batch.unlabelled.values()]
        return cls(batch.labelled["image"].contiguous(), batch.labels, views[0], views[-1])


@dataclass(frozen=True)
class Step:
    """A training step that can be taken again and again."""

    network: nn.Module
    """What is trained."""
    take: Work


MakeStep = Callable[[str, Classifier, Images], Step]


@dataclass(frozen=True)
class Comparable:
    """What of ours a toolkit's method is held against."""

    at_least: float = 1.0
    """How many times as long as ours their step should take."""
    entropy_weight: float = 0.0
    """Of the entropy term, as the toolkit has it by default; 0 where it has none."""


@dataclass(frozen=True)
class Toolkit:
    """A package, and how to take steps of its methods."""

    distribution: str
    version: str
    """For which the steps were written."""
    package: str
    make_step: MakeStep
    """From the name of our algorithm, a network and a batch."""
    methods: Mapping[str, Comparable]
    """Our algorithms that it has."""

    @property
    def name(self) -> str:
        """With the version that is installed."""
        return f"{self.distribution} {importlib.metadata.version(self.distribution)}"


# semilearn

_SEMILEARN_METHODS = {
    "vat": "vat",
    "pi_model": "pimodel",
    "fixmatch": "fixmatch",
    "mean_teacher": "meanteacher",
}
_SEMILEARN_LEFT_OUT = ("EvaluationHook", "CheckpointHook", "TimerHook", "LoggingHook")


class _WithFeatures(nn.Module):
    """What semilearn's networks return."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.model.final_features(images)
        return {"logits": self.model.linear(features), "feat": features}


def semilearn_step(algorithm: str, model: Classifier, images: Images) -> Step:
    """The body of `AlgorithmBase.train`."""
    semilearn = _imported("semilearn")
    settings = {
        "algorithm": _SEMILEARN_METHODS[algorithm],
        "num_classes": model.num_classes,
        "batch_size": len(images.labelled),
        "uratio": len(images.weak) // len(images.labelled),
        "num_train_iter": LONG_RUN,
        "dataset": "none",  # so that it builds no data of its own
        "distributed": False,
    }
    with mock.patch.object(_imported("semilearn.lighting.config"), "get_port", return_value=0):
        args = semilearn.get_config(settings)
    trained: Any = semilearn.get_algorithm(
        args,
        net_builder=lambda **_: _WithFeatures(copy.deepcopy(model)),
        tb_log=None,
        logger=logging.getLogger(__name__),
    )
    for hook in _SEMILEARN_LEFT_OUT:
        del trained.hooks_dict[hook]
    trained.model.train()
    trained.call_hook("before_run")
    trained.it = LONG_RUN // 2
    labelled = {"x_lb": images.labelled, "y_lb": images.labels}
    unlabelled = {"x_ulb_w": images.weak, "x_ulb_s": images.strong}

    def take() -> None:
        trained.call_hook("before_train_step")
        batch = trained.process_batch(**labelled, **unlabelled)
        trained.out_dict, trained.log_dict = trained.train_step(**batch)
        trained.call_hook("after_train_step")
        trained.it += 1

    return Step(trained.model, take)


# LAMDA-SSL

_LAMDA_METHODS = {"vat": "VAT", "pi_model": "PiModel", "fixmatch": "FixMatch"}


def lamda_step(algorithm: str, model: Classifier, images: Images) -> Step:
    """`DeepModelMixin.fit_batch_loop` over one batch."""
    name = _LAMDA_METHODS[algorithm]
    estimator: Any = getattr(_imported(f"LAMDA_SSL.Algorithm.Classification.{name}"), name)(
        network=model, mu=len(images.weak) // len(images.labelled)
    )
    estimator.init_model()
    estimator.init_ema()
    estimator.init_optimizer()
    schedule = estimator.scheduler
    estimator._scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        estimator._optimizer, T_max=schedule.T_max, eta_min=schedule.eta_min
    )
    estimator.start_fit()
    estimator.it_total = estimator.num_it_total // 2
    places, unlabelled_places = torch.arange(len(images.labelled)), torch.arange(len(images.weak))
    views = images.weak if algorithm == "vat" else [images.weak, images.strong]
    estimator._labeled_dataloader = [(places, images.labelled, images.labels)]
    estimator._unlabeled_dataloader = [(unlabelled_places, views, None)]
    return Step(estimator._network, estimator.fit_batch_loop)


# ModSSC

_MODSSC_METHODS = {
    "vat": ("vat", "VAT"),
    "pi_model": ("pi_model", "PiModel"),
    "fixmatch": ("fixmatch", "FixMatch"),
    "mean_teacher": ("mean_teacher", "MeanTeacher"),
}


def modssc_step(algorithm: str, model: Classifier, images: Images) -> Step:
    """One `fit` over data of one batch."""
    inductive = _imported("modssc.inductive")
    module, name = _MODSSC_METHODS[algorithm]
    methods = _imported(f"modssc.inductive.methods.{module}")
    network = copy.deepcopy(model)
    bundle = inductive.TorchModelBundle(
        model=network,
        optimizer=torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0),
        ema_model=copy.deepcopy(network).requires_grad_(False) if algorithm == "mean_teacher" else None,
    )
    if algorithm == "fixmatch":
        mu = len(images.weak) // len(images.labelled)
        sizes: dict[str, Any] = {"batch_size": len(images.labelled), "mu": mu}
    else:  # one size for both, but no more labelled images than there are
        sizes = {"batch_size": len(images.weak), "unsup_warm_up": 0.0}
    method: Any = getattr(methods, f"{name}Method")(
        getattr(methods, f"{name}Spec")(model_bundle=bundle, **sizes)
    )
    if algorithm == "mean_teacher":
        method._init_teacher(network, bundle.ema_model)
        method._init_teacher = lambda *_: None
    data = inductive.InductiveDataset(
        X_l=images.labelled, y_l=images.labels, X_u=images.weak, X_u_w=images.weak, X_u_s=images.strong
    )
    device = inductive.DeviceSpec(device="cpu")
    return Step(network, lambda: method.fit(data, device=device))


TOOLKITS = (
    Toolkit(
        "semilearn",
        "0.3.2",
        "semilearn",
        semilearn_step,
        {
            "vat": Comparable(entropy_weight=0.06),
            "pi_model": Comparable(),
            "fixmatch": Comparable(at_least=1.4),
            "mean_teacher": Comparable(),
        },
    ),
    Toolkit(
        "LAMDA-SSL",
        "1.0.2",
        "LAMDA_SSL",
        lamda_step,
        {
            "vat": Comparable(entropy_weight=0.06),
            "pi_model": Comparable(),
            "fixmatch": Comparable(at_least=1.4),
        },
    ),
    Toolkit(
        "ModSSC",
        "1.2.2",
        "modssc",
        modssc_step,
        {
            "vat": Comparable(),
            "pi_model": Comparable(),
            "fixmatch": Comparable(at_least=1.4),
            "mean_teacher": Comparable(),
        },
    ),
)


# Importing them

STUBS = (
    "torchvision",
    "timm",
    "torchaudio",
    "transformers",
    "skimage",
    "ruamel",
    "progress",
    "tqdm",
    "wandb",
    "aim",
    "typer",
    "torch.utils.tensorboard",
    "LAMDA_SSL.Split",
)
"""Modules that toolkits import and no step needs."""


class _Empty(type):
    """The type of empty classes, which have constants alone."""

    def __getattr__(cls, name: str) -> str:
        if not name.isupper():
            raise AttributeError(name)
        return name


class _StubModule(ModuleType):
    """A module that has whatever is asked for: an empty class if it is spelled like one, else a module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():
            return _StubModule(f"{self.__name__}.{name}")
        return _Empty(name, (), {"__init__": lambda *_, **__: None})


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for each of `STUBS` and all inside of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_stub = any(fullname == stub or fullname.startswith(f"{stub}.") for stub in STUBS)
        return ModuleSpec(fullname, self, is_package=True) if is_stub else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


@contextlib.contextmanager
def importable(folder: Path | None) -> Iterator[None]:
    """Let toolkits of a folder, or of this environment, be imported and run; all is as before afterwards."""
    before, path, finders = set(sys.modules), [*sys.path], [*sys.meta_path]
    if folder is not None:
        sys.path.append(str(folder.absolute()))  # last: nothing in there comes before what is installed
    sys.meta_path.insert(0, _Stubs())
    importlib.invalidate_caches()
    try:
        with (
            warnings.catch_warnings(),
            mock.patch.object(Tensor, "cuda", lambda tensor, *_, **__: tensor),
            mock.patch.object(ClassifierMixin, "_estimator_type", "classifier", create=True),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.path[:], sys.meta_path[:] = path, finders
        packages = {toolkit.package for toolkit in TOOLKITS}
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in packages or isinstance(sys.modules[name], _StubModule):
                del sys.modules[name]


def _imported(module: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):  # semilearn prints what it could not import
        return importlib.import_module(module)


def toolkits_problem(folder: Path | None) -> str | None:
    """Which toolkits are missing and how to install them, in one sentence; None if all are there."""
    with importable(folder):
        missing = [t.distribution for t in TOOLKITS if importlib.util.find_spec(t.package) is None]
    if not missing:
        return None
    where = "in this environment" if folder is None else f"in '{folder}'"
    wanted = " ".join(f"{toolkit.distribution}=={toolkit.version}" for toolkit in TOOLKITS)
    return (
        f"there is no {' and no '.join(missing)} {where}: install them with "
        f"`pip install --no-deps --target {'FOLDER' if folder is None else folder} {wanted}` "
        f"and name that folder with --toolkits"
    )


# Measuring


def our_job(algorithm: str, setting: ToolkitSetting, entropy_weight: float) -> Job:
    """The CIFAR-10 recipe at the setting's size, on images of noise."""
    config = RECIPES.get("cifar10")(algorithm)
    return build(
        replace(
            config,
            method=replace(config.method, entropy_weight=entropy_weight),
            data=replace(config.data, labels=200, validation=0),
            preprocessing=replace(config.preprocessing, kind="standardise"),
            backbone=replace(config.backbone, width=setting.width),
            batch=BatchConfig(labelled=setting.labelled, unlabelled=setting.unlabelled),
            training=replace(config.training, steps=LONG_RUN),
        ),
        dataset=random_dataset(1000, setting.side),
        execution=Execution(device="cpu"),
    )


def our_name(comparable: Comparable) -> str:
    """Of the contender that a toolkit is held against."""
    weight = comparable.entropy_weight
    return f"manigraph with entropy weight {weight:g}" if weight else "manigraph"


def their_step(toolkit: Toolkit, algorithm: str, job: Job, batch: Batch) -> Step:
    """A step of a toolkit with the network of our job as it is now, in torch's default layout and operations.

    Inside `importable` only, as are the steps themselves.
    """
    model = copy.deepcopy(job.trainer.algorithm.model)
    use_usual_layout(model)
    step = toolkit.make_step(algorithm, model, Images.of(batch))
    return replace(step, take=native(False)(step.take))


def compare_with_toolkits(
    algorithm: str, setting: ToolkitSetting, patience: Patience, on_round: Callable[[int], None]
) -> list[Ratio]:
    """The steps of all toolkits that have a method, by ours. Inside `importable` only."""
    toolkits = {toolkit.name: toolkit for toolkit in TOOLKITS if algorithm in toolkit.methods}
    ours: dict[str, Work] = {}
    theirs: dict[str, Work] = {}
    for name, toolkit in toolkits.items():
        comparable = toolkit.methods[algorithm]
        job = our_job(algorithm, setting, comparable.entropy_weight)
        batch = next(job.batches)  # every job has the same first batch and weights
        theirs[name] = their_step(toolkit, algorithm, job, batch).take
        ours.setdefault(our_name(comparable), partial(job.trainer.train_step, batch))
    seconds = take_turns({**ours, **theirs}, patience, on_round)
    return [
        ratio_of(
            seconds,
            name,
            our_name(toolkit.methods[algorithm]),
            setting=f"{METHODS[algorithm]}, {setting.name}",
            target=Target("at least", toolkit.methods[algorithm].at_least),
        )
        for name, toolkit in toolkits.items()
    ]


def run_toolkits_benchmark(folder: Path | None, scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """All methods; `scale` multiplies the number of rounds, and below 1 network and batch are tiny.

    Args:
        folder: Where the toolkits are installed; None means in this environment.
        scale: How long to measure.
        tell: Called with what is being done.

    Raises:
        UserError: A toolkit is missing.
    """
    problem = toolkits_problem(folder)
    if problem is not None:
        raise UserError(problem)
    setting = WHOLE if scale >= 1 else QUICK
    ratios = []
    with importable(folder), torch.random.fork_rng():
        for algorithm, title in METHODS.items():
            tell(f"{title}: building")

            def on_round(done: int, title: str = title) -> None:
                tell(f"{title}: round {done}")

            ratios += compare_with_toolkits(algorithm, setting, PATIENCE.scaled(scale), on_round)
    return ratios
