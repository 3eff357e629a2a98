"""The keys of the config with their defaults, values and meanings, read from the settings.

A key is a field of a pydantic model. Its meaning is the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

#: Words for the limits of a number in a JSON schema.
_LIMITS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}

Schema = dict[str, Any]


class Key(NamedTuple):
    """A key of the config."""

    name: str
    """Its dotted name, without the key of the section above."""
    default: str
    """Its default as JSON; empty if a value is required."""
    values: str
    """What it may be."""
    meaning: str


def schema_of(section: type[BaseModel]) -> Schema:
    """Return the JSON schema of a section; docstrings below its keys become descriptions."""
    schema = section.model_json_schema()
    models = {model.__name__: model for model in _models_below(BaseModel)}
    schemas = {section.__name__: schema, **schema.get("$defs", {})}
    for model_name, model_schema in schemas.items():
        if model_name in models:
            _describe_fields(model_schema, models[model_name])
    return schema


def _models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield all models that are derived from one, however indirectly."""
    for derived_model in model.__subclasses__():
        yield derived_model
        yield from _models_below(derived_model)


def _describe_fields(schema: Schema, model: type[BaseModel]) -> None:
    """Take the docstrings below the fields of a model as the descriptions in its schema."""
    fields = schema.get("properties", {})
    # A class comes after its base classes, so its own docstrings prevail.
    for base_class in reversed(model.__mro__):
        for name, docstring in docstrings_of_attributes(base_class).items():
            if name in fields:
                fields[name]["description"] = docstring


def docstrings_of_attributes(attributed: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class itself, by name of the attribute."""
    if attributed.__module__ in {"builtins", "pydantic.main"}:
        return {}
    module = ast.parse(inspect.getsource(sys.modules[attributed.__module__]))
    docstrings = {}
    for node in ast.walk(module):
        if not isinstance(node, ast.ClassDef) or node.name != attributed.__name__:
            continue
        for statement, next_statement in itertools.pairwise(node.body):
            if not isinstance(next_statement, ast.Expr):
                continue
            if isinstance(statement, ast.AnnAssign):
                target: ast.expr = statement.target
            elif isinstance(statement, ast.Assign):
                target = statement.targets[0]
            else:
                continue
            docstring = str(ast.literal_eval(next_statement.value))
            docstrings[ast.unparse(target)] = " ".join(docstring.split())
    return docstrings


def keys_below(name: str, field: Schema, schema: Schema) -> Iterator[Key]:
    """Yield a field, unless it is only a section, and all keys below it.

    Args:
        name: Name of the field.
        field: Its schema.
        schema: The schema that holds the definitions.
    """
    section = section_in(field, schema)
    if section is None or not is_section(field):
        default = ""
        if "default" in field:
            default = json.dumps(field["default"], ensure_ascii=False)
        meaning = " ".join([field.get("description", ""), *meanings_of_values(field)])
        yield Key(name, default, _values(field, schema), meaning)
    yield from _keys_of_alternatives(name, field, schema)
    if section is not None:
        prefix = f"{name}[]." if field.get("type") == "array" else f"{name}."
        for inner_name, inner_field in section["properties"].items():
            yield from keys_below(prefix + inner_name, inner_field, schema)


def _keys_of_alternatives(name: str, field: Schema, schema: Schema) -> Iterator[Key]:
    """Yield the keys of the sections between which a field chooses, such as the algorithms.

    A key that several alternatives share is yielded once; its meaning names these alternatives.
    """
    alternatives_of_key: dict[Key, list[str]] = {}
    for alternative, section in alternatives(field, schema).items():
        for inner_name, inner_field in section["properties"].items():
            if inner_name != field["discriminator"]["propertyName"]:
                (key,) = keys_below(f"{name}.{inner_name}", inner_field, schema)
                alternatives_of_key.setdefault(key, []).append(f"`{alternative}`")
    for key, names in alternatives_of_key.items():
        yield key._replace(meaning=f"{key.meaning} ({', '.join(names)})")


def alternatives(field: Schema, schema: Schema) -> dict[str, Schema]:
    """Return the sections between which a field chooses, by the name that chooses them."""
    mapping = field.get("discriminator", {}).get("mapping", {})
    return {name: _resolve({"$ref": reference}, schema) for name, reference in mapping.items()}


def section_in(field: Schema, schema: Schema) -> Schema | None:
    """Return the section that a field holds: itself, as an option, or in a list; None without."""
    for candidate in (field, field.get("items", {}), *field.get("anyOf", [])):
        resolved = _resolve(candidate, schema)
        if "properties" in resolved:
            return resolved
    return None


def is_section(field: Schema) -> bool:
    """Return whether a field is a section, and not an option or a list of sections."""
    return "$ref" in field or "properties" in field


def _resolve(field: Schema, schema: Schema) -> Schema:
    """Return the definition that a field refers to; a field without a reference itself."""
    if "$ref" not in field:
        return field
    name = field["$ref"].rpartition("/")[2]
    definition: Schema = schema["$defs"][name]
    return definition


def _values(field: Schema, schema: Schema) -> str:
    """Say what a field may be."""
    if "discriminator" in field:
        return _code_list(field["discriminator"]["mapping"])
    resolved = _resolve(field, schema)
    if "enum" in resolved:
        return _code_list(resolved["enum"])
    if "anyOf" in resolved:
        options = [option for option in resolved["anyOf"] if option.get("type") != "null"]
        return " or ".join(_values(option, schema) for option in options)
    if resolved.get("type") == "array":
        return f"list of: {_values(resolved['items'], schema)}"
    if resolved.get("type") == "object":
        return "keys and values"
    json_type = resolved.get("format") or resolved.get("const") or resolved.get("type", "any")
    limits = [f"{words} {resolved[limit]}" for limit, words in _LIMITS.items() if limit in resolved]
    return ", ".join([json_type, *limits])


def _code_list(names: list[str] | dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def meanings_of_values(field: Schema) -> list[str]:
    """Return what each value of an enumeration means: the docstrings below its members."""
    options = [field, *field.get("anyOf", [])]
    definitions = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
    meanings = []
    for enumeration in StrEnum.__subclasses__():
        if enumeration.__name__ in definitions:
            for member, docstring in docstrings_of_attributes(enumeration).items():
                meanings.append(f"`{enumeration[member].value}`: {docstring}")
    return meanings
