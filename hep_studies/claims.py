"""`compare --claims`: the page of claims, from stored results of studies and of evaluations."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hep_studies.classifier_section import classifier_section
from hep_studies.nested_values import form_of
from hep_studies.pages import render, render_claims, render_guide
from hep_studies.run_result import RunResult
from hep_studies.study import FOLDER, PRESENTATION_KEYS, StudySettings
from hep_studies.study_result import PACKED_FILE, RESULT_FILE, StudyResult, read_study_result
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import MissingInputError
from training.settings import TrainSettings

_PAGE: Final = "claims.md"
#: The page which method to take; there is none without a study of situations.
_GUIDE: Final = "choosing.md"
#: Keys of a study of which another value changes all its runs, or what they are compared by.
_KEYS_OF_ALL_RUNS: Final = ("workload", "execution", "times_only", "best_of", "reference")


def write_claims(folder: Path, out: Path) -> Path:
    """Write the page of the claims of all studies in a folder, and return its path.

    Beside it, studies of situations give the page which method to take, `choosing.md`. Nothing is
    run: the claims are judged by stored results. Pages of published studies are written again. The
    claims of a study that comes with the code are those of its file now, if the file still asks for
    the stored runs. Results of evaluations (`metrics.json`) get a section.

    Args:
        folder: Has a folder for each study: `docs/studies`, or `compare` of a run folder.
        out: The folder of the page.

    Raises:
        MissingInputError: The folder has no results.
        StudyError: A result cannot be read.
    """
    results = {}
    for study_folder, path in sorted(_stored_results(folder).items()):
        result = _with_current_presentation(read_study_result(path))
        if path.name == PACKED_FILE:
            # A published study has its page beside its folder.
            page = study_folder.with_suffix(".md")
            page.write_text(render(result, folder=study_folder.name), encoding="utf-8")
        else:
            page = study_folder / "page.md"
        results[os.path.relpath(page, out)] = result

    evaluations = []
    for path in sorted(folder.glob("*/metrics.json")):
        metrics = json.loads(path.read_text(encoding="utf-8"))
        evaluations.append(classifier_section(metrics))
    options = ["--claims", str(folder), "--publish", str(out)]
    command = shlex.join(["python", "-m", "pipeline", "compare", *options])
    text = render_claims(results, command=command, evaluations=evaluations)
    out.mkdir(parents=True, exist_ok=True)
    page = out / _PAGE
    page.write_text(text, encoding="utf-8")
    guide = render_guide(results, command=command)
    if guide:
        (out / _GUIDE).write_text(guide, encoding="utf-8")
    return page


def _stored_results(folder: Path) -> dict[Path, Path]:
    """Return the file of each result below a folder, by the folder of its study.

    Where a study has both, the packed file of its published page counts.

    Raises:
        MissingInputError: There is none.
    """
    stored = {}
    for name in (RESULT_FILE, PACKED_FILE):
        for path in sorted(folder.glob(f"*/{name}")):
            stored[path.parent] = path
    if not stored:
        raise MissingInputError(
            f"compare --claims {folder}: there is no */{RESULT_FILE} or */{PACKED_FILE}. "
            f"`compare --study NAME --publish {folder}` stores one."
        )
    return stored


def _with_current_presentation(result: StudyResult) -> StudyResult:
    """Return a result with the claims, tables and figures that the file of its study has now.

    This needs no new runs. Claims on runs that the file asks for since then are not decidable until
    they are made. If the file no longer asks for a stored run, or there is no such file, the result
    is returned as it is: the file would describe other runs.
    """
    # The name of a result is that of the file, with the form and the execution at its end.
    path = FOLDER / f"{result.name.removesuffix('-mpi').removesuffix('-full')}.yaml"
    if not path.exists():
        return result
    study = StudySettings.model_validate(form_of(read_mapping(path), result.form, {}))
    study = study.with_added(result.added)
    if not _asks_for_all_runs(study, result):
        return result
    presentation = {key: getattr(study, key) for key in PRESENTATION_KEYS}
    return replace(result, study=result.study.model_copy(update=presentation))


def _asks_for_all_runs(study: StudySettings, result: StudyResult) -> bool:
    """Return whether a study asks for every stored run; it may ask for more."""
    stored = result.study
    if any(getattr(study, key) != getattr(stored, key) for key in _KEYS_OF_ALL_RUNS):
        return False
    seeds = {run.seed for run in result.runs}
    if len(seeds) > study.seeds:
        return False
    # Runs of different seeds have the same settings otherwise.
    first_seed = min(seeds)
    first_runs = [run for run in result.runs if run.seed == first_seed]
    return all(_settings_of_run(study, run) == _settings_of_run(stored, run) for run in first_runs)


def _settings_of_run(study: StudySettings, run: RunResult) -> tuple[TrainSettings, Any] | None:
    """Return the settings that a study gives a run; None if it does not ask for the run."""
    if run.method not in study.methods or run.values not in study.combinations(run.method):
        return None
    train = study.train_settings(run.method, run.values, run.seed)
    return train, study.cluster_settings(run.values)
