"""Writes the reference pages of the site from the code, and `full.yaml`.

A key of the config is documented by its field, a command by its options, a feature by its row in
the column table, an algorithm by its registration and the docstrings of its file.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from config_keys import (
    Key,
    Schema,
    alternatives,
    is_section,
    keys_below,
    meanings_of_values,
    schema_of,
    section_in,
)

import pipeline.api
from features.columns import COLUMNS, INPUT_COLUMNS, Feature
from ingestion.schema import COLLECTIONS, SCALARS
from pipeline.cli import app
from pipeline.config import Config
from training.algorithms.method import Method, Traits
from training.algorithms.registry import METHODS, SlowMo
from training.settings import TrainSettings

ROOT: Final = Path(__file__).resolve().parents[1]
#: Longest line of `full.yaml`.
_WIDTH: Final = 120


def config_page() -> str:
    """Return the page of all config keys: a table for each section."""
    schema = schema_of(Config)
    keys_outside: list[Key] = []
    sections: list[str] = []
    for name, field in schema["properties"].items():
        keys = list(keys_below(name, field, schema))
        section = section_in(field, schema)
        if section is None:
            keys_outside += keys
        else:
            sections.append(f"## {name}\n\n{section['description']}\n\n{_table_of_keys(keys)}")
    head = ["# Config keys", "", "`--set key=value` overrides one.", ""]
    return "\n".join([*head, _table_of_keys(keys_outside), *sections])


def _table_of_keys(keys: Iterable[Key]) -> str:
    rows = []
    for key in keys:
        default = "required"
        if key.default == "null":
            default = "not set"
        elif key.default:
            default = _code(key.default)
        rows.append([_code(key.name), default, key.values, key.meaning])
    return _table(("key", "default", "value", "meaning"), rows)


def full_config() -> str:
    """Return `full.yaml`: every key with its default, and its meaning as a comment."""
    schema = schema_of(Config)
    head = (
        "All keys with their defaults; names and paths are examples. Copy what you change into a "
        "file of your own."
    )
    lines = [*_comment(head, ""), *_yaml_of_section(schema["properties"], schema, "")]
    return "\n".join(lines) + "\n"


def _yaml_of_section(fields: Schema, schema: Schema, indent: str) -> Iterator[str]:
    """Yield lines of YAML for the keys of a section, each below the comment on its meaning."""
    for name, field in fields.items():
        is_top_level = not indent
        if is_top_level:
            yield ""
        section = section_in(field, schema)
        if section is not None and is_section(field):
            yield from _comment(field.get("description") or section["description"], indent)
            yield f"{indent}{name}:"
            yield from _yaml_of_section(section["properties"], schema, indent + "  ")
            continue
        yield from _comment(field["description"], indent)
        for text in _remarks(name, field, schema):
            yield from _comment(text, indent, hang="  ")
        value = field["default"] if "default" in field else field["examples"][0]
        if section is not None and value:
            # A list of sections shows the keys of each in their order.
            yield f"{indent}{name}:"
            for entry in value:
                ordered = {key: entry[key] for key in section["properties"] if key in entry}
                yield f"{indent}  - {_flow(ordered)}"
        else:
            yield f"{indent}{name}: {_flow(value)}"


def _remarks(name: str, field: Schema, schema: Schema) -> list[str]:
    """Return what a comment adds to the meaning of a key: its values, and the keys below it."""
    key, *inner_keys = keys_below(name, field, schema)
    sections = alternatives(field, schema)
    remarks = meanings_of_values(field)
    if not remarks and not sections:
        remarks = [_choice(key).strip()]
    remarks += [f"`{option}`: {section['description']}" for option, section in sections.items()]
    for inner_key in inner_keys:
        inner_name = inner_key.name.partition(".")[2]
        default = f" (default {inner_key.default})" if inner_key.default else ""
        remarks.append(f"`{inner_name}`{default}: {inner_key.meaning}{_choice(inner_key)}")
    return remarks


def _choice(key: Key) -> str:
    """Return a sentence with the values of a key that has a choice; empty for others."""
    return f" Values: {key.values}." if key.values.startswith("`") else ""


def _comment(text: str, indent: str, hang: str = "") -> list[str]:
    """Return the lines of a YAML comment; `hang` indents the text, and further lines twice."""
    first_line = f"{indent}# {hang}"
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first_line,
        subsequent_indent=first_line + hang,
        break_on_hyphens=False,
    )


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    listed: str = yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10**6)
    return listed.strip().removeprefix("[").removesuffix("]")


def commands_page() -> str:
    """Return the page of all commands with their arguments and options."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    commands = {name: command for name, command in group.commands.items() if not command.hidden}
    options_of = {name: _options(command, context) for name, command in commands.items()}
    shared_options = [
        option
        for option in options_of["run"]
        if all(option in options for options in options_of.values())
    ]
    heads = ("option", "meaning")
    lines = ["# Commands", "", "All commands take:", "", _table(heads, shared_options)]
    for name, command in commands.items():
        options = [option for option in options_of[name] if option not in shared_options]
        table = _table(heads, options) if options else ""
        lines += [f"## {name}", "", str(command.help), "", table]
    return "\n".join(lines)


def _options(command: Any, context: typer.Context) -> list[list[str]]:
    """Return spelling and help of each argument and option of a command that is not hidden."""
    options = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            spelling, meaning = record
            options.append([_code(spelling), meaning])
    return options


def features_page() -> str:
    """Return the page of the numbers that networks take, and of the fields behind them."""
    columns = []
    for column in COLUMNS.values():
        dtype = f"list of {column.dtype}" if column.is_list else column.dtype
        columns.append([_code(column.name), dtype, column.unit, column.meaning])
    sections = [
        "# Features",
        "",
        "## Columns of the features Parquet",
        "",
        _table(("column", "type", "unit", "meaning"), columns),
    ]
    for name, input_column in INPUT_COLUMNS.items():
        rows = []
        for number, feature in enumerate(input_column.features):
            rows.append(
                [
                    str(number),
                    _code(feature.name),
                    feature.unit,
                    feature.meaning,
                    _scaling(feature),
                ]
            )
        heads = ("", "feature", "unit", "meaning", "scaling")
        sections += [f"## {name}", "", _table(heads, rows)]
    sections += ["## Fields of the events Parquet", "", _table_of_fields()]
    return "\n".join(sections)


def _scaling(feature: Feature) -> str:
    scaling = "standard" if feature.is_scaled else "none"
    if feature.log_above:
        scaling += f", log above {feature.log_above:g}"
    return scaling


def _table_of_fields() -> str:
    fields = dict(SCALARS)
    for group, fields_of_group in COLLECTIONS.items():
        for name, field in fields_of_group.items():
            fields[f"{group}.{name}"] = field
    rows = []
    for name, field in fields.items():
        remark = " (optional)" if name == "weight" else ""
        rows.append([_code(name), _code(field.branch) + remark, field.dtype, field.unit or "1"])
    return _table(("field", "Delphes branch", "type", "unit"), rows)


def algorithms_page() -> str:
    """Return the page of the methods of distributed training: words, traits and keys of each."""
    with_joint_model = [name for name, method in METHODS.items() if method.traits.joint_model]
    exceptions = ", ".join(map(_code, with_joint_model))
    sections = [
        "# Algorithms",
        "",
        f"`train.algorithm` names the method; SlowMo goes around each but {exceptions}.",
        "",
    ]
    for name, method in METHODS.items():
        sections += _section_of_method(name, method)
    return "\n".join([*sections, *_docstrings("slowmo", SlowMo)])


def _section_of_method(name: str, method: Method) -> list[str]:
    """Return the docstrings of a method, its traits, its command and a table of its keys."""
    schema = schema_of(method.settings)
    keys: list[Key] = []
    for key_name, field in schema["properties"].items():
        if key_name != "name":
            keys += keys_below(key_name, field, schema)
    traits = [trait for trait, value in asdict(method.traits).items() if value is True]
    lines = [
        *_docstrings(name, method.algorithm),
        f"Traits: {', '.join(traits).replace('_', ' ') or 'none'}.",
        "",
        f"    {_command(name, method.traits)}",
        "",
    ]
    if keys:
        lines.append(_table_of_keys(keys))
    return lines


def _command(name: str, traits: Traits) -> str:
    """Return the command that trains the networks of the demo with a method.

    Keys whose default the method needs anyway are left out.
    """
    fields = TrainSettings.model_fields
    values: dict[str, object] = {"workers": 4, **traits.required_values}
    command = f".venv/bin/python -m pipeline train --config demo --set train.algorithm={name}"
    for key, value in values.items():
        if key == "workers" or value != fields[key].default:
            command += f" --set train.{key}={value}"
    return command


def _docstrings(name: str, algorithm: type) -> list[str]:
    """Return the docstrings of the file and the class of a method, and a link to the file."""
    lines = [f"## {name}", ""]
    for documented in (inspect.getmodule(algorithm), algorithm):
        docstring = inspect.getdoc(documented) or ""
        lines.append(f"{docstring.partition('Args:')[0].strip()}\n")
    source = Path(inspect.getfile(algorithm)).relative_to(ROOT).as_posix()
    return [*lines, f"[{source}](../{source})", ""]


def api_page() -> str:
    """Return the page of what other programs may import; mkdocstrings fills it in."""
    paragraphs = ["# Python", "[From Python](../library.md) has an example of each."]
    for name in pipeline.api.__all__:
        module = getattr(pipeline.api, name).__module__
        paragraphs.append(f"::: {module}.{name}")
    return "\n\n".join(paragraphs)


#: The pages by name.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "config": config_page,
    "commands": commands_page,
    "features": features_page,
    "algorithms": algorithms_page,
    "api": api_page,
}


def _table(heads: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *map(_escape_cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape_cells(row: list[str]) -> list[str]:
    """Return the cells of a row, each on one line and without a bare bar."""
    return [" ".join(cell.split()).replace("|", r"\|") for cell in row]


def _code(text: object) -> str:
    return f"`{text}`"
