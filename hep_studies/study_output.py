"""Writes tables, figures and page of a study, in the run folder and for publication."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hep_core.atomic_files import write_atomically
from hep_studies.figures import draw_all
from hep_studies.judging import judge
from hep_studies.measures import measure_of
from hep_studies.pages import render
from hep_studies.sample_texts import rows_title
from hep_studies.study_notes import cautions, notes
from hep_studies.study_result import PACKED_FILE, RESULT_FILE, StudyResult, pack
from hep_studies.study_runs import TIMING
from hep_studies.tables import summary_text
from models.evaluation.style import PlotLabels
from pipeline.runs.provenance import LOCAL_CHANGES
from pipeline.terminal.grid import Grid
from training.errors import StudyError

_FIGURES: Final = "figures"
_PAGE: Final = "page.md"
#: The study's table, for the report of the run.
_TABLE: Final = "table.json"
#: Files and folders of a study, which `--force` removes.
_WRITTEN: Final = ("runs", TIMING, "jobs", _FIGURES, RESULT_FILE, _PAGE, _TABLE)


def remove_output(folder: Path) -> None:
    """Remove the files and folders that a study has written into its folder, and no others."""
    for name in _WRITTEN:
        path = folder / name
        if path.is_dir():
            # This refuses a symbolic link.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def terminal_table(result: StudyResult) -> Grid:
    """Return the table of a study for the terminal: a row for each cell, a column for each measure.

    The measures are those in which the study compares its methods, then those of its tables without
    a column for each value of a key. Each is there once.
    """
    names = [*result.study.compared]
    for table in result.study.tables:
        if table.over is None:
            names += table.measures
    distinct_names = list(dict.fromkeys(names))
    grid = Grid("method", *distinct_names, title=result.study.title)
    for cell in result.cells():
        texts = [summary_text(result, cell, name) for name in distinct_names]
        grid.add_row(result.title(cell), *texts)
    return grid


def write_output(result: StudyResult, table: Grid, folder: Path, labels: PlotLabels) -> Path:
    """Draw the figures, and write the page and the table for the report; returns the page."""
    draw_all(result, labels, folder / _FIGURES)
    write_atomically(folder / _TABLE, _table_for_report(result, table))
    page = folder / _PAGE
    page.write_text(render(result, folder=_FIGURES), encoding="utf-8")
    return page


def _table_for_report(result: StudyResult, table: Grid) -> dict[str, object]:
    """Return the compared measures of each method, as the report of the run reads them.

    `table`: from `terminal_table`, which has the method and the compared measures first.
    """
    compared = list(dict.fromkeys(result.study.compared))
    header = ["Method", *(measure_of(name).label for name in compared)]
    _, *rows = table.rows
    sentences = [*cautions(result, judge(result)), *notes(result)]
    if result.warning:
        sentences.append(f"{result.warning.capitalize()}.")
    return {
        "title": result.study.title,
        "heads": header,
        "rows": [row[: len(header)] for row in rows],
        "workers": "virtual workers of the simulator" if result.is_simulated else "MPI ranks",
        "events": _name_of_rows(result),
        "notes": sentences,
    }


def _name_of_rows(result: StudyResult) -> str:
    """Return the version of the events, or what the rows of another workload are."""
    is_of_events = isinstance(result.study.workload, str)
    return result.events["version"] if is_of_events else rows_title(result.study)


def publish_output(result: StudyResult, folder: Path, publish: Path) -> Path:
    """Write page, figures and packed result of a study into another folder; return the page's path.

    The page is `<publish>/<study>.md`, its files are in the folder `<study>` beside it. `folder`:
    the folder of the study, with the drawn figures. `publish`: such as `docs/studies`.
    """
    files = publish / result.name
    files.mkdir(parents=True, exist_ok=True)
    for figure in result.study.figures:
        shutil.copy(folder / _FIGURES / f"{figure.name}.png", files)
    (files / PACKED_FILE).write_bytes(pack(result))
    page = publish / f"{result.name}.md"
    page.write_text(render(result, folder=result.name), encoding="utf-8")
    return page


def check_publishable(versions: Sequence[str]) -> None:
    """Refuse to publish runs of code that no commit has.

    `versions`: of the code of each run; the end of a version says that there were local changes.

    Raises:
        StudyError: A version of the code has local changes.
    """
    changed = sorted({version for version in versions if version.endswith(LOCAL_CHANGES)})
    if changed:
        raise StudyError(
            f"compare --publish: {'; '.join(changed)}: nobody can make these runs again. Commit "
            f"the changes, and compare with --force the runs that were made with them; or leave "
            f"out --publish."
        )
