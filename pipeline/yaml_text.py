"""YAML that users write, read safely: what nobody means is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

#: Values in a config, those that aliases repeat counted each time: with aliases of aliases ten lines say a billion.
_MOST_VALUES: Final = 1_000_000


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, which refuses in addition what nobody means.

    That is a key that is given twice (silently, the first would be lost), and aliases that stand for themselves, or for
    more values than any memory holds.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """The content of a file; see the base class."""
        if _num_values(node, {}) > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"its aliases stand for more than {_MOST_VALUES:,} values", node.start_mark
            )
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node; see the base class."""
        if isinstance(node, yaml.MappingNode):
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' is given twice", node.start_mark
                    )
                seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


def _num_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Values that a node stands for; `counted` holds those known, 0 for a node within which this one lies."""
    if id(node) not in counted:
        counted[id(node)] = 0
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        counted[id(node)] = 1 + sum([_num_values(part, counted) for part in parts])
    elif not counted[id(node)]:
        raise yaml.constructor.ConstructorError(None, None, "an alias stands for what it is a part of", node.start_mark)
    return counted[id(node)]


def read_yaml(text: str) -> Any:
    """The content of YAML text.

    Raises:
        yaml.YAMLError: It is no valid YAML, or cannot be held in memory.
    """
    try:
        return yaml.load(text, Loader=UniqueKeyLoader)  # noqa: S506 - a safe loader
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as cause:
        # Of values that look like a date or number, or are declared to be one, and are none.
        raise yaml.YAMLError(f"a value in it cannot be read ({cause})") from cause


def not_text(content: Any, place: str) -> Iterator[str]:
    """Dotted keys of words that no file can hold: YAML takes such escapes, and arguments may be any bytes."""
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
