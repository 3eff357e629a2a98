"""Messages about mistakes in a config: the key, what is wrong, the nearest valid name, and no secrets."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Sequence
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ingestion.secrets import HIDDEN, redact_all
from pipeline.configuration.credentials import shown
from pipeline.configuration.overrides import Override
from pipeline.errors import nearest, short

_MISTAKES_SHOWN: Final = 20


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    place: str,
    of_file: ValidationError | None,
    overrides: Sequence[Override],
) -> str:
    """All mistakes of a config, one per line; those of the file come first.

    Args:
        error: The mistakes of the config with its overrides.
        model: The model of the config.
        place: Name of the file.
        of_file: The mistakes of the file alone.
        overrides: The overrides of the command line.
    """
    known = set() if of_file is None else {(each["loc"], each["msg"]) for each in of_file.errors()}
    in_file, in_options = [], []
    for mistake in error.errors():
        options = _options(mistake, overrides, is_in_file=(mistake["loc"], mistake["msg"]) in known)
        if options:
            in_options.append(f"{options}: {_about(mistake, model)}")
        else:
            in_file.append(f"  {_about(mistake, model)}")
    number = f"{len(in_file)} mistake{'s' if len(in_file) > 1 else ''}"
    return "\n".join([*([f"{place} has {number}:", *_some(in_file)] if in_file else []), *_some(in_options)])


def _options(mistake: ErrorDetails, overrides: Sequence[Override], *, is_in_file: bool) -> str:
    """The options that cause a mistake; empty if the file does."""
    giving = [each for each in overrides if each.concerns(mistake["loc"])]
    if giving or is_in_file:
        return giving[-1].shown if giving else ""
    # Values that contradict each other, or a part of a value that is wrong as a whole.
    return " ".join(each.shown for each in [each for each in overrides if each.is_below(mistake["loc"])] or overrides)


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"  ... and {len(lines) - _MISTAKES_SHOWN} more"] if len(lines) > _MISTAKES_SHOWN else []
    return [*map(short, lines[:_MISTAKES_SHOWN]), *more]


def _about(mistake: ErrorDetails, model: type[BaseModel]) -> str:
    keys = [key for key in mistake["loc"] if not (isinstance(key, str) and key.startswith("function-"))]
    key = ".".join(str(part) for part in keys)
    if mistake["type"] == "extra_forbidden":
        return f"unknown key '{key}'.{nearest(str(keys[-1]), _fields_at(model, keys[:-1]))}"
    if mistake["type"] == "missing":
        return f"'{key}' is missing."
    if mistake["type"] == "value_error":
        return f"{key + ': ' if key else ''}{mistake['ctx']['error']}."
    given = redact_all(mistake["input"])
    # Whether an argument holds a credential may depend on the one before it.
    seen = HIDDEN if "launcher_args" in keys else shown(f"{key}={given!r}").removeprefix(f"{key}=")
    names = re.findall(r"'([^']+)'", mistake["ctx"]["expected"]) if mistake["type"] in ("enum", "literal_error") else []
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return f"'{key}': {mistake['msg']} (given: {seen}).{f' Did you mean {near[0]!r}?' if near else ''}"


def _fields_at(model: type[BaseModel], keys: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model that a path of keys leads to."""
    for key in keys:
        if isinstance(key, int):
            continue
        model = _model_of(model.model_fields[key].annotation)
    return list(model.model_fields)


def _model_of(annotation: Any) -> type[BaseModel]:
    """The model inside `Model`, `list[Model]` or `Model | None`."""
    if get_origin(annotation) in (list, Union, types.UnionType):
        inner = [part for part in get_args(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        annotation = inner[0]
    section: type[BaseModel] = annotation
    return section
