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

from hep_studies.judging import verdict_of
from hep_studies.pages import markdown_table, render, render_claims
from hep_studies.study import FOLDER, WORDS, StudySettings, form_of
from hep_studies.study_result import PACKED, StudyResult, read
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import MissingInputError
from pipeline.terminal.tables import evaluation_tables

_RESULT: Final = "result.json"
_CLAIMS: Final = "claims.md"
#: Number of errors of a difference above which it counts.
_COUNTS: Final = 2
#: Half the interval of an area, in errors, and the areas between which the source would see no difference.
_ERRORS: Final = 1.96
_SIMILAR: Final = 0.005


def write_claims(folder: Path, out: Path) -> Path:
    """Write the page of claims of stored results, and the page of each published study beside its packed result.

    A shipped study is judged by the claims that its file has now, if that asks for the stored runs. `folder`:
    `docs/studies`, or `compare` of a run folder. `out`: the folder of the page, which is returned.

    Raises:
        MissingInputError: The folder has no results.
        StudyError: A result cannot be read.
    """
    found = {
        path.parent: path for name in (_RESULT, PACKED) for path in sorted(folder.glob(f"*/{name}"))
    }
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
    metrics = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*/metrics.json"))
    ]
    command = shlex.join(
        ["python", "-m", "pipeline", "compare", "--claims", str(folder), "--publish", str(out)]
    )
    text = render_claims(results, command=command, evaluations=[_section(each) for each in metrics])
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
    now, stored = (
        each.model_dump(mode="json", exclude=set(WORDS)) for each in (study, result.study)
    )
    return replace(result, study=study) if now == stored else result


def _section(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The classifiers of an evaluation: how far each is behind the best, and the tables of the terminal."""
    behind, trees = metrics["behind_best"], None
    if {"hlf", "boosted-trees"} <= behind.keys():
        network, other = behind["hlf"], behind["boosted-trees"]
        value, error = (
            network["value"] - other["value"],
            _ERRORS * math.hypot(network["error"], other["error"]),
        )
        verdict = verdict_of(value, error, _SIMILAR, of_equals=True)
        trees = {
            "found": (value, value - error, value + error),
            "similar": _SIMILAR,
            "verdict": verdict,
        }
    tables = [
        (
            f"{grid.title[:1].upper()}{grid.title[1:]}",
            markdown_table(grid.rows[0], grid.rows[1:]),
            grid.caption,
        )
        for grid in evaluation_tables(metrics)
    ]
    return {**metrics, "errors": _COUNTS, "trees": trees, "tables": tables}
