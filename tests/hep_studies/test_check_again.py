"""`compare --check`: new checks of the times of a finished study, whose runs stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_study import example_check, example_result, example_run, example_study
from trained_nights import TrainedNights
from typer.testing import CliRunner

from hep_studies import check_again as module
from hep_studies import study_runs
from hep_studies.check_again import check_again
from hep_studies.plan import PlannedRun
from hep_studies.study_result import PACKED_FILE, StudyResult, TimeCheck, pack, read_study_result
from hep_studies.workloads.surface_settings import SurfaceSettings
from pipeline.cli import app
from pipeline.run_folder import RunFolder
from pipeline.terminal.exit_codes import Exit
from training.errors import StudyError

REFUSED = replace(example_check("ad-psgd", 3e-3, 1e-3), refused="the machine was busy")
NEW_CHECKS = [replace(example_check("ad-psgd", 1.4e-3, 1e-3), overhead=0.1e-3)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[PlannedRun]:
    """The runs whose times were measured, by a measurement that starts no ranks."""
    measured_runs: list[PlannedRun] = []

    def check_times(runs: list[PlannedRun], *_: Any, **__: Any) -> list[TimeCheck]:
        measured_runs.extend(runs)
        return NEW_CHECKS

    monkeypatch.setattr(study_runs, "check_times", check_times)
    monkeypatch.setattr(module, "code_version", lambda: "commit 2")
    return measured_runs


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return TrainedNights(tmp_path).run_folder


def publish_study(folder: Path, **study: Any) -> StudyResult:
    """Write the packed result of a study as `compare --publish` does; return it."""
    settings = example_study(workload=SurfaceSettings(), seeds=2, **study)
    runs = [example_run("sgd", seed) for seed in (1, 2)]
    result = example_result(settings, runs, checks=[REFUSED])
    folder.mkdir()
    (folder / PACKED_FILE).write_bytes(pack(result))
    return result


@pytest.mark.usefixtures("measured")
def test_new_checks_replace_the_old_ones_beside_the_same_runs(
    tmp_path: Path, run_folder: RunFolder
) -> None:
    folder = tmp_path / "example"
    old = publish_study(folder)

    page = check_again(run_folder, folder)

    new = read_study_result(folder / PACKED_FILE)
    assert new.checks == NEW_CHECKS
    assert new.checked_again.endswith(", commit 2")
    assert replace(new, checks=old.checks, checked_again="") == old
    assert page == tmp_path / "example.md"
    assert f"measured again, after the runs: {new.checked_again}." in page.read_text()


def test_the_steps_of_each_method_are_measured_and_those_of_one_seed_suffice(
    tmp_path: Path, run_folder: RunFolder, measured: list[PlannedRun]
) -> None:
    publish_study(tmp_path / "example")

    check_again(run_folder, tmp_path / "example")

    assert [run.method for run in measured] == ["ar-sgd", "sgd", "ad-psgd"]


@pytest.mark.usefixtures("measured")
def test_times_of_ranks_need_no_check(tmp_path: Path, run_folder: RunFolder) -> None:
    publish_study(tmp_path / "example", execution="mpi", cluster={})

    with pytest.raises(StudyError, match="its workers are MPI ranks, whose times are measured"):
        check_again(run_folder, tmp_path / "example")


def test_code_that_no_commit_has_checks_nothing(
    tmp_path: Path, run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_study(tmp_path / "example")
    monkeypatch.setattr(module, "code_version", lambda: "commit 2 with local changes")

    with pytest.raises(
        StudyError, match=r"compare --check .* with local changes: .* Commit the changes first"
    ):
        check_again(run_folder, tmp_path / "example")


def test_the_command_takes_the_folder_of_a_study_alone(tmp_path: Path) -> None:
    completed = CliRunner().invoke(
        app, ["compare", "--check", str(tmp_path), "--study", "a", "--config", "demo"]
    )

    assert completed.exit_code == Exit.USAGE
    assert "--check" in completed.stderr
