"""Messages about mistakes in a config: key, mistake, nearest valid name, and no secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hep_core.secrets import HIDDEN, redact, redact_all
from hep_core.unknown_names import did_you_mean
from pipeline.configuration.credentials import holds_credential
from pipeline.configuration.keys import ConfigSource, Keys, kind_of, sections_in
from pipeline.errors import nearest, truncated

#: A message about a config has at most this number of lines.
_MAX_LINES: Final = 20
#: Advice begins so; `hep_core.unknown_names` writes it.
_QUESTION: Final = " Did you mean "


def dotted_path(keys: Keys) -> str:
    """Return the path of a key in a file, with dots.

    Examples:
        >>> dotted_path(("samples", 0, "label"))
        'samples.0.label'
    """
    return ".".join(map(str, keys))


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    file: str,
    overrides: Sequence[ConfigSource] = (),
    path_of: Callable[[Keys], str] = dotted_path,
) -> str:
    """Return a message about all mistakes of a config, one per line.

    A mistake at a key that an option has set is reported with that option. All others are reported
    under the name of the file.

    Args:
        error: What pydantic found.
        model: The class of the config.
        file: Name of the file.
        overrides: The options that have set values.
        path_of: Returns the path of a key in the file, from its keys in `model`.
    """
    lines_of_file, lines_of_options = [], []
    for mistake in error.errors():
        keys, sentence = describe_mistake(mistake, model, path_of)
        # The last option that touches the key has given its value.
        options = [override.source for override in overrides if keys and override.touches(keys)]
        if options:
            lines_of_options.append(f"{options[-1]}: {sentence}")
            continue
        lines_of_file += [f"  {line}" for line in sentence.splitlines()]
        if overrides and not keys:
            # A mistake without keys is a contradiction of values: of the file, of options, or of
            # both.
            file = " ".join([file, "with", *(override.source for override in overrides)])
    lines = []
    if lines_of_file:
        plural = "s" if len(lines_of_file) > 1 else ""
        lines = [f"{file} has {len(lines_of_file)} mistake{plural}:", *lines_of_file]
    lines += lines_of_options
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = ["  ..."]
    return "\n".join(lines)


def describe_mistake(
    mistake: ErrorDetails,
    model: type[BaseModel],
    path_of: Callable[[Keys], str] = dotted_path,
) -> tuple[Keys, str]:
    """Return the keys of a mistake in a section, and a sentence about it.

    The location that pydantic gives also holds names that are no keys of the file; these are left
    out. `path_of`: returns the path of a key in the file.
    """
    # Pydantic also names validators (`function-...`), kinds of sections, and `[key]` for a wrong
    # key of a mapping.
    not_keys = {section_name for _, section_name in _keys_below([model])}
    not_keys.add("[key]")
    keys_of_mistake = []
    for key in mistake["loc"]:
        is_validator = str(key).startswith("function-")
        if key not in not_keys and not is_validator:
            keys_of_mistake.append(key)
    keys = tuple(keys_of_mistake)
    sentence = _sentence(mistake, keys, model, path_of)
    lines = [_shortened(line) for line in sentence.splitlines()]
    return keys, "\n".join(lines)


def _shortened(line: str) -> str:
    """Cut a long line before its advice, which stands at its end, behind all valid names."""
    sentence, question, names = line.rpartition(_QUESTION)
    if not question:
        return truncated(line)
    return truncated(sentence) + question + truncated(names)


def _sentence(
    mistake: ErrorDetails, keys: Keys, model: type[BaseModel], path_of: Callable[[Keys], str]
) -> str:
    """Return a sentence about a mistake, by its type in pydantic, with the nearest valid name.

    Values that may be credentials are hidden. `keys` lead to the mistake, `model` is the section.
    """
    context = mistake.get("ctx", {})
    key = path_of(keys) if keys else ""
    match mistake["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}'.{_advice(keys, model)}"
        case "missing" | "union_tag_not_found":
            # The discriminator is the key, such as `name`, whose value chooses the kind of a
            # section.
            discriminator = context.get("discriminator", "").strip("'")
            missing_key = ".".join(name for name in (key, discriminator) if name)
            return f"'{missing_key}' is missing."
        case "value_error":
            # Errors of our own checks may have several lines.
            text = str(context["error"])
            if key:
                text = f"{key}: {text}"
            sentences = [_with_full_stop(line) for line in text.splitlines()]
            return "\n".join(sentences)
        case "union_tag_invalid":
            tag = context["tag"]
            tags = _quoted_names(context["expected_tags"])
            return f"'{key}': there is no '{tag}', only {', '.join(tags)}.{did_you_mean(tag, tags)}"
    # All other types: pydantic's own message, and the value that was given.
    value: Any = redact_all(mistake["input"])
    shown_value = redact(repr(value))
    if holds_credential(f"{key}={value!r}"):
        shown_value = HIDDEN
    valid_values = _quoted_names(context.get("expected", ""))
    advice = did_you_mean(str(value), valid_values)
    return f"'{key}': {mistake['msg']} (given: {shown_value}).{advice}"


def _with_full_stop(line: str) -> str:
    """Return a sentence that ends with a full stop or a question mark."""
    return line if line.endswith((".", "?")) else f"{line}."


def _quoted_names(text: str) -> list[str]:
    """List the names in single quotes of a text of pydantic."""
    return re.findall(r"'([^']+)'", text)


def _advice(keys: Keys, model: type[BaseModel]) -> str:
    """Return advice on an unknown key: a key of another kind or section inside, or a similar name.

    It follows the outer keys to the sections that may hold the key. If a section inside these has a
    key of this name, it names that; else it names the most similar key.
    """
    *outer_keys, last_key = map(str, keys)
    sections = [model]
    # Each outer key leads from the sections before to those inside.
    for outer_key in outer_keys:
        inner_sections = []
        for section in sections:
            if outer_key in section.model_fields:
                inner_sections += sections_in(section.model_fields[outer_key].annotation)
        # Numbers of items, and names in mappings, lead to no other section.
        if inner_sections:
            sections = inner_sections
    # Collects all keys with this last name, each with the kinds of sections that have it.
    sections_by_name: dict[str, list[str]] = {}
    for name, section_name in _keys_below(sections):
        if name.split(".")[-1] == last_key:
            sections_by_name.setdefault(name, []).append(section_name)
    for name, section_names in sections_by_name.items():
        if any(section_names):
            return f" '{name}' is a key of {', '.join(filter(None, section_names))}."
    if sections_by_name:
        return f" Did you mean {' or '.join(map(repr, sections_by_name))}?"
    return nearest(last_key, {name for name, _ in _keys_below(sections) if "." not in name})


def _keys_below(sections: Sequence[type[BaseModel]], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield all keys of some sections, and of the sections inside these, as pairs.

    A pair is the dotted name of the key, and the kind of its section, which is empty without kinds.
    """
    for section in sections:
        for name, field in section.model_fields.items():
            yield f"{prefix}{name}", kind_of(section)
            yield from _keys_below(sections_in(field.annotation), f"{prefix}{name}.")
