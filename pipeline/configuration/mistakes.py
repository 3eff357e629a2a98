"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ingestion.secrets import redact_all
from pipeline.configuration.credentials import shown
from pipeline.configuration.overrides import Keys, Override
from pipeline.configuration.sections import advice, kinds_of, section_of
from pipeline.errors import nearest, short

_LINES_SHOWN: Final = 20


def explain(error: ValidationError, model: type[BaseModel], *, place: str, overrides: Sequence[Override] = ()) -> str:
    """All mistakes of a config, one per line; those of a single option follow with its name.

    Args:
        error: The mistakes of the config with its overrides.
        model: The model of the config.
        place: Name of the file.
        overrides: The overrides of the command line.
    """
    in_file, in_options = [], []
    for mistake in error.errors():
        where = _place_of(mistake["loc"], model)
        about = short(_about(mistake, where))
        giving = [each for each in overrides if where.keys and (each.concerns(where.keys) or each.is_below(where.keys))]
        if giving:
            in_options.append(f"{giving[-1].shown}: {about}")
        else:
            in_file.append(f"  {about}")
            if overrides and not where.keys:
                # Values that contradict each other: of the file, of options, or of both.
                place = " ".join([place, "with", *(each.shown for each in overrides)])
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    lines = [*([f"{place} has {number}:", *in_file] if in_file else []), *in_options]
    more = [f"  ... and {len(lines) - _LINES_SHOWN} more"] if len(lines) > _LINES_SHOWN else []
    return "\n".join([*lines[:_LINES_SHOWN], *more])


class _Place(NamedTuple):
    """The place of a mistake."""

    keys: Keys
    section: type[BaseModel] | None
    """The section that the last key belongs to, if it is known."""
    field: FieldInfo | None
    """The field around this section, if it is one of several kinds."""
    kind: str
    """The kind of this section; empty if it has only one."""


def _place_of(loc: Keys, model: type[BaseModel]) -> _Place:
    """The place to which pydantic's path leads; this also names validators and the kinds of sections."""
    keys: list[int | str] = []
    inner: type[BaseModel] | None = model
    section, around, kind = inner, None, ""
    kinds: dict[str, type[BaseModel]] = {}
    for part in loc:
        if isinstance(part, str) and part.startswith("function-"):
            continue
        if part in kinds:
            inner, kind, kinds = kinds[str(part)], str(part), {}
            continue
        keys.append(part)
        if isinstance(part, int):
            continue
        section = inner
        field = None if section is None else section.model_fields.get(part)
        kinds = {} if field is None else kinds_of(field)
        if kinds:
            around = field
        inner = None if field is None else _section_of(field.annotation)
    return _Place(tuple(keys), section, around, kind)


def _about(mistake: ErrorDetails, place: _Place) -> str:
    keys, context = place.keys, mistake.get("ctx", {})
    key = ".".join(str(part) for part in keys)
    if mistake["type"] == "extra_forbidden" and place.section is not None:
        last = str(keys[-1])
        near = advice(last, place.section, prefix=key.removesuffix(last))
        return f"unknown key '{key}'.{_of_other_kinds(place) or near}"
    if mistake["type"] == "missing":
        return f"'{key}' is missing."
    if mistake["type"] == "union_tag_not_found":
        return f"'{key}.{context['discriminator'].strip(chr(39))}' is missing."
    if mistake["type"] == "value_error":
        words = f"{key + ': ' if key else ''}{context['error']}"
        return words if words.endswith((".", "?")) else f"{words}."
    given = redact_all(mistake["input"])
    seen = shown(f"{key}={given!r}").removeprefix(f"{key}=")
    names = re.findall(r"'([^']+)'", context.get("expected_tags", context.get("expected", "")))
    if mistake["type"] == "union_tag_invalid":
        return f"'{key}': there is no '{context['tag']}', only {', '.join(names)}.{nearest(context['tag'], names)}"
    close = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f"'{key}': {mistake['msg']} (given: {seen}).{f' Did you mean {close[0]!r}?' if close else ''}"


def _of_other_kinds(place: _Place) -> str:
    """The other kinds of a section that have a key."""
    if not place.kind or place.field is None:
        return ""
    having = [name for name, kind in kinds_of(place.field).items() if place.keys[-1] in kind.model_fields]
    return f" {place.kind} has no such key, only {', '.join(having)}." if having else ""


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key, or each item of its list, holds."""
    return section_of(get_args(annotation)[0] if get_origin(annotation) is list else annotation)
