"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ingestion.secrets import HIDDEN, redact_all
from pipeline.configuration.credentials import shown
from pipeline.configuration.overrides import Keys, Override
from pipeline.configuration.sections import advice, kinds_of, section_of
from pipeline.errors import nearest, short

_MISTAKES_SHOWN: Final = 20


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    place: str,
    of_file: ValidationError | None = None,
    overrides: Sequence[Override] = (),
) -> str:
    """All mistakes of a config, one per line; those of the file come first.

    Args:
        error: The mistakes of the config with its overrides.
        model: The model of the config.
        place: Name of the file.
        of_file: The mistakes of the file alone; None if it has none.
        overrides: The overrides of the command line.
    """
    known = set() if of_file is None else {(each["loc"], each["msg"]) for each in of_file.errors()}
    in_file, in_options = [], []
    for mistake in error.errors():
        where = _place_of(mistake["loc"], model)
        options = _options(where.keys, overrides, is_in_file=(mistake["loc"], mistake["msg"]) in known)
        if options:
            in_options.append(f"{options}: {_about(mistake, where)}")
        else:
            in_file.append(f"  {_about(mistake, where)}")
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    return "\n".join([*([f"{place} has {number}:", *_some(in_file)] if in_file else []), *_some(in_options)])


def _options(keys: Keys, overrides: Sequence[Override], *, is_in_file: bool) -> str:
    """The options that cause a mistake; empty if the file does."""
    giving = [each for each in overrides if each.concerns(keys)]
    if giving or is_in_file:
        return giving[-1].shown if giving else ""
    # Values that contradict each other, or a part of a value that is wrong as a whole.
    return " ".join(each.shown for each in [each for each in overrides if each.is_below(keys)] or overrides)


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"  ... and {len(lines) - _MISTAKES_SHOWN} more"] if len(lines) > _MISTAKES_SHOWN else []
    return [*map(short, lines[:_MISTAKES_SHOWN]), *more]


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
    # Whether an argument holds a credential may depend on the one before it.
    seen = HIDDEN if "launcher_args" in keys else shown(f"{key}={given!r}").removeprefix(f"{key}=")
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
