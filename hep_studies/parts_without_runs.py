"""Finds claims, figures and tables of a study that have not the runs to judge or to show."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from hep_studies.cells import Cell
from hep_studies.study import StudySettings
from hep_studies.study_names import check_values_are_run
from hep_studies.study_paths import (
    claims_with_paths,
    controls_with_paths,
    panels_with_paths,
    rows_with_paths,
    tables_with_paths,
)
from hep_studies.study_sections import Claim, Selection

#: The parts of a study that show or judge its runs.
PARTS: Final = ("claims", "figures", "tables")


def parts_without_runs(study: StudySettings, part_names: Collection[str]) -> list[str]:
    """Return sentences, each once, about claims, figures and tables that have not the runs to show.

    Args:
        study: The form that is read, with the changes of the config.
        part_names: The parts to check, of `PARTS`.
    """
    sentences: list[str] = []
    if "claims" in part_names:
        for path, claim in claims_with_paths(study.claims):
            sentences += _mistakes_in_claim(study, claim, path)
    if "figures" in part_names:
        sentences += _mistakes_in_figures(study)
    if "tables" in part_names:
        sentences += _mistakes_in_tables(study)
    # A value that neither of two compared methods runs gives the same sentence twice.
    return list(dict.fromkeys(sentences))


def _mistakes_in_claim(study: StudySettings, claim: Claim, path: str) -> Iterator[str]:
    """Yield sentences about a claim that compares no runs. `path`: that of the claim.

    A claim that no run here can decide may name any.
    """
    if claim.not_decidable:
        return
    methods = [selection["method"] for selection in (claim.treatment, *claim.control)]
    for row_path, row in rows_with_paths(path, claim):
        for method in methods:
            # A method that does not vary a key has its one value.
            varied_values = {
                key: value for key, value in row.at.items() if study.values_of(method, key)
            }
            yield from _mistakes_in_values(study, f"{row_path}.at", varied_values, [method])
    if claim.over is not None:
        yield from _mistakes_in_key(study, claim, claim.over, f"{path}.over")
    for control_path, control in controls_with_paths(path, claim):
        if not _has_pair(study, claim.treatment, control):
            yield (
                f"{control_path}: it has no other runs of {control['method']} than "
                f"{path}.{claim.comparison}, or none at the same values of the other keys; name "
                f"others."
            )


def _mistakes_in_key(study: StudySettings, claim: Claim, key: str, path: str) -> Iterator[str]:
    """Yield a sentence about a key over which a claim cannot compare. `path`: that of the key."""
    method = claim.treatment["method"]
    if key in study.best_of:
        yield (
            f"{path}: {key} is a key of best_of, for which a method has one value; leave it out "
            f"there, or claim another key."
        )
    elif key in claim.treatment or len(study.values_of(method, key)) < 2:
        yield (
            f"{path}: {method} has fewer than two values of {key} to compare; vary them, or claim "
            f"another key."
        )


def _mistakes_in_values(
    study: StudySettings, path: str, values: dict[str, Any], methods: list[str]
) -> Iterator[str]:
    """Yield a sentence about a value that no method runs. `path`: that of the values."""
    try:
        check_values_are_run(study, path, values, methods)
    except ValueError as mistake:
        yield f"{mistake}."


def _has_pair(study: StudySettings, treatment: Selection, control: Selection) -> bool:
    """Tell whether a claim compares any two cells: the control has other runs, at equal values."""
    control_cells = _cells(study, control["method"])
    for cell in _cells(study, treatment["method"]):
        if not cell.matches(treatment):
            continue
        wanted = {**cell.plain_values, **control}
        for control_cell in control_cells:
            if control_cell != cell and control_cell.matches(wanted):
                return True
    return False


def _cells(study: StudySettings, method: str) -> list[Cell]:
    """Return the cells of a method: its combinations without the keys of `best_of`."""
    cells = [Cell.from_values(method, values) for values in study.combinations(method)]
    distinct_cells = dict.fromkeys(cell.without(*study.best_of) for cell in cells)
    return list(distinct_cells)


def _mistakes_in_figures(study: StudySettings) -> Iterator[str]:
    """Yield sentences about panels that show nothing at an axis."""
    for path, panel in panels_with_paths(study.figures):
        methods = panel.methods or list(study.methods)
        if panel.x in study.vary and not _is_varied(study, panel.x, methods):
            yield f"{path}.x: no method of the panel varies {panel.x}; name another one."
        if panel.x is None and "x" in panel.log:
            yield f"{path}.log: boxes have no axis x of numbers; leave it out."


def _mistakes_in_tables(study: StudySettings) -> Iterator[str]:
    """Yield sentences about tables without a column for a key, or without a row for a number."""
    for path, table in tables_with_paths(study.tables):
        methods = table.methods or list(study.methods)
        if table.over is not None and not _is_varied(study, table.over, methods):
            yield f"{path}.over: no method of the table varies {table.over}; name another key."
        for method in table.given:
            if method not in methods:
                yield f"{path}.given: {method} is none of the rows; add it to `methods`."


def _is_varied(study: StudySettings, key: str, methods: Sequence[str]) -> bool:
    """Tell whether any of some methods varies a key."""
    return any(study.values_of(method, key) for method in methods)
