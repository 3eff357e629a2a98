"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hep_core.secrets import HIDDEN, redact, redact_all
from pipeline.configuration.credentials import holds_credential
from pipeline.configuration.keys import ConfigSource, kind_of, sections_in
from pipeline.errors import nearest, truncated

_LINES_SHOWN: Final = 20


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    place: str,
    overrides: Sequence[ConfigSource] = (),
) -> str:
    """All mistakes of a config, one per line; those of a single option follow with its name."""
    in_file, in_options = [], []
    for mistake in error.errors():
        keys, words = about(mistake, model)
        giving = [each for each in overrides if keys and each.touches(keys)]
        if giving:
            in_options.append(f"{giving[-1].source}: {words}")
            continue
        in_file += [f"  {line}" for line in words.splitlines()]
        if overrides and not keys:
            # Values that contradict each other: of the file, of options, or of both.
            place = " ".join([place, "with", *(each.source for each in overrides)])
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    lines = [*([f"{place} has {number}:", *in_file] if in_file else []), *in_options]
    return "\n".join([*lines[:_LINES_SHOWN], *(["  ..."] if len(lines) > _LINES_SHOWN else [])])


def about(mistake: ErrorDetails, model: type[BaseModel]) -> tuple[tuple[str | int, ...], str]:
    """The keys of a mistake in a section, and a sentence about it."""
    # Pydantic also names validators, kinds of sections and the keys of mappings.
    skipped = {kind for _, kind in _keys_below([model])} | {"[key]"}
    keys = tuple(
        key for key in mistake["loc"] if key not in skipped and not str(key).startswith("function-")
    )
    return keys, "\n".join(map(truncated, _words(mistake, keys, model).splitlines()))


def _words(mistake: ErrorDetails, keys: tuple[str | int, ...], model: type[BaseModel]) -> str:
    context, key = mistake.get("ctx", {}), ".".join(map(str, keys))
    if mistake["type"] == "extra_forbidden":
        return f"unknown key '{key}'.{_advice(keys, model)}"
    if mistake["type"] in {"missing", "union_tag_not_found"}:
        discriminator = context.get("discriminator", "").strip("'")
        return f"'{'.'.join(filter(None, [key, discriminator]))}' is missing."
    if mistake["type"] == "value_error":
        words = f"{key + ': ' if key else ''}{context['error']}"
        return "\n".join(
            line if line.endswith((".", "?")) else f"{line}." for line in words.splitlines()
        )
    names = re.findall(r"'([^']+)'", context.get("expected_tags", context.get("expected", "")))
    if mistake["type"] == "union_tag_invalid":
        return f"'{key}': there is no '{context['tag']}', only {', '.join(names)}.{nearest(context['tag'], names)}"
    given: Any = redact_all(mistake["input"])
    seen = HIDDEN if holds_credential(f"{key}={given!r}") else redact(repr(given))
    close = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f"'{key}': {mistake['msg']} (given: {seen}).{f' Did you mean {close[0]!r}?' if close else ''}"


def _advice(keys: Sequence[str | int], model: type[BaseModel]) -> str:
    """What may be meant by an unknown key: a key of another kind or of a section inside, or a name like it."""
    *outer, key = map(str, keys)
    sections = [model]
    for part in outer:
        # Numbers of items, and names in mappings, lead to no other section.
        inner = [
            each.model_fields[part].annotation for each in sections if part in each.model_fields
        ]
        sections = [section for each in inner for section in sections_in(each)] or sections
    below = list(_keys_below(sections))
    inside = {name: [kind for other, kind in below if other == name and kind] for name, _ in below}
    inside = {name: kinds for name, kinds in inside.items() if name.split(".")[-1] == key}
    for name, kinds in inside.items():
        if kinds:
            return f" '{name}' is a key of {', '.join(kinds)}."
    if inside:
        return f" Did you mean {' or '.join(map(repr, inside))}?"
    return nearest(key, {name for name, _ in below if "." not in name})


def _keys_below(sections: Sequence[type[BaseModel]], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of all keys of sections and those inside, each with the kind of its section."""
    for section in sections:
        for name, field in section.model_fields.items():
            yield f"{prefix}{name}", kind_of(section)
            yield from _keys_below(sections_in(field.annotation), f"{prefix}{name}.")
