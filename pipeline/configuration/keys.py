"""The keys of the config: the sections below them, the source of each value, and `--set a.b=c`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, SecretStr
from ruamel.yaml.error import YAMLError

from hep_core.settings_section import SettingsSection
from pipeline.configuration.credentials import hide_credentials
from pipeline.configuration.yaml_text import about_yaml, read_yaml
from pipeline.errors import ConfigError, truncated

Keys = tuple[str | int, ...]


class ConfigSource(NamedTuple):
    """A value of a file, or of `--set`."""

    keys: Keys
    """Empty for a whole file."""
    value: Any
    source: str
    """The file, or the option as it was typed, without secrets."""

    def touches(self, keys: Keys) -> bool:
        """Whether it gives the value of a key, of a section around it, or a part of its value."""
        return all(own == other for own, other in zip(self.keys, keys, strict=False))


def source_of(keys: Keys, given: Sequence[ConfigSource]) -> str:
    """The last that gives a value or a part of it, or `default`; of a file and its options."""
    last = next(each for each in reversed(given) if each.touches(keys))
    return last.source if _holds(last.value, keys[len(last.keys) :]) else "default"


def _holds(content: Any, keys: Keys) -> bool:
    # The name alone stands for a section with this `name`.
    if not keys or (isinstance(content, str) and keys == ("name",)):
        return True
    items = dict(enumerate(content)) if isinstance(content, list) else content
    return isinstance(items, dict) and keys[0] in items and _holds(items[keys[0]], keys[1:])


def apply_override(content: dict[str, Any], option: str, model: type[BaseModel]) -> ConfigSource:
    """Put the value of `a.b=c` into the content of a config, in place. YAML reads c, unless the config expects text.

    Examples:
        >>> from pipeline.config import Config
        >>> content = {"train": {"epochs": 20}, "classes": ["QCD", "ttbar"]}
        >>> for option in ("train.epochs=3", "classes.0=010", "spark.conf.spark.sql.shuffle.partitions=4"):
        ...     _ = apply_override(content, option, Config)
        >>> content["train"], content["classes"], content["spark"]
        ({'epochs': 3}, ['010', 'ttbar'], {'conf': {'spark.sql.shuffle.partitions': '4'}})
    """
    path, separator, text = (part.strip() for part in option.partition("="))
    said = f"--set {truncated(hide_credentials(option))}"
    if not separator or not all(path.split(".")):
        raise ConfigError(
            f"{said}: write it as key.subkey=value, for example --set train.epochs=5."
        )
    places = list(_walk(model, path.split(".")))
    given = ConfigSource(tuple(key for key, _ in places), _value(text, places[-1][1], said), said)
    where: Any = content
    for number, (key, kind) in enumerate(places, start=1):
        name = truncated(".".join(map(str, given.keys[: number - 1])))
        is_list = isinstance(where, list)
        if is_list and not (isinstance(key, int) and key < len(where)):
            raise ConfigError(
                f"{said}: '{name}' has {len(where)} items, counted from 0, no item '{key}'."
            )
        if not (is_list or isinstance(where, dict)):
            raise ConfigError(f"{said}: '{name}' holds a value, not further keys.")
        if number == len(places):
            where[key] = given.value
        elif not is_list and where.get(key) is None:
            where[key] = {}
        elif isinstance(where[key], str) and any(map(kind_of, sections_in(kind))):
            where[key] = {"name": where[key]}
        where = where[key]
    return given


def _value(text: str, kind: Any, said: str) -> Any:
    is_quoted = text[:1] in {"'", '"'}
    if kind in (str, Path) and not is_quoted:
        return text
    try:
        value = read_yaml(text)
    except YAMLError as cause:
        raise ConfigError(f"{said}: the value is no valid YAML: {about_yaml(cause)}.") from None
    # Text stays unchanged: YAML would cut it at ' #'.
    return text if isinstance(value, str) and not is_quoted else value


def _walk(model: type[BaseModel], path: Sequence[str]) -> Iterator[tuple[str | int, Any]]:
    """Each key of a path, and the type of its value; None if it is not known.

    In a mapping of text, such as the Spark properties, the rest of the path is one key.
    """
    kind: Any = model
    for number, part in enumerate(path):
        container = next(
            (each for each in (kind, *get_args(kind)) if get_origin(each) in (list, dict)), None
        )
        is_list = get_origin(container) is list
        if container and not is_list and get_args(container)[1] in (str, str | SecretStr):
            yield ".".join(path[number:]), str
            return
        types = [
            each.model_fields[part].annotation
            for each in sections_in(kind)
            if part in each.model_fields
        ]
        kind = get_args(container)[-1] if container else types[0] if types else None
        yield int(part) if is_list and part.isdecimal() else part, kind


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type may hold: several if they have kinds; also items of a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, SettingsSection):
        return annotation.variants()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for each in get_args(annotation) for section in sections_in(each)]


def kind_of(section: type[BaseModel]) -> str:
    """The value of the key `name` that chooses this kind of a section; empty if it has only one."""
    field = section.model_fields.get("name")
    return (
        get_args(field.annotation)[0] if field and get_origin(field.annotation) is Literal else ""
    )


def flat_items(model: BaseModel, prefix: str) -> dict[str, Any]:
    """Dotted keys and JSON values of a section of the config, without keys that only change speed.

    Examples:
        >>> class Title(BaseModel):
        ...     words: str = "A run"
        >>> flat_items(Title(), "report")
        {'report.words': 'A run'}
    """
    items: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name in getattr(model, "SPEED_ONLY", ()):
            continue
        if isinstance(value, BaseModel):
            items |= flat_items(value, f"{prefix}.{name}")
        else:
            items[f"{prefix}.{name}"] = model.model_dump(mode="json", include={name})[name]
    return items
