"""Every process computes with `train.threads` threads, one by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import SAMPLES, small_config
from feature_datasets import write_dataset
from rich.console import Console
from threadpoolctl import threadpool_info
from training_runs import make_spec

from hep_studies.compare import compare
from hep_studies.study_files import read_study
from pipeline.commands.evaluate_files import evaluate_files
from pipeline.commands.promote import promote
from pipeline.config import load_config
from pipeline.errors import PipelineError
from pipeline.run_folder import RunFolder
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.export import Export
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.trainings import Search, run_job
from training.launching.launcher import launch
from training.launching.mpirun import rank_command, rank_environment
from training.settings import TrainSettings
from training.threads import VARIABLES, use_threads

#: Neither the default nor what is asked for below.
BEFORE = 3


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    """What the libraries take by themselves on a machine with that many cores."""
    use_threads(BEFORE)
    yield
    use_threads(1)


def threads() -> set[int]:
    """Numbers of threads of all libraries of this process."""
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


def test_all_libraries_have_the_number_that_is_asked_for() -> None:
    assert "openblas" in {library["internal_api"] for library in threadpool_info()}
    for index in (2, 1):
        use_threads(index)
        assert threads() == {index}


def test_a_worker_and_a_task_of_the_grid_search_have_the_threads_of_the_config(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(
        tmp_path / "set", rows={"train": [20, 20, 20], "val": [10], "test": [10]}
    )
    launch(
        make_spec(dataset, tmp_path / "out", workers=1, epochs=1, threads=2),
        on_progress=lambda _: None,
    )
    assert threads() == {2}
    search = Search(dataset.folder, GridSearchSettings(folds=2), TrainSettings())
    assert run_job(search, Trial((4,), 16, 0.01, 1), tmp_path).error == ""
    assert threads() == {1}


def test_ranks_start_with_the_threads_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "7")
    settings = TrainSettings(workers=2, threads=2)
    environment = rank_environment(settings)
    assert {environment[name] for name in VARIABLES} == {"2"}
    command = rank_command(settings, ["true"])
    assert {command[position + 1] for position, word in enumerate(command) if word == "-x"} >= set(
        VARIABLES
    )


def in_stage(stage: type[Evaluate | Export], folder: RunFolder) -> None:
    """Run a stage up to its first look for what is not there."""
    with suppress(KeyError):
        stage().run(SimpleNamespace(config=folder.config, upstream={}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "predict",
    [
        lambda folder: in_stage(Evaluate, folder),
        lambda folder: in_stage(Export, folder),
        lambda folder: evaluate_files(folder, [], [], None),
        lambda folder: next(promote(folder)),
        lambda folder: compare(folder, read_study("thesis-hlf", "small"), command=""),
    ],
    ids=["evaluate", "export", "evaluate-files", "promote", "compare"],
)
def test_predictions_have_the_threads_of_the_config(
    tmp_path: Path, predict: Callable[[RunFolder], object]
) -> None:
    config = load_config(str(small_config(tmp_path, SAMPLES)), ["train.threads=2"])
    with suppress(PipelineError):
        predict(RunFolder(config, Console(quiet=True)))
    assert threads() == {2}
