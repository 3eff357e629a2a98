"""`compare --study`: one study, all shipped studies, and publication."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_study import example_result, example_run, example_study
from trained_nights import TrainedNights
from typer.testing import CliRunner

from hep_studies import compare
from hep_studies.study_files import Study
from pipeline.cli import app
from pipeline.terminal import exit_codes
from pipeline.terminal.exit_codes import Exit
from training.errors import StudyError, TrainingError

CLEAN = "commit 1"
CHANGED = "commit 1 with local changes"


@pytest.fixture
def shipped_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shipped studies; the first has a further name."""
    files = {name: Path(f"{name}.yaml") for name in ("a", "b", "c")}
    files["a-table-1"] = Path("a.yaml")
    monkeypatch.setattr("hep_studies.study_files.shipped_studies", lambda: files)
    monkeypatch.setattr(
        "hep_studies.study_files.read_study", lambda name, form, _: Study(name, form, None)
    )


@pytest.mark.usefixtures("shipped_studies")
def test_all_studies_are_made_and_failed_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[tuple[str, str, str]] = []
    broken = {"a", "c"}

    def make(_: object, study: Study, *, command: str, **__: Any) -> Path:
        created.append((study.name, study.form, command))
        if study.name in broken:
            raise TrainingError("A rank is gone.")
        return Path("page.md")

    monkeypatch.setattr("hep_studies.compare.compare", make)
    message = ["compare", "--study", "all", "--config", "demo"]

    failed = CliRunner().invoke(app, message)
    commands_made = list(created)
    broken.clear()
    repaired = CliRunner().invoke(app, message)

    command = "python -m pipeline compare --study {} --form small --config demo"
    assert commands_made == [(name, "small", command.format(name)) for name in ("a", "b", "c")]
    assert failed.exit_code == Exit.USER_ERROR
    assert "study a failed: A rank is gone." in failed.stderr
    assert "2 of 3 studies failed, as said above: a, c." in " ".join(failed.stderr.split())
    assert repaired.exit_code == Exit.OK


@pytest.mark.usefixtures("shipped_studies")
def test_an_interrupt_ends_all_studies() -> None:
    events: list[str] = []

    def make(name: str) -> None:
        events.append(name)
        # The handler of the signal notes it; what the interrupt breaks may raise another error.
        exit_codes.stop_requested.set()
        raise TrainingError("The ranks were interrupted.")

    try:
        with pytest.raises(KeyboardInterrupt):
            compare.make_all(make, events.append)
    finally:
        exit_codes.stop_requested.clear()

    assert events == ["compare: study a, 1 of 3", "a"]


@pytest.fixture
def publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes and publishes a study whose runs are finished."""

    def publish(version: str, made_with: str, folder: Path | None) -> Path:
        result = example_result(
            example_study(), [replace(example_run("sgd", 1), made_with=made_with)]
        )
        monkeypatch.setattr(compare, "run_study", lambda *_: result)
        monkeypatch.setattr(compare, "code_version", lambda: version)
        run_folder = TrainedNights(tmp_path).run_folder
        study = Study("example", "small", example_study())
        return compare.compare(run_folder, study, command="compare", publish=folder)

    return publish


@pytest.mark.parametrize(("version", "made_with"), [(CHANGED, CLEAN), (CLEAN, CHANGED)])
def test_results_of_code_that_no_commit_has_are_not_published(
    publishing: Any, tmp_path: Path, version: str, made_with: str
) -> None:
    """Guards pages of which 604 of 1,080 runs were of commits with local changes."""
    with pytest.raises(StudyError, match="with local changes"):
        publishing(version, made_with, tmp_path / "docs")


def test_results_of_a_commit_are_published_beside_their_page(
    publishing: Any, tmp_path: Path
) -> None:
    page = publishing(CLEAN, CLEAN, tmp_path / "docs")

    assert page == tmp_path / "docs" / "example.md"
    assert (tmp_path / "docs" / "example" / "result.json.xz").exists()


def test_local_changes_do_not_matter_without_publication(publishing: Any) -> None:
    assert publishing(CHANGED, CHANGED, None).name == "page.md"
