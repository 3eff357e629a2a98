"""`compare --claims FOLDER`: the page of claims, from stored results of studies and of evaluations."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.errors import MissingInputError
from pipeline.terminal.tables import evaluation_tables
from training.studies import study_page
from training.studies.claims_page import render
from training.studies.study_result import PACKED, read
from training.studies.tables import markdown_table

_PAGE: Final = "claims.md"
#: Number of errors of a difference above which it counts.
_COUNTS: Final = 2


def write_claims(folder: Path, out: Path) -> Path:
    """Write the page of claims into a folder, and return it; arguments and errors as in `claims_page`.

    The page of each published study is written anew beside its packed result.
    """
    text = claims_page(folder, out)
    for path in folder.glob(f"*/{PACKED}"):
        page = study_page.render(read(path), folder=path.parent.name)
        path.parent.with_suffix(".md").write_text(page, encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    (out / _PAGE).write_text(text, encoding="utf-8")
    return out / _PAGE


def claims_page(folder: Path, out: Path) -> str:
    """The page of claims.

    Args:
        folder: Folder of studies, each with a folder of its own: `docs/studies`, or `compare` of a run folder. The
            `metrics.json` of an evaluation in such a folder becomes a section.
        out: Folder of the page, to which its links are relative.

    Raises:
        MissingInputError: The folder has no results.
        StudyError: A result cannot be read.
    """
    found = {path.parent: path for name in ("result.json", PACKED) for path in sorted(folder.glob(f"*/{name}"))}
    if not found:
        raise MissingInputError(
            f"compare --claims {folder}: there is no */result.json or */{PACKED}. `compare --study NAME --publish "
            f"{folder}` stores one."
        )
    results = {}
    for study, path in sorted(found.items()):
        page = study.with_suffix(".md") if path.name == PACKED else study / "page.md"
        results[os.path.relpath(page, out)] = read(path)
    evaluations = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/metrics.json"))]
    command = shlex.join(["python", "-m", "pipeline", "compare", "--claims", str(folder), "--publish", str(out)])
    return render(results, command=command, more=[_section(metrics) for metrics in evaluations])


def _section(metrics: Mapping[str, Any]) -> str:
    """The classifiers of an evaluation: the tables of the terminal, and how far each is behind the best."""
    best, behind = metrics["best"], metrics["behind_best"]
    rows = []
    for name, each in behind.items():
        if name != best:
            is_behind = "yes" if each["value"] > _COUNTS * each["error"] else "no"
            rows.append([name, f"{each['value']:.4f} ± {each['error']:.4f}", is_behind])
    counts = next(iter(metrics["runs"].values()))["events_per_class"]
    events = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    about = (
        f"{metrics['num_events']:,} test events: {events}. Largest area below the ROC curve for {metrics['signal']} "
        f"against the backgrounds ({metrics['mixture']['words']}): **{best}**. Errors are those of the test events; "
        f"differences are paired."
    )
    header = ["", f"area behind {best}", f"more than {_COUNTS} errors"]
    parts = ["## Which classifier is best on these events", about, markdown_table(header, rows)]
    for grid in evaluation_tables(dict(metrics)):
        parts += [f"{grid.title[:1].upper()}{grid.title[1:]}." if grid.title else ""]
        parts += [markdown_table(grid.rows[0], grid.rows[1:]), grid.caption]
    return "\n\n".join(part for part in parts if part)
