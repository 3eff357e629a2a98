"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ingestion.secrets import redact_all
from pipeline.configuration.credentials import shown
from pipeline.configuration.overrides import Override
from pipeline.configuration.sections import Keys, advice, walk
from pipeline.errors import nearest, short

_LINES_SHOWN: Final = 20


def explain(error: ValidationError, model: type[BaseModel], *, place: str, overrides: Sequence[Override] = ()) -> str:
    """All mistakes of a config, one per line; those of a single option follow with its name."""
    in_file, in_options = [], []
    for mistake in error.errors():
        keys = tuple(key for key, _ in walk(model, mistake["loc"], named_kinds=True))
        about = short(_about(mistake, keys, model))
        giving = [each for each in overrides if keys and each.touches(keys)]
        if giving:
            in_options.append(f"{giving[-1].shown}: {about}")
        else:
            in_file.append(f"  {about}")
            if overrides and not keys:
                # Values that contradict each other: of the file, of options, or of both.
                place = " ".join([place, "with", *(each.shown for each in overrides)])
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    lines = [*([f"{place} has {number}:", *in_file] if in_file else []), *in_options]
    return "\n".join([*lines[:_LINES_SHOWN], *(["  ..."] if len(lines) > _LINES_SHOWN else [])])


def _about(mistake: ErrorDetails, keys: Keys, model: type[BaseModel]) -> str:
    context = mistake.get("ctx", {})
    key = ".".join(map(str, keys))
    if mistake["type"] == "extra_forbidden":
        return f"unknown key '{key}'.{advice(keys, model)}"
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
