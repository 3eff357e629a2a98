"""Goes through the parts of a study, each with its path in the file, such as `tables.0`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hep_studies.study_sections import Claim, Panel, Selection, StudyFigure, StudyTable


def claims_with_paths(claims: Sequence[Claim]) -> Iterator[tuple[str, Claim]]:
    """Yield claims with their paths, such as `claims.0`."""
    for index, claim in enumerate(claims):
        yield f"claims.{index}", claim


def rows_with_paths(path: str, claim: Claim) -> Iterator[tuple[str, Claim]]:
    """Yield a claim and its further rows with their paths, such as `claims.0.also.1`.

    `path`: that of the claim.
    """
    first_row, *further_rows = claim.rows()
    yield path, first_row
    for number, row in enumerate(further_rows):
        yield f"{path}.also.{number}", row


def controls_with_paths(path: str, claim: Claim) -> Iterator[tuple[str, Selection]]:
    """Yield the controls of a claim with their paths: `claims.0.control.1`, or without a number.

    `path`: that of the claim.
    """
    for number, control in enumerate(claim.control):
        control_path = f"{path}.control"
        if len(claim.control) > 1:
            control_path = f"{control_path}.{number}"
        yield control_path, control


def panels_with_paths(figures: Sequence[StudyFigure]) -> Iterator[tuple[str, Panel]]:
    """Yield the panels of all figures with their paths, such as `figures.0.panels.1`."""
    for index, figure in enumerate(figures):
        for number, panel in enumerate(figure.panels):
            yield f"figures.{index}.panels.{number}", panel


def tables_with_paths(tables: Sequence[StudyTable]) -> Iterator[tuple[str, StudyTable]]:
    """Yield tables with their paths, such as `tables.0`."""
    for index, table in enumerate(tables):
        yield f"tables.{index}", table
