"""`config`: every value with its source; credentials are hidden."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from hep_core.secrets import redact_all
from pipeline.config import LoadedConfig
from pipeline.configuration.keys import Keys

_WIDTH: Final = 44


def lines(loaded: LoadedConfig) -> Iterator[str]:
    """YAML, with the source of each value in a comment."""
    for keys, value in values(_content(loaded)):
        begin = "  " * (len(keys) - 1) + ("-" if isinstance(keys[-1], int) else f"{keys[-1]}:")
        given = f"{begin} {json.dumps(value, ensure_ascii=False)}"
        yield (
            begin
            if has_parts(value)
            else f"{given:<{_WIDTH}} # {' '.join(loaded.source(keys).split())}"
        )


def as_json(loaded: LoadedConfig) -> dict[str, dict[str, Any]]:
    """Value and source of each dotted key."""
    found = [(keys, value) for keys, value in values(_content(loaded)) if not has_parts(value)]
    return {
        ".".join(map(str, keys)): {"value": value, "source": loaded.source(keys)}
        for keys, value in found
    }


def _content(loaded: LoadedConfig) -> Any:
    return redact_all(loaded.config.model_dump(mode="json"))


def values(content: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Keys and values, those of sections before those inside."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*keys, key), value
        if has_parts(value):
            yield from values(value, (*keys, key))


def has_parts(value: Any) -> bool:
    """Whether the parts of a value may have different sources; a list of plain values has one source."""
    return bool(value) and (
        isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict))
    )
