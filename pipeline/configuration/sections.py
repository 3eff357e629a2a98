"""Sections of the config and their keys; some sections are one of several kinds, as `train.algorithm` is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr

from pipeline.errors import nearest

Keys = tuple[str | int, ...]


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type may hold: several if they have kinds; also items of a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for each in get_args(annotation) for section in sections_in(each)]


def kind_of(section: type[BaseModel]) -> str:
    """The value of the key `name` that chooses this kind of a section; empty if it has only one."""
    field = section.model_fields.get("name")
    return get_args(field.annotation)[0] if field and get_origin(field.annotation) is Literal else ""


def walk(
    model: type[BaseModel], path: Sequence[str | int], *, named_kinds: bool = False
) -> Iterator[tuple[str | int, Any]]:
    """Each key of a path below a section, and the type of its value; None if it is not known.

    In a mapping of text, such as the Spark properties, the rest of the path is one key. `named_kinds`: the path is
    pydantic's, which also names validators and the kinds of sections.
    """
    kind: Any = model
    for number, part in enumerate(path):
        sections = sections_in(kind)
        if named_kinds and (str(part).startswith("function-") or str(part) in map(kind_of, sections)):
            continue
        container = next((each for each in (kind, *get_args(kind)) if get_origin(each) in (list, dict)), None)
        is_list = get_origin(container) is list
        if container and not is_list and get_args(container)[1] in (str, str | SecretStr):
            yield ".".join(map(str, path[number:])), str
            return
        types = [section.model_fields[part].annotation for section in sections if part in section.model_fields]
        kind = get_args(container)[-1] if container else types[0] if types else None
        yield int(part) if is_list and str(part).isdecimal() else part, kind


def advice(path: Sequence[str | int], model: type[BaseModel]) -> str:
    """What may be meant by a key that a section lacks: a key of another kind or of a section inside, or a name like it.

    Examples:
        >>> from pipeline.config import Config
        >>> advice(("train", "fraction"), Config)
        " 'train.algorithm.fraction' is a key of choco-sgd."
        >>> advice(("train", "epoch"), Config)
        " Did you mean 'epochs'?"
        >>> advice(("isolation_cone",), Config)
        " Did you mean 'features.isolation_cone'?"
    """
    *outer, key = map(str, path)
    kinds: dict[str, list[str]] = {}
    for name, kind in _keys_below(model, ""):
        kinds.setdefault(name, []).append(kind)
    prefix = ""
    for part in outer:
        # Without numbers of items and names in mappings.
        if any(name.startswith(f"{prefix}{part}.") for name in kinds):
            prefix += f"{part}."
    below = {name: name.removeprefix(prefix) for name in kinds if name.startswith(prefix)}
    inside = [name for name, end in below.items() if end.split(".")[-1] == key]
    for name in inside:
        if having := list(filter(None, kinds[name])):
            return f" '{name}' is a key of {', '.join(having)}."
    if inside:
        return f" Did you mean {' or '.join(map(repr, inside))}?"
    return nearest(key, [end for end in below.values() if "." not in end])


def _keys_below(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """Dotted names of all keys of a section and those inside, each with the kind of its section."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", kind_of(model)
        for section in sections_in(field.annotation):
            yield from _keys_below(section, f"{prefix}{name}.")


def flat_items(model: BaseModel, prefix: str) -> dict[str, Any]:
    """Dotted keys and JSON values of a section of the config, without keys that only change speed.

    Examples:
        >>> class Title(BaseModel):
        ...     words: str = "A run"
        >>> flat_items(Title(), "report")
        {'report.words': 'A run'}
    """
    ignored: frozenset[str] = getattr(model, "SPEED_ONLY", frozenset())
    items: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name in ignored:
            continue
        if isinstance(value, BaseModel):
            items |= flat_items(value, f"{prefix}.{name}")
        else:
            items[f"{prefix}.{name}"] = model.model_dump(mode="json", include={name})[name]
    return items
