"""`full.yaml` holds every key with the default of the code."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pipeline.config import SHIPPED, Config
from pipeline.configuration.yaml_text import read_yaml


def keys_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= keys_of(inner, f"{prefix}{name}.")
        else:
            found.add(prefix + name)
    return found


def keys_in(content: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in content.items():
        # An empty one is the value of a key that holds a mapping, such as `spark.conf`.
        is_section = isinstance(value, dict) and value
        found |= keys_in(value, f"{prefix}{name}.") if is_section else {prefix + name}
    return found


def test_full_yaml_names_every_key() -> None:
    content = read_yaml((SHIPPED / "full.yaml").read_text())
    assert keys_in(content) == keys_of(Config)
