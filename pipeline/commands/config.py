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
    """Yield the config as lines of YAML, with the source of each value in a comment.

    A section gets a line of its own, and its values follow, indented by their depth. An item of a
    list starts with a dash in the place of its number.
    """
    for keys, value in nested_values(_values(loaded)):
        indentation = "  " * (len(keys) - 1)
        key = keys[-1]
        entry = f"{indentation}-" if isinstance(key, int) else f"{indentation}{key}:"
        if has_sources_inside(value):
            yield entry
            continue
        # JSON is valid YAML, and shows a value in one line.
        entry = f"{entry} {json.dumps(value, ensure_ascii=False)}"
        # A source is one line, whatever white space it holds.
        source = " ".join(loaded.source(keys).split())
        yield f"{entry:<{_SOURCE_COLUMN}} # {source}"


def values_with_sources(loaded: LoadedConfig) -> dict[str, dict[str, Any]]:
    """Return `{dotted key: {"value": ..., "source": ...}}` for all values, without the sections."""
    return {
        ".".join(map(str, keys)): {"value": value, "source": loaded.source(keys)}
        for keys, value in nested_values(_values(loaded))
        if not has_sources_inside(value)
    }


def _values(loaded: LoadedConfig) -> dict[str, Any]:
    """Return the config as JSON content, in which credentials are replaced by stars."""
    values: dict[str, Any] = redact_all(loaded.config.model_dump(mode="json"))
    return values


def nested_values(section: Any, outer_keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and the value of each entry of a section or list, at any depth.

    Keys are a tuple from the outermost section to the entry, with numbers for list items. A section
    comes before its own entries; a list of plain values is one entry.
    """
    items = section.items() if isinstance(section, dict) else enumerate(section)
    for key, value in items:
        keys = (*outer_keys, key)
        yield keys, value
        if has_sources_inside(value):
            yield from nested_values(value, keys)


def has_sources_inside(value: Any) -> bool:
    """Return whether a value is a section, or a list of sections, whose parts may differ in source.

    A list of plain values, or an empty section, has one source.
    """
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and bool(value)
