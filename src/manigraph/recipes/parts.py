"""What several recipes use."""

from dataclasses import fields
from typing import Any

from manigraph.catalogue import ALGORITHMS


def method_config(algorithm: str, **settings: Any) -> Any:
    """The method's configuration with those of the settings that it has."""
    kind: Any = ALGORITHMS.get(algorithm).Config
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})
