"""Sections of the config: those inside a section, and those that are one of several kinds, as `train.algorithm` is."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from pipeline.errors import nearest

Keys = tuple[str | int, ...]


class Place(NamedTuple):
    """A key on a path through the config."""

    key: str | int
    section: type[BaseModel] | None
    """The section that the key belongs to; None for items of lists and mappings, and below an unknown key."""
    siblings: Mapping[str, type[BaseModel]]
    """The kinds that this section may have, by name; empty if it has only one."""
    field: FieldInfo | None
    """What the section says about the key; None if it lacks it."""
    kind: Any
    """The type of its value; None if it is not known."""

    @property
    def tag(self) -> str:
        """The key that names the kind of the section here; empty if it has only one."""
        return str((self.field and self.field.discriminator) or "")


def walk(model: type[BaseModel], path: Sequence[str | int], *, named_kinds: bool = False) -> Iterator[Place]:
    """Each key of a path below a section.

    In a mapping of text, such as the Spark properties, the rest of the path is one key. `named_kinds`: the path is
    pydantic's, which also names validators and the kinds of sections.
    """
    kind: Any = model
    siblings: Mapping[str, type[BaseModel]] = {}
    kinds: Mapping[str, type[BaseModel]] = {}
    for number, part in enumerate(path):
        if named_kinds and part in kinds:
            kind, siblings, kinds = kinds[str(part)], kinds, {}
            continue
        if named_kinds and str(part).startswith("function-"):
            continue
        section, origin, arguments = section_of(kind), get_origin(kind), get_args(kind)
        if origin is dict and arguments[1] in (str, str | SecretStr):
            yield Place(".".join(map(str, path[number:])), None, {}, None, str)
            return
        field = section.model_fields.get(str(part)) if section else None
        inner = field.annotation if field else arguments[-1] if origin in (list, dict) else None
        key = int(part) if origin is list and str(part).isdecimal() else part
        kind = without_none(inner)
        yield Place(key, section, siblings, field, kind)
        siblings, kinds = {}, kinds_of(field) if field else {}


def without_none(annotation: Any) -> Any:
    """The section or list inside `X | None`; YAML reads text that may be null."""
    if get_origin(annotation) in (Union, types.UnionType):
        (inner, *others) = (each for each in get_args(annotation) if each is not types.NoneType)
        return None if others or inner is str else inner
    return annotation


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key of this type holds, if it holds one."""
    found = without_none(annotation)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def kinds_of(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The kinds of a section by the value of their key `field.discriminator`; none if it has only one kind."""
    if not isinstance(field.discriminator, str):
        return {}
    return {get_args(kind.model_fields[field.discriminator].annotation)[0]: kind for kind in get_args(field.annotation)}


def advice(
    key: str, section: type[BaseModel], *, prefix: str = "", siblings: Mapping[str, type[BaseModel]] | None = None
) -> str:
    """What may be meant by a key that a section lacks: a key of another kind or of a section inside, or a name like it.

    `prefix` holds the keys of the section, with a dot at the end; `siblings` are the kinds that it may have.

    Examples:
        >>> from training.settings import TrainSettings
        >>> advice("fraction", TrainSettings, prefix="train.")
        " 'train.algorithm.fraction' is a key of choco-sgd."
        >>> advice("epoch", TrainSettings)
        " Did you mean 'epochs'?"
        >>> from pipeline.config import Config
        >>> advice("isolation_cone", Config)
        " Did you mean 'features.isolation_cone'?"
    """
    kinds_by_name = {f"{name}.": kinds_of(field) for name, field in section.model_fields.items()}
    for name, kinds in {"": siblings or {}, **kinds_by_name}.items():
        having = [kind for kind, model in kinds.items() if key in model.model_fields]
        if having:
            return f" '{prefix}{name}{key}' is a key of {', '.join(having)}."
    inside = [f"'{found}'" for found in _inside(key, section, prefix)]
    return f" Did you mean {' or '.join(inside)}?" if inside else nearest(key, section.model_fields)


def _inside(key: str, section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Dotted names of a key in the sections inside a section."""
    for name, field in section.model_fields.items():
        if inner := section_of(field.annotation):
            if key in inner.model_fields:
                yield f"{prefix}{name}.{key}"
            yield from _inside(key, inner, f"{prefix}{name}.")


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
