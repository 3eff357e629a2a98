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

#: The path of a value in the config: names of sections and keys, and numbers of list items.
Keys = tuple[str | int, ...]


class ConfigSource(NamedTuple):
    """A value of a file, or of `--set`."""

    keys: Keys
    """Empty for a whole file."""
    value: Any
    source: str
    """The file, or the option as it was typed, without secrets."""

    def touches(self, keys: Keys) -> bool:
        """Return whether this source gives the value of a key, of what is around it, or a part.

        That is so if one of the two paths is the start of the other.
        """
        num_common = min(len(self.keys), len(keys))
        return self.keys[:num_common] == keys[:num_common]


def source_of(keys: Keys, sources: Sequence[ConfigSource]) -> str:
    """Return the name of the last source that gives a value or a part of it, or `default`.

    Sources are the file, which touches all keys, and then the options in their order.
    """
    last = next(source for source in reversed(sources) if source.touches(keys))
    # The file may leave the key out; then the default of the code holds.
    return last.source if _has_value(last.value, keys[len(last.keys) :]) else "default"


def _has_value(value: Any, keys: Keys) -> bool:
    """Return whether a value of the config, as written, also gives the value at `keys` below it.

    Without keys it does. Else it follows the keys through sections and lists.
    """
    if not keys:
        return True
    if isinstance(value, str):
        # The name alone stands for a section with this `name`.
        return keys == ("name",)
    # A list is treated as a section whose keys are the numbers.
    items = dict(enumerate(value)) if isinstance(value, list) else value
    key, *inner_keys = keys
    return isinstance(items, dict) and key in items and _has_value(items[key], tuple(inner_keys))


def apply_override(values: dict[str, Any], option: str, model: type[BaseModel]) -> ConfigSource:
    """Set the value of the option `a.b=c` in the values of a config, in place.

    The text c is read as YAML, unless the type of the key in the config is text. A section on the
    way that does not exist yet is created.

    Args:
        values: Keys and values of the config before it is checked; these are changed.
        option: The text `a.b=c`.
        model: The class of the config, which gives the type of each key.

    Returns:
        The keys and the value that were set, and the option without secrets.

    Raises:
        ConfigError: The option has another form, or its keys lead to no section.

    Examples:
        >>> from pipeline.config import Config
        >>> values = {"train": {"epochs": 20}, "classes": ["QCD", "ttbar"]}
        >>> partitions = "spark.conf.spark.sql.shuffle.partitions=4"
        >>> for option in ("train.epochs=3", "classes.0=010", partitions):
        ...     _ = apply_override(values, option, Config)
        >>> values["train"], values["classes"], values["spark"]
        ({'epochs': 3}, ['010', 'ttbar'], {'conf': {'spark.sql.shuffle.partitions': '4'}})
    """
    path, equals, text = option.partition("=")
    names = path.strip().split(".")
    source = f"--set {truncated(hide_credentials(option))}"
    if not equals or not all(names):
        raise ConfigError(
            f"{source}: write it as key.subkey=value, for example --set train.epochs=5."
        )
    typed_keys = list(_typed_keys(model, names))
    keys = tuple(key for key, _ in typed_keys)
    _, value_type = typed_keys[-1]
    value = _parse_value(text.strip(), value_type, source)
    section: Any = values
    # Walks from the outermost section to the one that holds the last key.
    for depth, (key, key_type) in enumerate(typed_keys[:-1]):
        _check_key(section, key, keys[:depth], source)
        section = _inner_section(section, key, key_type)
    _check_key(section, keys[-1], keys[:-1], source)
    section[keys[-1]] = value
    return ConfigSource(keys, value, source)


def _check_key(section: Any, key: str | int, outer_keys: Keys, source: str) -> None:
    """Refuse a key where there is no section, and a number that a list does not have.

    `outer_keys` lead to the section, and `source` is the option, both for the message.
    """
    name = truncated(".".join(map(str, outer_keys)))
    if isinstance(section, list):
        if not isinstance(key, int) or key >= len(section):
            raise ConfigError(
                f"{source}: '{name}' has {len(section)} items, counted from 0, no item '{key}'."
            )
    elif not isinstance(section, dict):
        raise ConfigError(f"{source}: '{name}' holds a value, not further keys.")


def _inner_section(section: Any, key: str | int, key_type: Any) -> Any:
    """Return the section or list at a key of a section; the outer section may be changed.

    A missing inner section is created empty. A name alone, such as `algorithm: ar-sgd`, becomes
    `algorithm: {name: ar-sgd}`, if the type of the value, `key_type`, is a section with kinds.
    """
    if isinstance(section, dict) and section.get(key) is None:
        section[key] = {}
    elif isinstance(section[key], str) and any(map(kind_of, sections_in(key_type))):
        section[key] = {"name": section[key]}
    return section[key]


def _parse_value(text: str, value_type: Any, source: str) -> Any:
    """Return the value of a text: text where the type asks for it, else what YAML reads.

    Quotes are always read by YAML, which removes them.
    """
    is_quoted = text[:1] in {"'", '"'}
    if value_type in (str, Path) and not is_quoted:
        return text
    try:
        value = read_yaml(text)
    except YAMLError as cause:
        raise ConfigError(f"{source}: the value is no valid YAML: {about_yaml(cause)}.") from None
    # YAML would cut text at ` #`, so it stays as typed.
    return text if isinstance(value, str) and not is_quoted else value


def _typed_keys(model: type[BaseModel], names: Sequence[str]) -> Iterator[tuple[str | int, Any]]:
    """Yield each key of a path with the type of its value; the type is None if it is not known.

    It follows the annotations from the class of the config inwards. In a list, a number becomes an
    index. In a mapping of text, such as the Spark properties, all remaining names are one key with
    dots: `spark.conf.a.b` has the keys `spark`, `conf` and `a.b`.
    """
    value_type: Any = model
    for depth, name in enumerate(names):
        container = _container_in(value_type)
        key: str | int = name
        if get_origin(container) is dict:
            # The two arguments are the types of keys and values.
            _, value_type = get_args(container)
            if value_type in (str, str | SecretStr):
                yield ".".join(names[depth:]), str
                return
        elif get_origin(container) is list:
            (value_type,) = get_args(container)
            key = int(name) if name.isdecimal() else name
        else:
            value_type = _type_of_key(value_type, name)
        yield key, value_type


def _container_in(annotation: Any) -> Any:
    """Return the type of the list or mapping that a value may be; None if it may be neither.

    An annotation such as `list[str] | None` has its options as arguments.
    """
    for option in (annotation, *get_args(annotation)):
        if get_origin(option) in (list, dict):
            return option
    return None


def _type_of_key(annotation: Any, name: str) -> Any:
    """Return the type of a key in the first section that has it; None if none has."""
    for section in sections_in(annotation):
        if name in section.model_fields:
            return section.model_fields[name].annotation
    return None


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """List the classes of the sections that a value may hold, also in lists and mappings.

    A section with several kinds, chosen by its key `name`, gives one class for each.
    """
    if isinstance(annotation, type) and issubclass(annotation, SettingsSection):
        return annotation.variants()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    # Another type may be generic, such as `list[X] | None`; its arguments may hold sections.
    sections = []
    for inner_annotation in get_args(annotation):
        sections += sections_in(inner_annotation)
    return sections


def kind_of(section: type[BaseModel]) -> str:
    """Return the value of `name` that chooses this kind of a section; empty without kinds.

    A class of a kind declares it as `name: Literal["ar-sgd"]`.
    """
    field = section.model_fields.get("name")
    if field is None or get_origin(field.annotation) is not Literal:
        return ""
    (name,) = get_args(field.annotation)
    return str(name)


def flat_items(model: BaseModel, prefix: str) -> dict[str, Any]:
    """Return `{dotted key: JSON value}` of a section, without keys that change only the speed.

    A class lists such keys as `SPEED_ONLY`.

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
