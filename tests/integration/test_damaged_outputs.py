"""Nothing is used that is not what was written: each kind of file of a run folder, damaged in each
way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
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
from pipeline.commands.evaluate_files import _OfAnyModel
from pipeline.commands.status import verify
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
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
    "*.arrow": "the counters of the manifest have its digest; see below",
    "*.lock": "it is empty or for people: only its lock counts",
    "claims*": "it only says for people who reads",
    "*.prom": "for monitoring: each command writes it anew, and none reads it",
    "logs/*": "for people: no result depends on it",
}


@pytest.fixture(scope="module")
def finished(finished_run: FinishedRun) -> Iterator[FinishedRun]:
    """A run folder with a model in use; each test puts back what it damages."""
    finished_run.restore()
    finished_run.output_of("promote")
    yield finished_run
    finished_run.restore()


def run_folder_of(finished: FinishedRun) -> RunFolder:
    return RunFolder(load_config(str(finished.config)), Console(quiet=True))


def versions(finished: FinishedRun) -> list[Version]:
    """The version in use of each stage, and the model in use."""
    created = [in_use(finished.run_dir, stage) for stage in STAGES]
    return [*created, model_in_use(finished)]


def model_in_use(finished: FinishedRun) -> Version:
    version = Registry(finished.run_dir, "hlf").current()
    assert version is not None
    return version


def kind_of(path: str) -> str:
    """The path of a file without what distinguishes it from others of its kind."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]+|\d+", "#", path)


def files_of_each_kind(finished: FinishedRun) -> list[tuple[Version, Path]]:
    """A file of each kind with its version."""
    actual = {}
    for version in versions(finished):
        for file in version.files:
            actual[version.writer, kind_of(file.path)] = (version, version.folder / file.path)
    return list(actual.values())


def test_each_file_of_a_run_folder_is_named_by_a_manifest_or_has_a_reason(
    finished: FinishedRun,
) -> None:
    named = {version.folder / file.path for version in versions(finished) for file in version.files}
    for path in finished.run_dir.rglob("*"):
        if path.is_file() and path not in named:
            inside = path.relative_to(finished.run_dir)
            assert any(
                path.match(pattern) or inside.match(pattern) for pattern in NAMED_BY_NO_MANIFEST
            ), inside


def test_each_kind_of_file_is_noticed_after_each_damage(finished: FinishedRun) -> None:
    """By the check of all commands; pages of Parquet by whoever reads them."""
    silent = []
    for version, path in files_of_each_kind(finished):
        file_bytes = path.read_bytes()
        changes = {name: change for name, change in DAMAGES.items() if can_suffer(file_bytes, name)}
        results = {name: change(file_bytes) for name, change in changes.items()}
        if file_bytes:
            results["of another run"] = content_of_another_run(path, file_bytes)
        for name, damaged in results.items():
            if damaged == file_bytes:
                continue
            replace_file(path, damaged, path.stat().st_mtime_ns)
            actual = [
                version.folder / file.path for file in damaged_files(version.folder, version.files)
            ]
            in_pages = path.suffix == ".parquet" and bool(damage_of_parquet(path))
            if actual != [path] and not in_pages:
                silent.append(f"{path}: {name}")
        replace_file(path, file_bytes, path.stat().st_mtime_ns)
    assert silent == []


def is_read(file: OutputFile, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches a file; `*` also matches slashes."""
    return any(fnmatchcase(file.path, pattern) for pattern in patterns)


READERS: Final[list[Stage]] = [*ALL_STAGES, _OfAnyModel()]


@pytest.mark.parametrize("stage", STAGES)
def test_a_damaged_stage_is_stale_and_refused_by_all_that_read_it_until_the_file_is_back(
    finished: FinishedRun, stage: str
) -> None:
    """`promote`, `track`, `compare` and `evaluate-files` read what the stages evaluate, report and train read."""
    version = in_use(finished.run_dir, stage)
    run_folder = run_folder_of(finished)
    users = [reader for reader in READERS if stage in reader.upstream_of(run_folder.config)]
    files = [file for file in version.files if file.size > 2]
    files_of_users = [
        file for file in files if any(is_read(file, user.reads[stage]) for user in users)
    ]
    smallest = min(files_of_users or files, key=lambda file: file.size)
    # Some use only the counters of the stage.
    readers = [user for user in users if is_read(smallest, user.reads[stage])]
    assert readers or stage in {"report", "gridsearch", "export"}
    path = version.folder / smallest.path
    document = damage_end(path)
    mtime_ns = path.stat().st_mtime_ns
    try:
        plans = {plan.stage.name: plan for plan in Runner(run_folder).plan()}
        # `run` leaves out a search that no network asks for.
        if stage in plans:
            assert plans[stage].state is State.STALE
            assert plans[stage].reasons == [f"output is gone or damaged: {smallest.path}"]
        for reader in readers:
            with pytest.raises(
                DamagedOutputError, match=f"{path.name} is not what was written.*{stage}"
            ):
                run_folder.upstream(reader)
        with pytest.raises(DamagedOutputError, match=path.name):
            load_run(finished.run_dir).output(stage)
        assert verify(run_folder) == [str(path)]
    finally:
        replace_file(path, document, mtime_ns)
    assert verify(run_folder) == []
    assert all(plan.state is State.FRESH for plan in Runner(run_folder).plan())
    load_run(finished.run_dir).output(stage)


@pytest.mark.parametrize("name", ["model/weights.pt", "model/model.json", "model.onnx", "run.json"])
def test_a_damaged_model_in_use_is_not_used(finished: FinishedRun, name: str) -> None:
    version = model_in_use(finished)
    path = version.folder / name
    document = damage(path, DAMAGES["a flipped bit"])
    try:
        with pytest.raises(DamagedOutputError, match=path.name):
            Registry.model_in_use(finished.run_dir)
        with pytest.raises(DamagedOutputError, match=path.name):
            find_models([str(path if path.suffix == ".onnx" else version.folder)])
    finally:
        replace_file(path, document, path.stat().st_mtime_ns)
    assert Registry.model_in_use(finished.run_dir) == version


def with_larger_scale(file_bytes: bytes) -> bytes:
    """A scaler with another number in it, as an editor or a disk leaves it."""
    scaler = json.loads(file_bytes)
    scaler["hlf"]["std"][0] *= 3
    return json.dumps(scaler, indent=1).encode()


def test_a_training_on_a_damaged_scaler_is_refused_and_later_gives_what_it_gave(
    finished: FinishedRun,
) -> None:
    """It trained, and stayed up to date for ever after the file was put back."""

    def loss() -> float:
        trained = in_use(finished.run_dir, "train")
        value: float = trained.manifest.counters["networks"]["hlf"]["best_val_loss"]
        return value

    loss_before = loss()
    path = in_use(finished.run_dir, "features").folder / "scaler.json"
    document = damage(path, with_larger_scale)
    result = invoke("train", "--force", "--config", finished.config)
    assert result.exit_code == 1
    assert "scaler.json is not what was written" in result.output
    replace_file(path, document, path.stat().st_mtime_ns)
    assert "up to date" in finished.output_of("train")
    finished.output_of("train", "--force")
    assert loss() == loss_before


@pytest.mark.usefixtures("no_figures")
def test_a_run_makes_a_damaged_file_again_and_continues(finished: FinishedRun) -> None:
    """A page of a feature that the network reads: the footer is as it was."""
    finished.restore()
    features = in_use(finished.run_dir, "features")
    path = min(features.folder.glob("train/*.parquet"))
    document = damage_page(path, "ht")
    alone = invoke("train", "--force", "--config", finished.config)
    assert alone.exit_code == 1
    assert f"{path.name} is not what was written" in alone.output
    assert "python -m pipeline features" in alone.output
    plans = {plan.stage.name: plan for plan in Runner(run_folder_of(finished)).plan()}
    assert plans["features"].reasons == [f"output is gone or damaged: train/{path.name}"]
    result = finished.run("run")
    assert result.returncode == 0, result.stderr
    repeated = in_use(finished.run_dir, "features")
    assert repeated.name != features.name
    assert (repeated.folder / "train" / path.name).read_bytes() == document
    assert all(plan.state is State.FRESH for plan in Runner(run_folder_of(finished)).plan())
    finished.restore()
    finished.output_of("promote")
