"""Nothing is used that is not what was written: each kind of file of a run folder, damaged in each
way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest
from command_line import in_use, invoke
from damage import (
    DAMAGES,
    can_suffer,
    content_of_another_run,
    damage,
    damage_end,
    damage_page,
    replace_file,
)
from finished_run import STAGES, FinishedRun
from rich.console import Console

from hep_core.checked_parquet import damage_of_parquet
from hep_core.integrity import DamagedOutputError
from pipeline.api import load_run
from pipeline.commands.evaluate_files import _EvaluateAnyModel
from pipeline.commands.status import verify
from pipeline.config import load_config
from pipeline.planner import StagePlan, State
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.model_registry import Registry
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.outputs import OutputFile, damaged_files
from pipeline.runs.own_folders import MARKER
from pipeline.runs.version import Version
from pipeline.stages.base import Stage
from pipeline.stages.table import STAGES as ALL_STAGES

pytestmark = [pytest.mark.spark, pytest.mark.distributed, pytest.mark.end_to_end]

#: Files of a run folder that no manifest names, with the reason why their damage is noticed or
#: cannot matter.
NAMED_BY_NO_MANIFEST: Final = {
    "manifest.json": "it has a digest of itself; see tests/pipeline/runs/test_manifest.py",
    "current.json": "a name that is no version is refused; see tests/pipeline/runs/test_store.py",
    MARKER: "it is empty: only its name counts",
    "*.arrow": "the counters of the manifest have its digest; see test_damaged_events.py",
    "*.lock": "it is empty or for people: only its lock counts",
    "claims*": "it only says for people who reads",
    "*.prom": "for monitoring: each command writes it anew, and none reads it",
    "logs/*": "for people: no result depends on it",
}
#: `promote`, `track`, `compare` and `evaluate-files` read what the stages evaluate, report and
#: train read.
READERS: Final[list[Stage]] = [*ALL_STAGES, _EvaluateAnyModel()]


@pytest.fixture(scope="module")
def finished(finished_run: FinishedRun) -> Iterator[FinishedRun]:
    """A run folder with a model in use; each test puts back what it damages."""
    finished_run.restore()
    finished_run.output_of("promote")
    yield finished_run
    finished_run.restore()


def run_folder_of(finished: FinishedRun) -> RunFolder:
    return RunFolder(load_config(str(finished.config)), Console(quiet=True))


def plans_of(finished: FinishedRun) -> dict[str, StagePlan]:
    """The plans of the stages by name."""
    plans = Runner(run_folder_of(finished)).plan()
    return {plan.stage.name: plan for plan in plans}


def assert_all_fresh(finished: FinishedRun) -> None:
    assert {plan.state for plan in plans_of(finished).values()} == {State.FRESH}


def model_in_use(finished: FinishedRun) -> Version:
    version = Registry(finished.run_dir, "hlf").current()
    assert version is not None
    return version


def versions(finished: FinishedRun) -> list[Version]:
    """The version in use of each stage, and the model in use."""
    stage_versions = [in_use(finished.run_dir, stage) for stage in STAGES]
    return [*stage_versions, model_in_use(finished)]


@contextmanager
def damaged_end(path: Path) -> Iterator[None]:
    """Damage the end of a file until the end of the block."""
    mtime_ns = path.stat().st_mtime_ns
    intact_bytes = damage_end(path)
    try:
        yield
    finally:
        replace_file(path, intact_bytes, mtime_ns)


def without_numbers(path: str) -> str:
    """The path of a file without what distinguishes it from others of its kind."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]+|\d+", "#", path)


def one_file_of_each_kind(finished: FinishedRun) -> list[tuple[Version, Path]]:
    """Versions with a file of theirs."""
    files = {}
    for version in versions(finished):
        for file in version.files:
            kind_of_file = (version.writer, without_numbers(file.path))
            files[kind_of_file] = (version, version.folder / file.path)
    return list(files.values())


def needs_no_manifest(path: Path, run_dir: Path) -> bool:
    inside = path.relative_to(run_dir)
    return any(path.match(pattern) or inside.match(pattern) for pattern in NAMED_BY_NO_MANIFEST)


def test_each_file_of_a_run_folder_is_named_by_a_manifest_or_has_a_reason(
    finished: FinishedRun,
) -> None:
    named = {version.folder / file.path for version in versions(finished) for file in version.files}
    files = {path for path in finished.run_dir.rglob("*") if path.is_file()}

    for path in files - named:
        assert needs_no_manifest(path, finished.run_dir), path


def damaged_contents(path: Path, intact_bytes: bytes) -> dict[str, bytes]:
    """The contents of a file after each kind of damage that changes it."""
    contents = {
        name: change(intact_bytes)
        for name, change in DAMAGES.items()
        if can_suffer(intact_bytes, name)
    }
    if intact_bytes:
        contents["of another run"] = content_of_another_run(path, intact_bytes)
    return {name: changed for name, changed in contents.items() if changed != intact_bytes}


def is_noticed(version: Version, path: Path) -> bool:
    """True if the check of all commands finds only this damage, or a reader of the Parquet file."""
    damaged = damaged_files(version.folder, version.files)
    if [version.folder / file.path for file in damaged] == [path]:
        return True
    return path.suffix == ".parquet" and bool(damage_of_parquet(path))


def test_each_kind_of_file_is_noticed_after_each_damage(finished: FinishedRun) -> None:
    unnoticed = []
    for version, path in one_file_of_each_kind(finished):
        intact_bytes = path.read_bytes()
        for name, damaged_bytes in damaged_contents(path, intact_bytes).items():
            replace_file(path, damaged_bytes, path.stat().st_mtime_ns)
            if not is_noticed(version, path):
                unnoticed.append(f"{path}: {name}")
        replace_file(path, intact_bytes, path.stat().st_mtime_ns)

    assert unnoticed == []


def is_read(file: OutputFile, patterns: Sequence[str]) -> bool:
    """True if one of the patterns matches a file; `*` also matches slashes."""
    return any(fnmatchcase(file.path, pattern) for pattern in patterns)


def smallest_file_that_is_read(
    version: Version, readers: Sequence[Stage]
) -> tuple[OutputFile, list[Stage]]:
    """The smallest file of a version that others read, and those readers.

    The smallest of all files where the readers use only the counters of the stage.
    """
    files = sorted((file for file in version.files if file.size > 2), key=lambda file: file.size)
    for file in files:
        file_readers = [stage for stage in readers if is_read(file, stage.reads[version.writer])]
        if file_readers:
            return file, file_readers
    return files[0], []


@pytest.mark.parametrize("stage", STAGES)
def test_a_damaged_stage_is_stale_and_refused_by_all_its_readers_until_the_file_is_back(
    finished: FinishedRun, stage: str
) -> None:
    run_folder = run_folder_of(finished)
    version = in_use(finished.run_dir, stage)
    later_stages = [reader for reader in READERS if stage in reader.upstream_of(run_folder.config)]
    file, readers = smallest_file_that_is_read(version, later_stages)
    assert readers or stage in {"report", "gridsearch", "export"}
    path = version.folder / file.path

    with damaged_end(path):
        plans = plans_of(finished)
        # `run` leaves out a search that no network asks for.
        if stage in plans:
            assert plans[stage].state is State.STALE
            assert plans[stage].reasons == [f"output is gone or damaged: {file.path}"]
        message = f"{path.name} is not what was written.*{stage}"
        for reader in readers:
            with pytest.raises(DamagedOutputError, match=message):
                run_folder.upstream(reader)
        with pytest.raises(DamagedOutputError, match=path.name):
            load_run(finished.run_dir).output(stage)
        assert verify(run_folder) == [str(path)]

    assert verify(run_folder) == []
    assert_all_fresh(finished)
    load_run(finished.run_dir).output(stage)


@pytest.mark.parametrize("name", ["model/weights.pt", "model/model.json", "model.onnx", "run.json"])
def test_a_damaged_model_in_use_is_not_used(finished: FinishedRun, name: str) -> None:
    version = model_in_use(finished)
    path = version.folder / name
    model_argument = version.folder
    if path.suffix == ".onnx":
        model_argument = path

    intact_bytes = damage(path, DAMAGES["a flipped bit"])
    try:
        with pytest.raises(DamagedOutputError, match=path.name):
            Registry.model_in_use(finished.run_dir)
        with pytest.raises(DamagedOutputError, match=path.name):
            find_models([str(model_argument)])
    finally:
        replace_file(path, intact_bytes, path.stat().st_mtime_ns)

    assert Registry.model_in_use(finished.run_dir) == version


def with_larger_scale(file_bytes: bytes) -> bytes:
    """A scaler with another number in it, as an editor or a disk leaves it."""
    scaler = json.loads(file_bytes)
    scaler["hlf"]["std"][0] *= 3
    return json.dumps(scaler, indent=1).encode()


def best_loss(finished: FinishedRun) -> float:
    trained = in_use(finished.run_dir, "train")
    loss: float = trained.manifest.counters["networks"]["hlf"]["best_val_loss"]
    return loss


def test_a_training_on_a_damaged_scaler_is_refused_and_later_gives_the_same_loss(
    finished: FinishedRun,
) -> None:
    loss_before = best_loss(finished)
    path = in_use(finished.run_dir, "features").folder / "scaler.json"
    intact_bytes = damage(path, with_larger_scale)

    result = invoke("train", "--force", "--config", finished.config)

    assert result.exit_code == 1
    assert "scaler.json is not what was written" in result.output
    replace_file(path, intact_bytes, path.stat().st_mtime_ns)
    assert "up to date" in finished.output_of("train")
    finished.output_of("train", "--force")
    assert best_loss(finished) == loss_before


@pytest.mark.usefixtures("no_figures")
def test_a_run_makes_a_damaged_file_again_and_continues(finished: FinishedRun) -> None:
    """A page of a feature that the network reads is damaged; the footer is as it was."""
    finished.restore()
    features = in_use(finished.run_dir, "features")
    path = min(features.folder.glob("train/*.parquet"))
    intact_bytes = damage_page(path, "ht")

    training = invoke("train", "--force", "--config", finished.config)
    reasons = plans_of(finished)["features"].reasons
    whole_run = finished.run("run")

    assert training.exit_code == 1
    assert f"{path.name} is not what was written" in training.output
    assert "python -m pipeline features" in training.output
    assert reasons == [f"output is gone or damaged: train/{path.name}"]
    assert whole_run.returncode == 0, whole_run.stderr
    repeated = in_use(finished.run_dir, "features")
    assert repeated.name != features.name
    assert (repeated.folder / "train" / path.name).read_bytes() == intact_bytes
    assert_all_fresh(finished)
    finished.restore()
    finished.output_of("promote")
