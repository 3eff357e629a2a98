"""Trainings: petastorm's pool, names of folders, denormal numbers, remains of mpirun."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset
from training_runs import make_spec, summary

from hep_studies.run_in_simulator import simulate_times
from hep_studies.run_result import rates
from hep_studies.simulator.cluster import ClusterSettings
from training.errors import DamagedDatasetError
from training.launching import launcher, mpirun
from training.launching.launcher import launch
from training.readers.reader import open_reader
from training.readers.streamed import petastorm_groups
from training.settings import TrainSettings


def end_early(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """These calls for a result find the pool done."""
    # Behind the source, which makes petastorm importable.
    from petastorm.workers_pool import EmptyResultError
    from petastorm.workers_pool.thread_pool import ThreadPool

    wait = ThreadPool.get_results
    call_numbers = itertools.count()

    def get_results(self: Any) -> Any:
        if next(call_numbers) in calls:
            raise EmptyResultError
        return wait(self)

    monkeypatch.setattr(ThreadPool, "get_results", get_results)


def test_all_row_groups_are_read_though_the_pool_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Petastorm's pool may report its end while its other thread hands out the last file."""
    rows = {"train": [5, 6, 7, 8], "val": [1], "test": [1]}
    dataset = write_dataset(tmp_path / "data", rows=rows)
    end_early(monkeypatch, {0, 3, 4})

    groups = petastorm_groups(dataset, ["label"], "train", [2, 0, 3, 1])
    rows_of_groups = [len(columns["label"]) for columns in groups]

    assert rows_of_groups == [7, 5, 8, 6]


def test_a_file_that_never_comes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [5, 6], "val": [1], "test": [1]})
    end_early(monkeypatch, set(range(1, 1000)))
    groups = petastorm_groups(dataset, ["label"], "train", [0, 1])

    with pytest.raises(DamagedDatasetError, match="it has 0 rows"):
        list(groups)


@pytest.mark.parametrize("name", ["a folder", "a#b?c%20d", "a\nb", "~"])
def test_a_dataset_below_a_folder_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    """To petastorm, a path is a URL without escapes."""
    dataset = write_dataset(tmp_path / name, rows={"train": [5], "val": [4], "test": [3]})
    reader = open_reader(dataset, ["hlf"], seed=1)

    batches = reader.val_batches(rank=0, world_size=1)

    assert sum(len(batch) for batch in batches) == 4


def test_training_leaves_denormal_numbers_switched_on(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [10], "test": [5]})
    spec = make_spec(dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=1)

    launch(spec, on_progress=lambda _: None)

    assert np.float32(1e-30) * np.float32(1e-10) > 0


def seconds_per_batch(workers: int) -> float:
    """Time of a batch of AD-PSGD, from 48 batches of 16 events in each of three epochs."""
    train = TrainSettings.model_validate(
        {"algorithm": "ad-psgd", "workers": workers, "batch_size": 16, "epochs": 3, "seed": 1}
    )
    cluster = ClusterSettings(step_seconds=4e-5, event_seconds=0.0)
    events_of_workers = [16 * 48] * workers
    simulated = simulate_times(events_of_workers, train, cluster, num_parameters=3000)
    return rates(simulated.records)["seconds_per_batch"]


def test_more_workers_take_no_more_time_for_a_batch_of_ad_psgd() -> None:
    """A worker reads the models of all others to validate; nobody may wait for that."""
    with_8_workers = seconds_per_batch(8)
    with_48_workers = seconds_per_batch(48)

    assert with_48_workers < 1.2 * with_8_workers


# `exec` keeps the process id.
MPIRUN = """#!/bin/sh
echo >> {calls}
if [ "$(wc -l < {calls})" -le {times} ]; then
    mkdir -p "${{TMPDIR:-/tmp}}/ompi.$$"
    touch "${{TMPDIR:-/tmp}}/ompi.$$/pmix.$(uname -n).tool"
fi
exec {mpirun} "$@"
"""


def install_mpirun_with_remains(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, times: int
) -> Path:
    """Install an mpirun that finds files of a killed one in its first starts.

    Returns the file with a line per start.
    """
    calls = folder / "calls"
    script = folder / "mpirun"
    calls.touch()
    message = {
        "calls": shlex.quote(str(calls)),
        "mpirun": shlex.quote(str(mpirun.find_mpirun())),
        "times": times,
    }
    script.write_text(MPIRUN.format(**message))
    script.chmod(0o755)
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: script)
    return calls


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_ranks_are_started_again_if_mpirun_finds_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed mpirun leaves files named by its process id; another of this id ends at them."""
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    calls = install_mpirun_with_remains(tmp_path, monkeypatch, times=1)
    spec = make_spec(dataset, tmp_path / "out")
    losses: list[str] = []

    launcher.launch(spec, on_progress=lambda _: None, on_loss=losses.append)

    assert calls.read_text() == "\n\n"
    # No rank was lost.
    assert losses == []
    assert summary(tmp_path / "out")["epochs"] == 4


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_ranks_are_started_again_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [40, 40], "val": [10], "test": [10]})
    calls = install_mpirun_with_remains(tmp_path, monkeypatch, times=9)
    spec = make_spec(dataset, tmp_path / "out")

    with pytest.raises(launcher.LaunchError, match="the ranks did not start: status"):
        launcher.launch(spec, on_progress=lambda _: None)

    assert calls.read_text() == "\n\n"
