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
from training.gridsearch.search import Search
from training.gridsearch.settings import GridSearchSettings, Trial
from training.gridsearch.trainings import run_job
from training.launching.launcher import launch
from training.launching.mpirun import rank_command, rank_environment
from training.launching.thread_variables import VARIABLES
from training.settings import TrainSettings
from training.threads import use_threads

#: Neither the default nor a number that a test sets.
THREADS_AT_START = 3


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    """As many threads as the libraries take by themselves on a machine with that many cores."""
    use_threads(THREADS_AT_START)
    yield
    use_threads(1)


def thread_counts() -> set[int]:
    """Numbers of threads of all libraries of this process."""
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


@pytest.mark.parametrize("num_threads", [2, 1])
def test_all_libraries_use_the_number_of_threads(num_threads: int) -> None:
    assert "openblas" in {library["internal_api"] for library in threadpool_info()}

    use_threads(num_threads)

    assert thread_counts() == {num_threads}


def test_a_worker_and_a_task_of_the_grid_search_have_the_threads_of_the_config(
    tmp_path: Path,
) -> None:
    rows = {"train": [20, 20, 20], "val": [10], "test": [10]}
    dataset = write_dataset(tmp_path / "set", rows=rows)
    run = make_spec(dataset, tmp_path / "out", workers=1, epochs=1, threads=2)
    search = Search(dataset.folder, GridSearchSettings(folds=2), TrainSettings())

    launch(run, on_progress=lambda _: None)
    counts_of_worker = thread_counts()
    result = run_job(search, Trial((4,), 16, 0.01, 1), tmp_path)
    counts_of_task = thread_counts()

    assert counts_of_worker == {2}
    assert result.error == ""
    assert counts_of_task == {1}


def test_ranks_start_with_the_threads_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "7")
    settings = TrainSettings(workers=2, threads=2)

    environment = rank_environment(settings)
    command = " ".join(rank_command(settings, ["true"]))

    for name in VARIABLES:
        assert environment[name] == "2"
        assert f" -x {name} " in command


def begin_stage(stage: Evaluate | Export, folder: RunFolder) -> None:
    """Run a stage until it misses the output of an earlier one."""
    with suppress(KeyError):
        stage.run(SimpleNamespace(config=folder.config, upstream={}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "predict",
    [
        lambda folder: begin_stage(Evaluate(), folder),
        lambda folder: begin_stage(Export(), folder),
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

    assert thread_counts() == {2}
