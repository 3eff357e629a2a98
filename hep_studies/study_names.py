"""Checks that a study has the methods, varied keys and values that its parts name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from hep_core.unknown_names import there_is_no
from hep_studies.cells import SITUATION
from hep_studies.study_paths import (
    claims_with_paths,
    controls_with_paths,
    panels_with_paths,
    rows_with_paths,
    tables_with_paths,
)
from hep_studies.study_sections import (
    EPOCH,
    SECONDS,
    Claim,
    Selection,
    StudiedMethod,
    StudyFigure,
    StudyTable,
)


class NamedParts(Protocol):
    """The parts of a study that name each other; `StudySettings` has them."""

    @property
    def methods(self) -> Mapping[str, StudiedMethod]:
        """The methods by name."""

    @property
    def situations(self) -> Mapping[str, Mapping[str, object]]:
        """The named values of each situation."""

    @property
    def vary(self) -> Mapping[str, list[Any]]:
        """The values of varied keys."""

    @property
    def best_of(self) -> list[str]:
        """Varied keys at whose best value each method is shown."""

    @property
    def reference(self) -> str:
        """Method that all others are compared with."""

    @property
    def claims(self) -> list[Claim]:
        """The claims of the source."""

    @property
    def tables(self) -> list[StudyTable]:
        """The tables."""

    @property
    def figures(self) -> list[StudyFigure]:
        """The figures."""

    def values_of(self, method: str, key: str) -> list[Any]:
        """Return the values of a varied key for a method."""


class NameAt(NamedTuple):
    """A name in a study, with the path of its key, such as `tables.0.methods.1`."""

    path: str
    name: str


def check_names(study: NamedParts) -> None:
    """Require that a study has all methods, varied keys and values that its parts name.

    Raises:
        ValueError: It lacks one; the message has the path of the key and the nearest valid names.
    """
    varied_keys = list(study.vary)
    for path, selection in claimed_runs(study):
        for key in selection:
            _require(NameAt(path, key), "varied key", ["method", *varied_keys])
        if "method" not in selection:
            raise ValueError(f"{path}: 'method' is missing")
    for method in _named_methods(study):
        _require(method, "method", study.methods)
    _check_situations(study)
    for key_at in _named_keys(study):
        _require(key_at, "varied key", varied_keys)
    for axis in _axes(study):
        _require(axis, "quantity or varied key", [EPOCH, SECONDS, *varied_keys])
    for path, selection in claimed_runs(study):
        values = {key: value for key, value in selection.items() if key != "method"}
        check_values_are_run(study, path, values, [selection["method"]])
    for path, panel in panels_with_paths(study.figures):
        methods = panel.methods or list(study.methods)
        check_values_are_run(study, f"{path}.where", panel.where, methods)


def claimed_runs(study: NamedParts) -> Iterator[tuple[str, Selection]]:
    """Yield the runs that claims compare, each with its path."""
    for path, claim in claims_with_paths(study.claims):
        yield f"{path}.{claim.comparison}", claim.treatment
        yield from controls_with_paths(path, claim)


def check_values_are_run(
    study: NamedParts, path: str, values: dict[str, Any], methods: list[str]
) -> None:
    """Require that one of some methods has runs with each value of varied keys.

    Raises:
        ValueError: None has; the message has the `path` and the values that are run.
    """
    for key, value in values.items():
        valid_values: list[Any] = []
        for method in methods:
            valid_values += study.values_of(method, key)
        if value in valid_values:
            continue
        problem = f"{path}: {key}: {value} is none of the values that are run"
        if not valid_values:
            raise ValueError(f"{problem}, since {', '.join(methods)} does not vary the key")
        distinct = dict.fromkeys(map(str, valid_values))
        raise ValueError(f"{problem}: {', '.join(distinct)}")


def _require(name_at: NameAt, noun: str, valid_names: Collection[str]) -> None:
    """Require that a name is valid. `noun` says in the message what it names."""
    if name_at.name not in valid_names:
        raise ValueError(f"{name_at.path}: {there_is_no(noun, name_at.name, valid_names)}")


def _named_methods(study: NamedParts) -> Iterator[NameAt]:
    """Yield the methods that claims, figures and tables name."""
    yield NameAt("reference", study.reference)
    for path, selection in claimed_runs(study):
        yield NameAt(path, str(selection["method"]))
    for path, panel in panels_with_paths(study.figures):
        yield from _items(f"{path}.methods", panel.methods)
    for path, table in tables_with_paths(study.tables):
        yield from _items(f"{path}.methods", table.methods)
        for method in table.given:
            yield NameAt(f"{path}.given", method)


def _named_keys(study: NamedParts) -> Iterator[NameAt]:
    """Yield the varied keys that methods, claims, tables and figures name."""
    yield from _items("best_of", study.best_of)
    for name, method in study.methods.items():
        yield from _items(f"methods.{name}.fixed", method.fixed)
        for key in method.vary:
            yield NameAt(f"methods.{name}.vary", key)
    for path, claim in claims_with_paths(study.claims):
        if claim.over is not None:
            yield NameAt(f"{path}.over", claim.over)
        for row_path, row in rows_with_paths(path, claim):
            for key in row.at:
                yield NameAt(f"{row_path}.at", key)
    for path, table in tables_with_paths(study.tables):
        if table.over is not None:
            yield NameAt(f"{path}.over", table.over)
    for path, panel in panels_with_paths(study.figures):
        for key in panel.where:
            yield NameAt(f"{path}.where", key)


def _axes(study: NamedParts) -> Iterator[NameAt]:
    """Yield what the panels of figures are drawn against."""
    for path, panel in panels_with_paths(study.figures):
        if panel.x is not None:
            yield NameAt(f"{path}.x", panel.x)


def _items(path: str, names: list[str]) -> Iterator[NameAt]:
    """Yield the names of a list with their paths."""
    for index, name in enumerate(names):
        yield NameAt(f"{path}.{index}", name)


def _check_situations(study: NamedParts) -> None:
    """Require that the situations of varied keys exist."""
    for key in study.vary:
        if not key.startswith(SITUATION):
            continue
        name = key.removeprefix(SITUATION)
        _require(NameAt(f"vary.{key}", name), "situation", study.situations)
        values_by_path = {f"vary.{key}": study.vary[key]}
        for method, settings in study.methods.items():
            values_by_path[f"methods.{method}.vary.{key}"] = settings.vary.get(key, [])
        for path, values in values_by_path.items():
            for value in values:
                _require(NameAt(path, str(value)), f"situation of {name}", study.situations[name])
