"""What a person names first on the command line: a recipe, or a folder of images."""

import os
from pathlib import Path

from manigraph.catalogue import RECIPES
from manigraph.errors import UnknownNameError, UserError

OWN_IMAGES = "folder"


def recipe_and_options(target: str) -> tuple[str, list[str]]:
    """The recipe for a target, and the options that a path adds to it.

    A recipe's name always means the recipe; a folder of that name is `./NAME`. Hyphens are as good as
    underscores, unless there is a folder that is called so.
    """
    if target.startswith("-"):
        raise UserError("name a recipe or a folder of images first, as in `manigraph train digits --seed 3`")
    if target in RECIPES:
        return target, []
    try:
        if Path(target).exists():
            return OWN_IMAGES, ["--data.path", str(Path(target).resolve())]
    except OSError as error:
        raise UserError(f"'{target[:60]}…' cannot be opened: {error.strerror}") from None
    if (spelled := target.replace("-", "_")) in RECIPES:
        return spelled, []
    if os.sep in target or target.lower().endswith(".csv"):
        raise UserError(f"there is no folder or file '{target}': give the folder of your images")
    raise UnknownNameError("recipe or folder", target, RECIPES)
