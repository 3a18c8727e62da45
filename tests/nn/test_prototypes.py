"""The prototype generator and the labelled images in its place: section 3."""

import pytest
import torch
from torch import nn

from manigraph.nn import LabelledImageNodes, PrototypeGenerator
from tests.helpers import normal
from tests.reference import prototypes as reference


def generator(num_classes: int = 3, per_class: int = 4, feature_size: int = 5) -> PrototypeGenerator:
    torch.manual_seed(0)
    return PrototypeGenerator(num_classes, per_class, feature_size, embedding_size=2, hidden_size=6).double()


def layers_of(module: PrototypeGenerator) -> tuple[reference.Layer, reference.Layer]:
    first, _, last = module.mlp
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return reference.Layer(first.weight, first.bias), reference.Layer(last.weight, last.bias)


def test_prototypes_are_the_reference() -> None:
    module = generator()
    hidden, output = layers_of(module)
    expected = reference.generated_prototypes(
        module.instance_embedding, module.class_embedding, hidden, output
    )
    torch.testing.assert_close(module(), expected, rtol=1e-12, atol=1e-12)


def test_prototypes_are_class_major() -> None:
    # Changing the embedding of class 1 moves rows K..2K-1; changing instance 2 moves row 2 of each class.
    module = generator(num_classes=3, per_class=4)
    before = module().detach()
    with torch.no_grad():
        module.class_embedding[1] += 1
    moved = (module() != before).any(dim=1).nonzero().flatten().tolist()
    assert moved == [4, 5, 6, 7]
    module = generator(num_classes=3, per_class=4)
    with torch.no_grad():
        module.instance_embedding[2] += 1
    assert (module() != before).any(dim=1).nonzero().flatten().tolist() == [2, 6, 10]


def test_sizes_of_the_paper() -> None:
    # Embeddings 32 + 32; MLP 64 -> 64 -> 128.
    module = PrototypeGenerator(10, 20, 128)
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert shapes == {
        "instance_embedding": (20, 32),
        "class_embedding": (10, 32),
        "mlp.0.weight": (64, 64),
        "mlp.0.bias": (64,),
        "mlp.2.weight": (128, 64),
        "mlp.2.bias": (128,),
    }
    assert module().shape == (200, 128)


def test_labelled_images_are_kept_with_the_model() -> None:
    nodes = LabelledImageNodes(3, 2, (1, 8, 8))
    images = normal(6, 1, 8, 8).float()
    nodes.draw(images)
    assert torch.equal(nodes.state_dict()["images"], images)
    images.zero_()
    assert nodes.images.any(), "a copy"


def test_at_least_one_prototype_per_class() -> None:
    with pytest.raises(ValueError, match=r"prototypes per class \(K\) must be at least 1, got 0"):
        PrototypeGenerator(3, 0, 5)
    with pytest.raises(ValueError, match=r"node images per class \(K\) must be at least 1, got 0"):
        LabelledImageNodes(3, 0, (1, 8, 8))
