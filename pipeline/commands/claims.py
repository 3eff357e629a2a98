"""`compare --claims`: the page of claims, from stored results of studies and of evaluations."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import MissingInputError
from pipeline.terminal.tables import evaluation_tables
from training.studies.pages import markdown_table, render, render_claims
from training.studies.study import FOLDER, WORDS, StudySettings, form_of
from training.studies.study_result import PACKED, StudyResult, read
from training.studies.verdicts import Interval, verdict_of

_RESULT: Final = "result.json"
_CLAIMS: Final = "claims.md"
#: Number of errors of a difference above which it counts.
_COUNTS: Final = 2
#: Half the interval of an area, in errors, and the areas between which the source would see no difference.
_ERRORS: Final = 1.96
_SIMILAR: Final = 0.005


def write_claims(folder: Path, out: Path) -> Path:
    """Write the page of claims of stored results, and the page of each published study beside its packed result.

    A shipped study is judged by the claims that its file has now, if that asks for the stored runs.

    Args:
        folder: Folder of studies, each with a folder of its own: `docs/studies`, or `compare` of a run folder. The
            `metrics.json` of an evaluation in such a folder becomes a section.
        out: Folder of the page, to which its links are relative.
    """
    found = {path.parent: path for name in (_RESULT, PACKED) for path in sorted(folder.glob(f"*/{name}"))}
    if not found:
        raise MissingInputError(
            f"compare --claims {folder}: there is no */{_RESULT} or */{PACKED}. `compare --study NAME --publish "
            f"{folder}` stores one."
        )
    results = {}
    for study, path in sorted(found.items()):
        result = _with_words_of_file(read(path))
        page = study.with_suffix(".md") if path.name == PACKED else study / "page.md"
        if path.name == PACKED:
            page.write_text(render(result, folder=study.name), encoding="utf-8")
        results[os.path.relpath(page, out)] = result
    metrics = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/metrics.json"))]
    command = shlex.join(["python", "-m", "pipeline", "compare", "--claims", str(folder), "--publish", str(out)])
    text = render_claims(results, command=command, more=[_section(each) for each in metrics])
    out.mkdir(parents=True, exist_ok=True)
    (out / _CLAIMS).write_text(text, encoding="utf-8")
    return out / _CLAIMS


def _with_words_of_file(result: StudyResult) -> StudyResult:
    """The result with the claims, tables and figures that the file of a shipped study has now, if its runs are these.

    Runs of earlier settings keep the words of their time: what the file says now would be about others.
    """
    path = FOLDER / f"{result.name.removesuffix('-mpi').removesuffix('-full')}.yaml"
    if not path.exists():
        return result
    study = StudySettings.model_validate(form_of(read_mapping(path), result.form, {}))
    now, stored = (each.model_dump(mode="json", exclude=set(WORDS)) for each in (study, result.study))
    return replace(result, study=study) if now == stored else result


def _section(metrics: Mapping[str, Any]) -> str:
    """The classifiers of an evaluation: the tables of the terminal, and how far each is behind the best."""
    best = metrics["best"]
    rows = [
        [name, f"{each['value']:.4f} ± {each['error']:.4f}", "yes" if each["value"] > _COUNTS * each["error"] else "no"]
        for name, each in metrics["behind_best"].items()
        if name != best
    ]
    counts = next(iter(metrics["runs"].values()))["events_per_class"]
    events = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    about = (
        f"{metrics['num_events']:,} test events: {events}. Largest area below the ROC curve for {metrics['signal']} "
        f"against the backgrounds ({metrics['mixture']['words']}): **{best}**. Errors are those of the test events; "
        f"differences are paired."
    )
    if {"hlf", "boosted-trees"} <= metrics["behind_best"].keys():
        network, trees = (metrics["behind_best"][name] for name in ("hlf", "boosted-trees"))
        value = network["value"] - trees["value"]
        error = _ERRORS * math.hypot(network["error"], trees["error"])
        verdict = verdict_of(Interval(value, value - error, value + error), _SIMILAR, of_equals=True)
        about += (
            f"\n\nMigliorini 2020, section 4.3.2, says that boosted trees perform similarly to the network of "
            f"high-level features: here their area is {value:+.4f} ({value - error:+.4f}..{value + error:+.4f}) "
            f"larger, within {_SIMILAR}: **{verdict}**."
        )
    header = ["", f"area behind {best}", f"more than {_COUNTS} errors"]
    parts = ["## Which classifier is best on these events", about, markdown_table(header, rows)]
    for grid in evaluation_tables(dict(metrics)):
        parts += [f"{grid.title[:1].upper()}{grid.title[1:]}." if grid.title else ""]
        parts += [markdown_table(grid.rows[0], grid.rows[1:]), grid.caption]
    return "\n\n".join(part for part in parts if part)
