"""`compare --check`: measures the times of a finished study again, without its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hep_core.atomic_files import new_file
from hep_studies.pages import render
from hep_studies.plan import planned_runs
from hep_studies.study_files import Study
from hep_studies.study_result import PACKED_FILE, pack, read_study_result
from hep_studies.study_runs import code_digest, measure_checks, subject_of_study
from pipeline.run_folder import RunFolder
from pipeline.runs.provenance import LOCAL_CHANGES, code_version, now
from training.errors import StudyError


def check_again(run_folder: RunFolder, study_folder: Path) -> Path:
    """Measure the checks of a published study's times again; return the path of its page.

    The runs stay as they are, so that a study whose checks were refused on a busy machine needs a
    few minutes of a quiet one and no further runs.

    Args:
        run_folder: Has events, of which the network of the study has its size, and keeps the
            measurement.
        study_folder: The folder of the packed result, such as `docs/studies/thesis-hlf-full`.

    Raises:
        StudyError: There is no such result, its workers are ranks, whose times are measured, or the
            code has uncommitted changes.
        LaunchError: The ranks do not start or fail.
    """
    version = code_version()
    if version.endswith(LOCAL_CHANGES):
        raise StudyError(
            f"compare --check {study_folder}: {version}: nobody can make these checks again. Commit "
            f"the changes first."
        )
    path = study_folder / PACKED_FILE
    result = read_study_result(path)
    if not result.is_simulated:
        raise StudyError(
            f"compare --check {study_folder}: its workers are MPI ranks, whose times are measured; "
            f"only simulated times have a check."
        )
    study = Study(result.name, result.form, result.study)
    with run_folder.locked("compare"):
        subject, _ = subject_of_study(run_folder, study)
        # Runs of other seeds take the same steps.
        one_seed = result.study.model_copy(update={"seeds": 1})
        folder = run_folder.config.run_dir / "compare" / study.name
        train = run_folder.config.train
        runs = planned_runs(one_seed, subject, train, folder, code_digest=code_digest)
        checks = measure_checks(run_folder, study, runs, folder)
    result = replace(result, checks=checks, checked_again=f"{now()}, {version}")
    with new_file(path) as unfinished:
        unfinished.write_bytes(pack(result))
    page = study_folder.with_suffix(".md")
    page.write_text(render(result, folder=study_folder.name), encoding="utf-8")
    return page
