"""YAML by the rules of version 1.2: `no` is a word and 010 is ten. Likely mistakes are errors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from ingestion.secrets import redact
from pipeline.configuration.credentials import holds_credential
from pipeline.errors import ConfigError, short

#: Highest number of values in a config, with repetitions by aliases: ten lines of nested aliases give a billion values.
_MOST_VALUES: Final = 1_000_000
_MOST_LEVELS: Final = 100
#: Tags that the library gives to plain words, although YAML 1.2 lacks their types.
_WORDS_ALL_THE_SAME: Final = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")


class _Resolver(VersionedResolver):
    """Resolves plain words to types."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node; see the base class."""
        tag = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if isinstance(tag, Tag) and str(tag) in _WORDS_ALL_THE_SAME else tag


class _Constructor(SafeConstructor):
    """Makes text, numbers, true, false, null, lists and mappings; refuses repeated keys, and too many values."""

    def construct_document(self, node: Any) -> Any:
        """The content of a file; see the base class."""
        if _num_values(node, {}) > _MOST_VALUES:
            raise ConstructorError(
                None, None, f"its aliases stand for more than {_MOST_VALUES:,} values", node.start_mark
            )
        return super().construct_document(node)

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


def _num_values(node: Node, counted: dict[int, int]) -> int:
    """Number of values of a node; `counted` holds the known numbers, 0 for nodes around this one."""
    if id(node) not in counted:
        counted[id(node)] = 0
        parts: list[Node] = []
        if isinstance(node, SequenceNode):
            parts = node.value
        elif isinstance(node, MappingNode):
            parts = [part for pair in node.value for part in pair]
            for key, _ in node.value:
                if not isinstance(key, ScalarNode):
                    raise ConstructorError(
                        None, None, "a key is a word or a number, no list or mapping", key.start_mark
                    )
        counted[id(node)] = 1 + sum([_num_values(part, counted) for part in parts])
    elif not counted[id(node)]:
        raise ConstructorError(None, None, "an alias contains itself", node.start_mark)
    return counted[id(node)]


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Constructor = _Resolver, _Constructor
    yaml.max_depth = _MOST_LEVELS
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
        return _yaml().load(text)
    except MaxDepthExceededError:
        raise YAMLError("it is nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as cause:
        # A value is declared to be a date or a number, and is none.
        raise YAMLError(f"a value in it cannot be read ({cause})") from cause


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


def about_yaml(cause: YAMLError, *, hides: bool = False) -> str:
    """The mistake in YAML text; only its position if the line may hold a secret.

    Args:
        cause: The error of the library.
        hides: Whether the text holds a secret.
    """
    if not (hides or _holds_secret(cause)):
        return short(str(cause))
    mark = cause.problem_mark if isinstance(cause, MarkedYAMLError) else None
    place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    return f"a mistake{place}; the line is hidden, since it may hold a secret"


def _holds_secret(cause: YAMLError) -> bool:
    """Whether the error quotes a line with a credential. Its other text may match too ("cannot start any token")."""
    if not isinstance(cause, MarkedYAMLError):
        return holds_credential(str(cause))
    marks = [mark for mark in (cause.context_mark, cause.problem_mark) if mark is not None]
    snippets = [mark.get_snippet() or "" for mark in marks]
    return any(holds_credential(each) or redact(each) != each for each in snippets)


def not_text(content: Any, place: str) -> Iterator[str]:
    """Dotted keys of text that UTF-8 cannot encode: YAML allows such escapes, and arguments may be any bytes."""
    if isinstance(content, str) and not content.isascii():
        try:
            content.encode("utf-8")
        except UnicodeEncodeError:
            yield ascii(place.removeprefix("."))
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from not_text(key, f"{place}.{key}")
            yield from not_text(value, f"{place}.{key}")
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from not_text(value, f"{place}.{number}")
