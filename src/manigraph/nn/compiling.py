"""torch.compile for backbones, where a compiler is at hand."""

import shutil

import torch
from torch import nn

from manigraph.errors import UserError


def compile_backbone(backbone: nn.Module) -> None:
    """Compile the backbone in place; its parameters keep their names.

    Dropout takes the same random numbers as without, so that the run stays the same up to rounding.
    """
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise UserError(
            "--compile needs a C++ compiler and there is none: install g++ or leave the option out"
        )
    torch._inductor.config.fallback_random = True
    backbone.compile()
