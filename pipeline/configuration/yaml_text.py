"""YAML by the rules of version 1.2: `no` is a word and 010 is ten. Likely mistakes are errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from pipeline.errors import ConfigError, short

#: Tags that the library gives to plain words, although YAML 1.2 lacks their types.
_WORDS_ALL_THE_SAME: Final = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")


class _Resolver(VersionedResolver):
    """Resolves plain words to types."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node; see the base class."""
        tag = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if isinstance(tag, Tag) and str(tag) in _WORDS_ALL_THE_SAME else tag


class _Constructor(SafeConstructor):
    """Makes text, numbers, true, false, null, lists and mappings; refuses repeated keys."""

    def construct_undefined(self, node: Any) -> Any:
        """Refuse a value of another type; a set, for one, has no order, and the order of most lists matters."""
        raise ConstructorError(
            None,
            None,
            f"a value of the type {node.tag} is none of text, number, true, false, null, list and keys with values; a "
            f"set, for one, has no order",
            node.start_mark,
        )

    def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:  # noqa: ARG002
        """Whether a key is new; see the base class, whose message shows the values."""
        if key in mapping:
            (first, *_) = (each.start_mark.line + 1 for each, _ in node.value if each.value == key_node.value)
            raise ConstructorError(
                None, None, f"the key '{key}' is given twice, first in line {first}", key_node.start_mark
            )
        return True


for _tag in (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("set", "omap", "pairs", "binary", "timestamp"))):
    _Constructor.add_constructor(_tag, _Constructor.construct_undefined)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Constructor = _Resolver, _Constructor
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    return yaml


def read_yaml(text: str) -> Any:
    """The content of YAML text.

    Raises:
        YAMLError: It is no valid YAML, or cannot be held in memory.

    Examples:
        >>> read_yaml("{epochs: 010, title: no, when: 1:30, day: 2026-11-20}")
        {'epochs': 10, 'title': 'no', 'when': '1:30', 'day': '2026-11-20'}
    """
    try:
        content = _yaml().load(text)
        # Neither circles of aliases, lists as keys, nor halves of characters.
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        raise YAMLError(f"a value in it cannot be read ({short(str(cause))})") from None
    return content


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Raises:
        ConfigError: It cannot be read, is no valid YAML, or holds something else.
    """
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read ({cause}).") from cause
    except YAMLError as cause:
        raise ConfigError(f"{path} is no valid YAML: {about_yaml(cause)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold keys and values, one `key: value` in a line.")
    return content


def write_yaml(content: Any) -> str:
    r"""JSON content as YAML text, one key per line.

    Examples:
        >>> write_yaml({"title": "no", "epochs": 3})
        'title: no\nepochs: 3\n'
    """
    file = io.StringIO()
    # Mappings of our own classes become plain ones.
    _yaml().dump(json.loads(json.dumps(content)), file)
    return file.getvalue()


def about_yaml(cause: YAMLError) -> str:
    """The mistake in YAML text with its position. The text itself may hold a secret."""
    if not isinstance(cause, MarkedYAMLError) or cause.problem_mark is None:
        return short(str(cause))
    words = " ".join(each for each in (cause.context, cause.problem) if each)
    return f"{words} (line {cause.problem_mark.line + 1}, column {cause.problem_mark.column + 1})"
