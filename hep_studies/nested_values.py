"""Nested values of a study: a form of the study, the values of a run, plain JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.configuration.keys import Keys


def as_json(value: Any) -> Any:
    """Return a value as JSON gives it back: keys of mappings are text.

    Examples:
        >>> as_json({"cluster.slow_ranks": [{0: 5.0}]})
        {'cluster.slow_ranks': [{'0': 5.0}]}
    """
    return json.loads(json.dumps(value, default=str))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings with some values replaced, as a new mapping.

    Sections, which are mappings, are merged key by key; other values are replaced. A section with
    another `name` is about another thing, and replaces the whole section.

    Examples:
        >>> merged({"a": {"name": "x", "b": 1}, "c": 2}, {"a": {"b": 3}})
        {'a': {'name': 'x', 'b': 3}, 'c': 2}
        >>> merged({"a": {"name": "x", "b": 1}}, {"a": {"name": "y"}})
        {'a': {'name': 'y'}}
    """
    result = dict(base)
    for key, new in changes.items():
        old = result.get(key)
        if isinstance(old, str) and isinstance(new, Mapping):
            # `algorithm: sgd` is short for `algorithm: {name: sgd}`.
            old = {"name": old}
        if isinstance(old, Mapping) and isinstance(new, Mapping) and not _renames(old, new):
            result[key] = merged(old, new)
        else:
            result[key] = new
    return result


def _renames(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether the new section has a `name`, and one that differs from the old name."""
    return "name" in new and new["name"] != old.get("name")


def repeated_values(
    base: Mapping[str, Any], changes: Mapping[str, Any]
) -> Iterator[tuple[Keys, Any]]:
    """Yield the values of changes that the base has already, each with the keys that lead to it.

    A section must repeat its `name` to be about the same thing.

    Examples:
        >>> list(repeated_values({"a": {"name": "x", "b": 1}}, {"a": {"name": "x", "b": 1}}))
        [(('a', 'b'), 1)]
    """
    for key, new in changes.items():
        old = base.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if not _renames(old, new):
                for keys, value in repeated_values(old, new):
                    yield (key, *keys), value
        elif key in base and key != "name" and old == new:
            yield (key,), new


def replaced_values(
    base: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]]
) -> Iterator[Keys]:
    """Yield the keys that lead to values of the base which every alternative replaces.

    Examples:
        >>> list(replaced_values({"a": {"b": 1, "c": 2}}, [{"a": {"b": 3}}, {"a": {"b": 4}}]))
        [('a', 'b')]
    """
    for key, old in base.items():
        if key == "name" or not all(key in alternative for alternative in alternatives):
            continue
        replacements = [alternative[key] for alternative in alternatives]
        is_merged = [isinstance(old, Mapping) and isinstance(new, Mapping) for new in replacements]
        if all(is_merged):
            for keys in replaced_values(old, replacements):
                yield key, *keys
        elif not any(is_merged):
            yield (key,)


def form_of(study: Mapping[str, Any], form: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a study in one of its forms, with some values replaced.

    The key `forms` of a study has the values of each form, such as `full`, that differ from the
    common ones. They replace those; then `changes` replace both.
    """
    common = {key: value for key, value in study.items() if key != "forms"}
    forms = study.get("forms") or {}
    form_changes = forms.get(form) or {}
    return merged(merged(common, form_changes), changes)


def with_values(sections: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested sections in which dotted keys have these values; the key names the path.

    Examples:
        >>> with_values({"train": {"workers": 2}}, {"train.workers": 4, "train.seed": 1})
        {'train': {'workers': 4, 'seed': 1}}
    """
    result = dict(sections)
    for key, value in values.items():
        # From the last name: train.workers: 4 becomes {"train": {"workers": 4}}.
        change = value
        for name in reversed(key.split(".")):
            change = {name: change}
        result = merged(result, change)
    return result


def has_key(sections: Mapping[str, Any], key: str) -> bool:
    """Return whether nested sections have a dotted key.

    Examples:
        >>> has_key({"train": {"workers": 2}}, "train.workers")
        True
    """
    section: Any = sections
    for name in key.split("."):
        if not isinstance(section, Mapping) or name not in section:
            return False
        section = section[name]
    return True
