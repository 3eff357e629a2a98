"""`config`: every value with its source; credentials are shown as ***."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ingestion.secrets import redact_all
from pipeline.config import LoadedConfig
from pipeline.configuration.overrides import Keys

_WIDTH: Final = 44


def lines(loaded: LoadedConfig) -> Iterator[str]:
    """YAML, with the source of each value in a comment."""
    yield from _lines(redact_all(loaded.config.model_dump(mode="json")), (), loaded)


def _lines(content: Any, keys: Keys, loaded: LoadedConfig) -> Iterator[str]:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        place = (*keys, key)
        begin = "  " * len(keys) + (f"{key}:" if isinstance(content, dict) else "-")
        if _has_parts(value):
            yield begin
            yield from _lines(value, place, loaded)
        else:
            given = f"{begin} {json.dumps(value, ensure_ascii=False)}"
            yield f"{given:<{_WIDTH}} # {' '.join(loaded.source(place).split())}"


def as_json(loaded: LoadedConfig) -> dict[str, dict[str, Any]]:
    """Value and source of each dotted key."""
    values = _values(redact_all(loaded.config.model_dump(mode="json")), ())
    return {".".join(map(str, keys)): {"value": value, "source": loaded.source(keys)} for keys, value in values}


def _values(content: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        if _has_parts(value):
            yield from _values(value, (*keys, key))
        else:
            yield (*keys, key), value


def _has_parts(value: Any) -> bool:
    """Whether the parts of a value may have different sources; a list of plain values has one source."""
    return bool(value) and (isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict)))
