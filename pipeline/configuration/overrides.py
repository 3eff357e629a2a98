"""`--set a.b=c`: the key of the config, and its new value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml.error import YAMLError

from pipeline.configuration.credentials import shown
from pipeline.configuration.sections import Keys, kind_of, sections_in, walk
from pipeline.configuration.yaml_text import about_yaml, read_yaml
from pipeline.errors import ConfigError, short


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
    places = list(walk(model, path.split(".")))
    keys, kind = tuple(key for key, _ in places), places[-1][1]
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
    for number, (key, kind) in enumerate(walk(model, override.keys), start=1):
        name = short(".".join(map(str, override.keys[: number - 1])))
        is_list = isinstance(where, list)
        if is_list and not (isinstance(key, int) and key < len(where)):
            raise ConfigError(f"{override.shown}: '{name}' has {len(where)} items, counted from 0, no item '{key}'.")
        if not (is_list or isinstance(where, dict)):
            raise ConfigError(f"{override.shown}: '{name}' holds a value, not further keys.")
        if number == len(override.keys):
            where[key] = override.value
        elif not is_list and where.get(key) is None:
            where[key] = {}
        elif isinstance(where[key], str) and any(map(kind_of, sections_in(kind))):
            # The name alone stands for the section of this name.
            where[key] = {"name": where[key]}
        where = where[key]
