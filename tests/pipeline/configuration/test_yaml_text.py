"""YAML of users: values by YAML 1.2, and refused mistakes."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml.error import YAMLError

from pipeline.configuration.yaml_text import about_yaml, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("1e-3", 0.001),
        ("1:30", "1:30"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("2026-11-20", "2026-11-20"),
        ("=", "="),
    ],
)
def test_values_follow_yaml_1_2(text: str, value: Any) -> None:
    assert read_yaml(f"key: {text}") == {"key": value}
    assert type(read_yaml(text)) is type(value)


def test_a_key_that_is_given_twice_is_named_with_its_line_and_without_values() -> None:
    with pytest.raises(YAMLError) as caught:
        read_yaml("a:\n  b: hush\n  c: 1\n  'b': 2\n")
    message = about_yaml(caught.value)
    assert '"b" (line 4, column 3)' in message
    assert "hush" not in message


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "{[a]: 1}",
        "a: !!int x",
        "a: !!python/object/apply:os.getcwd []",
        "classes: !!set {QCD, ttbar, W}",
    ],
)
def test_yaml_beyond_json_is_refused(text: str) -> None:
    with pytest.raises(YAMLError):
        read_yaml(text)


def test_written_yaml_is_read_back_in_the_same_order() -> None:
    texts = [
        "yes",
        "1:30",
        "010",
        "2026-01-01",
        "~",
        "=",
        "<<",
        "a: b",
        "# x",
        "1e3",
        "é",
        "line\nbreak",
        "",
    ]
    document = {
        "texts": texts,
        "none": None,
        "numbers": [1e3, 1.5e-5, 3],
        "a": {"empty": {}, "list": []},
    }

    values = read_yaml(write_yaml(document))

    assert values == document
    assert list(values) == list(document)
