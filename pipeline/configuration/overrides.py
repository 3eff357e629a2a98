"""`--set a.b=c`: the key of the config, and its new value."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, SecretStr
from ruamel.yaml.error import YAMLError

from pipeline.configuration.credentials import shown
from pipeline.configuration.sections import item_section, section_of, without_none
from pipeline.configuration.yaml_text import about_yaml, read_yaml
from pipeline.errors import ConfigError, short

Keys = tuple[str | int, ...]


class Override(NamedTuple):
    """A value that the command line gives."""

    keys: Keys
    value: Any
    shown: str
    """The option as it was typed, without secrets."""

    def concerns(self, keys: Keys) -> bool:
        """Whether it gives the value of a key, or of a section around it."""
        return self.keys == keys[: len(self.keys)]

    def touches(self, keys: Keys) -> bool:
        """Whether it gives the value of a key, of a section around it, or a part of its value."""
        return self.concerns(keys) or keys == self.keys[: len(keys)]


def read_override(text: str, model: type[BaseModel]) -> Override:
    """Read `a.b=c`. YAML reads c, except where the config expects text.

    Examples:
        >>> from pipeline.config import Config
        >>> read_override("spark.conf.spark.sql.shuffle.partitions=4", Config)[:2]
        (('spark', 'conf', 'spark.sql.shuffle.partitions'), '4')
        >>> read_override("samples.0.label=1", Config)[:2]
        (('samples', 0, 'label'), 1)
    """
    path, separator, given = (part.strip() for part in text.partition("="))
    said = f"--set {short(shown(text))}"
    if not separator or not all(path.split(".")):
        raise ConfigError(f"{said}: write it as key.subkey=value, for example --set train.epochs=5.")
    keys, kind = _find(path.split("."), model)
    is_quoted = given[:1] in {"'", '"'}
    if kind in (str, Path) and not is_quoted:
        return Override(keys, given, said)
    try:
        value = read_yaml(given)
    except YAMLError as cause:
        raise ConfigError(f"{said}: the value is no valid YAML: {about_yaml(cause)}.") from None
    # Text stays unchanged: YAML would cut it at ' #'.
    return Override(keys, given if isinstance(value, str) and not is_quoted else value, said)


def put(content: dict[str, Any], override: Override, model: type[BaseModel]) -> None:
    """Put a value into the content of a config, in place.

    Examples:
        >>> from pipeline.config import Config
        >>> content = {"train": {"epochs": 20}, "classes": ["QCD", "ttbar"]}
        >>> put(content, read_override("train.epochs=3", Config), Config)
        >>> put(content, read_override("classes.0=jets", Config), Config)
        >>> content
        {'train': {'epochs': 3}, 'classes': ['jets', 'ttbar']}
    """
    where: Any = content
    section: type[BaseModel] | None = model
    for place, key in enumerate(override.keys):
        name = short(".".join(map(str, override.keys[:place])))
        is_list = isinstance(where, list)
        if is_list and not (isinstance(key, int) and key < len(where)):
            raise ConfigError(f"{override.shown}: '{name}' has {len(where)} items, counted from 0, no item '{key}'.")
        if not (is_list or isinstance(where, dict)):
            raise ConfigError(f"{override.shown}: '{name}' holds a value, not further keys.")
        if place == len(override.keys) - 1:
            where[key] = override.value
            return
        field = section.model_fields.get(str(key)) if section else None
        section = item_section(field.annotation) if field else section if isinstance(key, int) else None
        # The key that names the kind of the section, if it has several kinds.
        tag = str(field.discriminator) if field and field.discriminator else ""
        if not is_list and where.get(key) is None:
            default = field.get_default(call_default_factory=True) if field else None
            where[key] = copy.deepcopy(default) if isinstance(default, list | str) else getattr(default, tag, {})
        if tag and isinstance(where[key], str):
            # The name alone stands for the section of this name.
            where[key] = {tag: where[key]}
        where = where[key]


def _find(path: list[str], kind: Any) -> tuple[Keys, Any]:
    """The keys of a dotted path below a type, and the type of the value; None if it is not known.

    In a mapping of text, such as the Spark properties, the rest of the path is one key.
    """
    if not path:
        return (), kind
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict and arguments[1] in (str, str | SecretStr):
        return (".".join(path),), str
    name, *rest = path
    key = int(name) if origin is list and name.isdecimal() else name
    if section := section_of(kind):
        field = section.model_fields.get(name)
        inner = without_none(field.annotation) if field else None
    else:
        inner = without_none(arguments[-1]) if origin in (list, dict) else None
    keys, found = _find(rest, inner)
    return (key, *keys), found
