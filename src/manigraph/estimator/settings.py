"""What is chosen for data that nobody has said anything about: network, batches, views, length, rates.

| choice | rule |
|---|---|
| network | vectors: two layers; images up to 16 pixels: small CNN; larger ones: CNN-13 of width 1/4 |
| batches | 32 labelled and 128 unlabelled, but no more than there are (labelled ones: twice) |
| views | shifts of up to a sixteenth of the side, up to 10° and 10 % of rotation and scale; never mirrored |
| views of vectors | up to half of the way to one of the 5 nearest |
| updates | 50 passes over all data, at least 500 (vectors: 1,000) and at most 3,000 |
| ε of VAT | a share of the deviation of one value, times the square root of their number |
| learning | as `recipes/automatic.py` has it for own images; vectors as tiny images |

`docs/estimator.md` says what was measured with them.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.errors import UnknownNameError
from manigraph.estimator.values import checked
from manigraph.recipes.automatic import PIXEL_EPSILON, attention_scale, is_tiny, learning
from manigraph.recipes.parts import average_for, averaged, method_config
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

SMALLEST_SIDE = 8
"""Below it no convolutional network takes them: their pixels are a vector."""
WIDTH_OF_CNN13 = 0.25

PASSES = 50
FEWEST_STEPS = 500
FEWEST_STEPS_OF_VECTORS = 1000
"""Labels spread in small steps from vector to vector; an update takes about 10 milliseconds."""
MOST_STEPS = 3000

SHIFT = 1 / 16
"""Of the shorter side; at least a pixel."""

NEIGHBOURS = 5
"""Nearest vectors towards which a view of a vector goes."""

LEARNING_RATE = 0.1
WEIGHT_DECAY = 1e-3
AVERAGE = 0.98
"""Decay of the average of weights that predicts."""
LONGEST_GRADIENT = 3.0

VECTOR_EPSILON = 0.2
"""ε by the square root of the number of values; that of images is in `recipes/automatic.py`."""


def automatic_backbone(shape: tuple[int, ...]) -> str:
    """The network for one image (channels, height, width) or vector."""
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        return "mlp"
    return "small_cnn" if is_tiny(shape) else "cnn13"


def automatic_steps(shape: tuple[int, ...], num_inputs: int, unlabelled_batch: int) -> int:
    """Number of updates."""
    fewest = FEWEST_STEPS if len(shape) == 3 else FEWEST_STEPS_OF_VECTORS
    return min(max(math.ceil(PASSES * num_inputs / unlabelled_batch), fewest), MOST_STEPS)


def automatic_config(
    algorithm: str,
    *,
    shape: tuple[int, ...],
    label_counts: list[int],
    num_inputs: int,
    settings: Mapping[str, Any],
    augmentation: Mapping[str, Any],
    backbone: str,
    width: float | None,
    dropout: float | None,
    steps: int | None,
    labelled_batch: int,
    unlabelled_batch: int,
    learning_rate: float | None,
    weight_decay: float | None,
    seed: int,
) -> Config[Any]:
    """The whole configuration; what is None is chosen.

    Args:
        algorithm: Name of the method.
        shape: Of one stored image or vector.
        label_counts: How many labels each class has.
        num_inputs: Labelled and unlabelled ones.
        settings: Of the method, instead of those chosen here.
        augmentation: How views are made, likewise.
        backbone: Name of the network, or `auto`.
        width: Multiplier on its channels.
        dropout: Its rate.
        steps: Number of updates.
        labelled_batch: At most so many labelled images in a batch.
        unlabelled_batch: At most so many others.
        learning_rate: The highest.
        weight_decay: L2 penalty.
        seed: Of everything random.
    """
    name = automatic_backbone(shape) if backbone == "auto" else backbone
    is_image = len(shape) == 3
    if dropout is None and not is_image:
        dropout = 0.0  # with it, labels did not spread along two moons
    if width is None:
        width = WIDTH_OF_CNN13 if backbone == "auto" and name == "cnn13" else 1.0
    batch = BatchConfig(
        labelled=max(2, min(labelled_batch, 2 * sum(label_counts))),
        unlabelled=max(2, min(unlabelled_batch, num_inputs)),
    )
    config: Config[Any] = Config(
        algorithm=algorithm,
        method=_method(algorithm, shape, width, label_counts, settings),
        seed=seed,
        # Labelled images are among the unlabelled ones too, so that these can be few, or none.
        data=DataConfig(name="arrays", validation=0, labelled_in_pool=True),
        augmentation=_augmentation(shape, augmentation),
        batch=batch,
        backbone=BackboneConfig(name=name, width=width, dropout=dropout),
        schedule=SuperConvergence(max_learning_rate=LEARNING_RATE),
        training=TrainingConfig(
            steps=automatic_steps(shape, num_inputs, batch.unlabelled) if steps is None else steps,
            weight_decay=WEIGHT_DECAY if weight_decay is None else weight_decay,
            ema_decay=average_for(algorithm, AVERAGE),
            max_gradient_norm=LONGEST_GRADIENT,
        ),
    )
    config = averaged(config)
    if learning_rate is not None:
        config = replace(config, schedule=replace(config.schedule, max_learning_rate=learning_rate))
    return config


def _method(
    algorithm: str,
    shape: tuple[int, ...],
    width: float,
    label_counts: list[int],
    settings: Mapping[str, Any],
) -> Any:
    is_image = len(shape) == 3
    tiny = not is_image or is_tiny(shape)
    chosen = learning(algorithm, tiny=tiny, labels=label_counts, comparison=settings.get("comparison"))
    epsilon = (PIXEL_EPSILON if is_image else VECTOR_EPSILON) * math.sqrt(math.prod(shape))
    scale = 1.0 if tiny else attention_scale(width)
    config = method_config(algorithm, **chosen, epsilon=epsilon, scale=scale)
    return _changed(config, settings, f"setting of {algorithm}")


def _augmentation(shape: tuple[int, ...], augmentation: Mapping[str, Any]) -> AugmentationConfig:
    chosen = AugmentationConfig(translation=0, neighbours=NEIGHBOURS)
    if len(shape) == 3:
        translation = max(1, round(SHIFT * min(shape[1:])))
        chosen = AugmentationConfig(
            translation=min(translation, min(shape[1:]) - 1), rotation=10.0, scale=0.1
        )
    changed: AugmentationConfig = _changed(chosen, augmentation, "augmentation")
    return changed


def _changed(config: Any, settings: Mapping[str, Any], kind: str) -> Any:
    legal = [field.name for field in fields(config)]
    for name in settings:
        if name not in legal:
            raise UnknownNameError(kind, str(name), legal)
    types = get_type_hints(type(config))
    return replace(config, **{name: checked(name, value, types[name]) for name, value in settings.items()})
