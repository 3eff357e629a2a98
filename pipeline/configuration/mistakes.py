"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ingestion.secrets import redact_all
from pipeline.configuration.credentials import shown
from pipeline.configuration.overrides import Keys, Override
from pipeline.configuration.sections import advice, item_section, kinds_of
from pipeline.errors import nearest, short

_LINES_SHOWN: Final = 20


def explain(error: ValidationError, model: type[BaseModel], *, place: str, overrides: Sequence[Override] = ()) -> str:
    """All mistakes of a config, one per line; those of a single option follow with its name."""
    in_file, in_options = [], []
    for mistake in error.errors():
        where = _place_of(mistake["loc"], model)
        about = short(_about(mistake, where))
        giving = [each for each in overrides if where.keys and each.touches(where.keys)]
        if giving:
            in_options.append(f"{giving[-1].shown}: {about}")
        else:
            in_file.append(f"  {about}")
            if overrides and not where.keys:
                # Values that contradict each other: of the file, of options, or of both.
                place = " ".join([place, "with", *(each.shown for each in overrides)])
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    lines = [*([f"{place} has {number}:", *in_file] if in_file else []), *in_options]
    return "\n".join([*lines[:_LINES_SHOWN], *(["  ..."] if len(lines) > _LINES_SHOWN else [])])


class _Place(NamedTuple):
    """The place of a mistake."""

    keys: Keys
    section: type[BaseModel] | None
    """The section that the last key belongs to, if it is known."""
    siblings: dict[str, type[BaseModel]]
    """The kinds that this section may have, by name; empty if it has only one."""


def _place_of(loc: Keys, model: type[BaseModel]) -> _Place:
    """The place to which pydantic's path leads; this also names validators and the kinds of sections."""
    keys: list[int | str] = []
    section: type[BaseModel] | None = model
    siblings: dict[str, type[BaseModel]] = {}
    inner, of_inner, kinds = section, siblings, siblings
    for part in loc:
        if part in kinds:
            inner, of_inner, kinds = kinds[str(part)], kinds, {}
        elif not str(part).startswith("function-"):
            keys.append(part)
            if isinstance(part, str):
                section, siblings = inner, of_inner
                field = section.model_fields.get(part) if section else None
                kinds = kinds_of(field) if field else {}
                inner, of_inner = item_section(field.annotation) if field else None, {}
    return _Place(tuple(keys), section, siblings)


def _about(mistake: ErrorDetails, place: _Place) -> str:
    keys, context = place.keys, mistake.get("ctx", {})
    key = ".".join(str(part) for part in keys)
    if mistake["type"] == "extra_forbidden" and place.section is not None:
        last = str(keys[-1])
        prefix = key.removesuffix(last)
        return f"unknown key '{key}'.{advice(last, place.section, prefix=prefix, siblings=place.siblings)}"
    if mistake["type"] in {"missing", "union_tag_not_found"}:
        lacking = [key, *(name.strip("'") for name in [context.get("discriminator")] if name)]
        return f"'{'.'.join(lacking)}' is missing."
    if mistake["type"] == "value_error":
        words = f"{key + ': ' if key else ''}{context['error']}"
        return words if words.endswith((".", "?")) else f"{words}."
    names = re.findall(r"'([^']+)'", context.get("expected_tags", context.get("expected", "")))
    if mistake["type"] == "union_tag_invalid":
        return f"'{key}': there is no '{context['tag']}', only {', '.join(names)}.{nearest(context['tag'], names)}"
    given: Any = redact_all(mistake["input"])
    seen = shown(f"{key}={given!r}").removeprefix(f"{key}=")
    close = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f"'{key}': {mistake['msg']} (given: {seen}).{f' Did you mean {close[0]!r}?' if close else ''}"
