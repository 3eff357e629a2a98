"""Writes the reference pages of the site from the code (config keys, commands, features, algorithms), and `full.yaml`.

A key is documented by its field, a command by its options, a feature by its row in the column
table, an algorithm by its registration and the docstrings of its file.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
import yaml
from pydantic import BaseModel

import pipeline.api
from features.columns import COLUMNS, INPUT_COLUMNS
from ingestion.schema import COLLECTIONS, SCALARS
from pipeline.cli import app
from pipeline.config import Config
from training.algorithms.method import Traits
from training.algorithms.registry import METHODS, SlowMo
from training.settings import TrainSettings

ROOT: Final = Path(__file__).resolve().parents[1]
_LIMITS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}

_WIDTH: Final = 120

Schema = dict[str, Any]


def config_page() -> str:
    """Every key of the config, a table for each section."""
    schema = schema_of(Config)
    top: list[Row] = []
    sections: list[str] = []
    for name, field in schema["properties"].items():
        rows = list(_rows(name, field, schema))
        if inner := _model_in(field, schema):
            sections.append(f"## {name}\n\n{inner['description']}\n\n{_table_of_keys(rows)}")
        else:
            top += rows
    return "\n".join(
        [
            "# Config keys",
            "",
            "`--set key=value` overrides one.",
            "",
            _table_of_keys(top),
            *sections,
        ]
    )


def full_config() -> str:
    """The text of `pipeline/configs/full.yaml`: every key with its default, and its meaning as a comment."""
    schema = schema_of(Config)
    head = "All keys with their defaults; names and paths are examples. Copy what you change into a file of your own."
    return "\n".join([*_comment(head, ""), *_keys(schema["properties"], schema, "")]) + "\n"


def schema_of(section: type[BaseModel]) -> Schema:
    """The JSON schema of a section of the config; the docstrings below its keys are their descriptions."""
    schema = section.model_json_schema()
    known = {each.__name__: each for each in _classes_below(BaseModel)}
    for name, content in {section.__name__: schema, **schema.get("$defs", {})}.items():
        for kind in known[name].__mro__[::-1] if name in known else ():
            for key, words in _documented(kind).items():
                if key in content.get("properties", ()):
                    content["properties"][key]["description"] = words
    return schema


def _classes_below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield each
        yield from _classes_below(each)


def _documented(kind: type) -> dict[str, str]:
    """Own attributes of a class, and the docstrings below them."""
    if kind.__module__ in {"builtins", "pydantic.main"}:
        return {}
    module = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    found = {}
    for node in (
        each
        for each in ast.walk(module)
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    ):
        for member, below in itertools.pairwise(node.body):
            if isinstance(member, (ast.Assign, ast.AnnAssign)) and isinstance(below, ast.Expr):
                name = member.target if isinstance(member, ast.AnnAssign) else member.targets[0]
                found[ast.unparse(name)] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def commands_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    shown = {name: command for name, command in group.commands.items() if not command.hidden}
    options = {
        name: [_option(each, context) for each in command.params] for name, command in shown.items()
    }
    shared = [row for row in options["run"] if all(row in rows for rows in options.values())]
    heads = ("option", "meaning")
    parts = ["# Commands", "", "All commands take:", "", _table(heads, filter(None, shared))]
    for name, command in shown.items():
        own = [row for row in options[name] if row and row not in shared]
        parts += [f"## {name}", "", str(command.help), "", _table(heads, own) if own else ""]
    return "\n".join(parts)


def features_page() -> str:
    """Every number that a network takes, and every field of the events that they are computed from."""
    parts = ["# Features", "", "## Columns of the features Parquet", ""]
    rows = [
        [_code(c.name), f"list of {c.dtype}" if c.is_list else c.dtype, c.unit, c.meaning]
        for c in COLUMNS.values()
    ]
    parts.append(_table(("column", "type", "unit", "meaning"), rows))
    for name, column in INPUT_COLUMNS.items():
        numbered = [
            [
                str(i),
                _code(f.name),
                f.unit,
                f.meaning,
                ("standard" if f.is_scaled else "none")
                + (f", log above {f.log_above:g}" if f.log_above else ""),
            ]
            for i, f in enumerate(column.features)
        ]
        parts += [f"## {name}", "", _table(("", "feature", "unit", "meaning", "scaling"), numbered)]
    fields = SCALARS | {
        f"{group}.{name}": f for group, inner in COLLECTIONS.items() for name, f in inner.items()
    }
    rows = [
        [
            _code(name),
            _code(f.branch) + (" (optional)" if name == "weight" else ""),
            f.dtype,
            f.unit or "1",
        ]
        for name, f in fields.items()
    ]
    parts += [
        "## Fields of the events Parquet",
        "",
        _table(("field", "Delphes branch", "type", "unit"), rows),
    ]
    return "\n".join(parts)


def algorithms_page() -> str:
    """Every method of distributed training: the words of its file, its traits, and its keys."""
    without = ", ".join(
        _code(name) for name, method in METHODS.items() if method.traits.joint_model
    )
    parts = [
        "# Algorithms",
        "",
        f"`train.algorithm` names the method; SlowMo goes around each but {without}.",
        "",
    ]
    for name, method in METHODS.items():
        schema = schema_of(method.settings)
        own = {key: field for key, field in schema["properties"].items() if key != "name"}
        rows = [row for key, field in own.items() for row in _rows(key, field, schema)]
        traits = (trait for trait, value in asdict(method.traits).items() if value is True)
        parts += [
            *_algorithm(name, method.algorithm),
            f"Traits: {', '.join(traits).replace('_', ' ') or 'none'}.",
            "",
        ]
        parts += [f"    {_command(name, method.traits)}", ""]
        parts += [_table_of_keys(rows)] if rows else []
    return "\n".join([*parts, *_algorithm("slowmo", SlowMo)])


def _command(name: str, traits: Traits) -> str:
    """The command line that trains the networks of the demo with a method; keys that are so by default are left out."""
    fields, keys = TrainSettings.model_fields, {"workers": 4} | traits.required_values
    changed = {
        key: value
        for key, value in keys.items()
        if key == "workers" or value != fields[key].default
    }
    chosen = (
        f"--set train.{key}={value}" for key, value in ({"algorithm": name} | changed).items()
    )
    return " ".join((".venv/bin/python -m pipeline train --config demo", *chosen))


def _algorithm(name: str, kind: type) -> list[str]:
    """The docstrings of a file and its class, and a link to it."""
    words = [inspect.getdoc(each) or "" for each in (inspect.getmodule(kind), kind)]
    source = Path(inspect.getfile(kind)).relative_to(ROOT).as_posix()
    shown = (f"{each.partition('Args:')[0].strip()}\n" for each in words)
    return [f"## {name}", "", *shown, f"[{source}](../{source})", ""]


def api_page() -> str:
    """What other programs may import; mkdocstrings fills it in."""
    shown = (
        f"::: {getattr(pipeline.api, name).__module__}.{name}" for name in pipeline.api.__all__
    )
    return "\n\n".join(["# Python", "[From Python](../library.md) has an example of each.", *shown])


#: The pages by name.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "config": config_page,
    "commands": commands_page,
    "features": features_page,
    "algorithms": algorithms_page,
    "api": api_page,
}


class Row(NamedTuple):
    """A key of the config."""

    key: str
    default: str
    """As JSON; empty if a value is required."""
    values: str
    meaning: str


def _table_of_keys(rows: Iterable[Row]) -> str:
    lines = (
        [_code(key), _code(default) if default else "required", *words]
        for key, default, *words in rows
    )
    return _table(("key", "default", "value", "meaning"), lines).replace(
        "| `null` |", "| not set |"
    )


def _rows(key: str, field: Schema, schema: Schema) -> Iterator[Row]:
    """A row for each key below this one, and one for itself unless it is only a section."""
    inner = _model_in(field, schema)
    if inner is None or not _is_section(field):
        default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else ""
        yield Row(
            key,
            default,
            _kind(field, schema),
            " ".join([field.get("description", ""), *_meanings(field)]),
        )
    of_kinds: dict[Row, list[str]] = {}
    for kind, path in field.get("discriminator", {}).get("mapping", {}).items():
        for name, each in _named({"$ref": path}, schema)["properties"].items():
            if name != field["discriminator"]["propertyName"]:
                (row,) = _rows(f"{key}.{name}", each, schema)
                of_kinds.setdefault(row, []).append(_code(kind))
    yield from (
        row._replace(meaning=f"{row.meaning} ({', '.join(kinds)})")
        for row, kinds in of_kinds.items()
    )
    if inner is not None:
        below = key + ("[]." if field.get("type") == "array" else ".")
        for name, each in inner["properties"].items():
            yield from _rows(below + name, each, schema)


def _keys(fields: Schema, schema: Schema, indent: str) -> Iterator[str]:
    """Lines of YAML for the keys of a section."""
    for name, field in fields.items():
        inner = _model_in(field, schema)
        if not indent:
            yield ""
        if inner is not None and _is_section(field):
            yield from _comment(field.get("description") or inner["description"], indent)
            yield f"{indent}{name}:"
            yield from _keys(inner["properties"], schema, indent + "  ")
            continue
        kinds = field.get("discriminator", {}).get("mapping", {})
        words = [
            f"`{kind}`: {_named({'$ref': path}, schema)['description']}"
            for kind, path in kinds.items()
        ]
        row, *below = _rows(name, field, schema)
        for each in below:
            default = f" (default {each.default})" if each.default else ""
            words.append(
                f"`{re.split(r'[.]', each.key, maxsplit=1)[1]}`{default}: {each.meaning}{_choice(each)}"
            )
        yield from _comment(field["description"], indent)
        for text in [*(_meanings(field) or [_choice(row).strip()] * (not kinds)), *words]:
            yield from _comment(text, indent, hang="  ")
        value = field["default"] if "default" in field else field["examples"][0]
        if inner is not None and value:
            items = (
                {key: each[key] for key in inner["properties"] if key in each} for each in value
            )
            yield from (f"{indent}{name}:", *(f"{indent}  - {_flow(each)}" for each in items))
        else:
            yield f"{indent}{name}: {_flow(value)}"


def _choice(row: Row) -> str:
    return f" Values: {row.values}." if row.values.startswith("`") else ""


def _comment(words: str, indent: str, hang: str = "") -> list[str]:
    start = f"{indent}# {hang}"
    return textwrap.wrap(
        words, _WIDTH, initial_indent=start, subsequent_indent=start + hang, break_on_hyphens=False
    )


def _flow(value: object) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10**6).strip()[
        1:-1
    ]


def _model_in(field: Schema, schema: Schema) -> Schema | None:
    """The section that a field holds: itself, as an option, or in a list."""
    for each in (field, field.get("items", {}), *field.get("anyOf", [])):
        found = _named(each, schema)
        if "properties" in found:
            return found
    return None


def _is_section(field: Schema) -> bool:
    """Whether a field is a section, and not an option or a list of sections."""
    return "$ref" in field or "properties" in field


def _named(field: Schema, schema: Schema) -> Schema:
    found: Schema = schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field
    return found


def _kind(field: Schema, schema: Schema) -> str:
    """What may stand there, in words."""
    if "discriminator" in field:
        return ", ".join(map(_code, field["discriminator"]["mapping"]))
    found = _named(field, schema)
    if "enum" in found:
        return ", ".join(map(_code, found["enum"]))
    if "anyOf" in found:
        return " or ".join(
            _kind(each, schema) for each in found["anyOf"] if each.get("type") != "null"
        )
    if found.get("type") == "array":
        return f"list of: {_kind(found['items'], schema)}"
    if found.get("type") == "object":
        return "keys and values"
    limits = [f"{words} {found[limit]}" for limit, words in _LIMITS.items() if limit in found]
    return ", ".join(
        [found.get("format") or found.get("const") or found.get("type", "any"), *limits]
    )


def _meanings(field: Schema) -> list[str]:
    """What the values of an enumeration mean: the docstrings of its members."""
    used = [
        each["$ref"].rpartition("/")[2]
        for each in (field, *field.get("anyOf", []))
        if "$ref" in each
    ]
    kinds = [kind for kind in StrEnum.__subclasses__() if kind.__name__ in used]
    return [
        f"`{kind[name].value}`: {words}"
        for kind in kinds
        for name, words in _documented(kind).items()
    ]


def _option(parameter: Any, context: typer.Context) -> list[str]:
    """Spelling and help; nothing of a hidden one."""
    record = parameter.get_help_record(context)
    return [_code(record[0]), record[1]] if record else []


def _table(heads: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    cells = ([" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *cells))


def _code(text: object) -> str:
    return f"`{text}`"
