"""YAML as `yaml.safe_load` and `safe_load_all` read it, a tenth as slow where libyaml is there."""

from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """The one document."""
    return yaml.load(text, _Loader)


def load_all(text: str | bytes) -> list[Any]:
    """Every document."""
    return list(yaml.load_all(text, _Loader))
