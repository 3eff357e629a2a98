"""`config`: every value with its source; credentials are hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from hep_core.secrets import redact_all
from pipeline.config import LoadedConfig
from pipeline.configuration.keys import Keys

#: Column at which the comments with the sources start.
_SOURCE_COLUMN: Final = 44


def lines(loaded: LoadedConfig) -> Iterator[str]:
    """The config as YAML, with the source of each value in a comment."""
    for keys, value in nested_values(_values(loaded)):
        indentation = "  " * (len(keys) - 1)
        key = keys[-1]
        entry = f"{indentation}-" if isinstance(key, int) else f"{indentation}{key}:"
        if has_sources_inside(value):
            yield entry
            continue
        entry = f"{entry} {json.dumps(value, ensure_ascii=False)}"
        source = " ".join(loaded.source(keys).split())
        yield f"{entry:<{_SOURCE_COLUMN}} # {source}"


def values_with_sources(loaded: LoadedConfig) -> dict[str, dict[str, Any]]:
    """Value and source by dotted key."""
    return {
        ".".join(map(str, keys)): {"value": value, "source": loaded.source(keys)}
        for keys, value in nested_values(_values(loaded))
        if not has_sources_inside(value)
    }


def _values(loaded: LoadedConfig) -> dict[str, Any]:
    values: dict[str, Any] = redact_all(loaded.config.model_dump(mode="json"))
    return values


def nested_values(section: Any, outer_keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Keys and values of a section or list; a section comes before its own values."""
    items = section.items() if isinstance(section, dict) else enumerate(section)
    for key, value in items:
        keys = (*outer_keys, key)
        yield keys, value
        if has_sources_inside(value):
            yield from nested_values(value, keys)


def has_sources_inside(value: Any) -> bool:
    """Whether the values inside may have different sources.

    A list of plain values has one source.
    """
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and bool(value)
