"""YAML by the rules of version 1.2: `no` is a word and 010 is ten."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.errors import ConfigError, truncated

#: Errors of the parser, or of JSON, for values such as an impossible number or a set.
_UNREADABLE_VALUES: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class _Constructor(SafeConstructor):
    """A reader of YAML that leaves dates, and the sign `=`, as text, as in JSON."""


for _tag in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_tag}", _Constructor.construct_yaml_str)


def _yaml() -> YAML:
    """Make a reader and writer of YAML 1.2: one key per line, in the given order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    return yaml


def read_yaml(text: str) -> Any:
    """Return the values of YAML text; only values that JSON can hold are allowed.

    Raises:
        YAMLError: The text is no YAML, or holds another value, such as a set.

    Examples:
        >>> read_yaml("{epochs: 010, title: no, when: 1:30, day: 2026-11-20}")
        {'epochs': 10, 'title': 'no', 'when': '1:30', 'day': '2026-11-20'}
    """
    try:
        values = _yaml().load(text)
        # This raises for values that JSON cannot hold, and for text that is no Unicode.
        json.dumps(values, ensure_ascii=False).encode()
    except _UNREADABLE_VALUES as cause:
        raise YAMLError(f"a value in it cannot be read ({truncated(str(cause))})") from None
    return values


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the keys and values of a YAML file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or holds something else.
    """
    try:
        values = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read ({cause}).") from cause
    except YAMLError as cause:
        raise ConfigError(f"{path} is no valid YAML: {about_yaml(cause)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, one `key: value` in a line.")
    return values


def write_yaml(values: Any) -> str:
    r"""Return JSON content as YAML text, one key per line.

    Examples:
        >>> write_yaml({"title": "no", "epochs": 3})
        'title: no\nepochs: 3\n'
    """
    file = io.StringIO()
    # Through JSON, mappings and numbers of our own classes become plain ones.
    _yaml().dump(json.loads(json.dumps(values)), file)
    return file.getvalue()


def about_yaml(cause: YAMLError) -> str:
    """Describe the mistake in YAML text with its line and column, counted from 1.

    The text itself is not quoted, since it may hold a secret.
    """
    if not isinstance(cause, MarkedYAMLError) or cause.problem_mark is None:
        return truncated(str(cause))
    line, column = cause.problem_mark.line + 1, cause.problem_mark.column + 1
    phrases = [phrase for phrase in (cause.context, cause.problem) if phrase]
    mistake = " ".join(phrase.partition(" with value")[0] for phrase in phrases)
    return f"{mistake} (line {line}, column {column})"
