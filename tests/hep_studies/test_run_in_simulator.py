"""Simulated runs of a study: each is a result, the same in any process, and all end together."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from example_study import example_plan
from feature_datasets import write_dataset
from simulated import settings, toy_network, toy_rows

from hep_studies.measures import diverged
from hep_studies.plan import PlannedRun, Subject
from hep_studies.run_in_simulator import run_simulated, simulate_all, simulate_times
from hep_studies.run_result import RESULT_FILE, numbers_of
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import simulate
from models.networks.hlf_settings import HlfSettings
from training.workloads.hep_settings import HepSettings


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("features") / "a"
    write_dataset(folder, rows={"train": [20] * 4, "val": [20], "test": [30]}, separation=0.6)
    return Subject(HepSettings(folder=folder, network=HlfSettings(hidden=[4])), "a")


def runs_of(subject: Subject, folder: Path, **changes: Any) -> list[PlannedRun]:
    train = {"workers": 4, "batch_size": 8, "epochs": 2, **changes.pop("train", {})}
    return example_plan(subject, folder, train=train, **{"seeds": 1, **changes})


@pytest.mark.slow
def test_processes_give_the_numbers_of_this_one(subject: Subject, tmp_path: Path) -> None:
    current, reference = (runs_of(subject, tmp_path / name)[2] for name in ("here", "there"))
    run_simulated(current, "commit 1")
    reports: list[Any] = []
    simulate_all(
        [reference], cores=1, code="commit 1", on_progress=lambda *message: reports.append(message)
    )
    assert reports == [(1, 1, "AD-PSGD, seed 1")]
    assert current.result == reference.result
    assert current.result is not None
    assert current.result.counts is not None
    assert current.result.counts.num_events == 30
    assert len(current.result.curves["val_accuracy"]) == 2


def test_a_run_that_diverges_is_a_result(subject: Subject, tmp_path: Path) -> None:
    run = runs_of(subject, tmp_path, train={"learning_rate": 1e30, "optimizer": "sgd"})[0]
    run_simulated(run, "commit 1")
    assert run.result is not None
    assert run.result.has_diverged
    assert (run.result.numbers, run.result.counts) == ({"diverged": 1.0}, None)


def test_a_run_that_ends_as_a_constant_guess_diverged(subject: Subject, tmp_path: Path) -> None:
    """Only runs that ended without a result once counted."""

    def found(rate: float) -> tuple[float, float]:
        run = runs_of(
            subject, tmp_path, train={"learning_rate": rate, "optimizer": "sgd", "epochs": 4}
        )[0]
        run_simulated(run, "commit 1")
        result = run.result
        assert result is not None
        # Classes of equal weight.
        assert result.numbers["guess_loss"] == pytest.approx(math.log(3), rel=0.05)
        assert math.isnan(diverged(replace(result, numbers={}), result))
        return result.numbers["diverged"], diverged(result, result)

    assert found(0.1) == (0.0, 0.0)
    assert found(3.0) == (0.0, 1.0)


def test_a_study_of_times_learns_nothing_and_takes_the_steps_it_says(
    subject: Subject, tmp_path: Path
) -> None:
    run = runs_of(subject, tmp_path, times_only=5, train={"epochs": 1})[0]
    run_simulated(run, "commit 1")
    assert run.result is not None
    assert run.result.counts is None
    assert run.result.numbers["samples"] == 4 * 5 * 8
    assert run.result.numbers["seconds_per_batch"] > ClusterSettings().step_seconds


@pytest.mark.parametrize("drop_rate", [0.0, 0.5, 0.9])
def test_a_study_of_times_sent_nothing_where_gradients_are_dropped(drop_rate: float) -> None:
    """The stand-in for the network had a gradient of 0, of which dropping leaves nothing."""
    selected = settings(
        algorithm={"name": "sharded", "drop_rate": drop_rate, "shards": 2}, workers=4, batch_size=16
    )
    slow = ClusterSettings(
        step_seconds=1e-3, event_seconds=0, jitter=0.1, latency_seconds=2e-5, bytes_per_second=1e6
    )
    real = simulate(toy_network(), toy_rows(640), toy_rows(16, groups=1), selected, slow)
    count = sum(weights.numel() for weights in toy_network().parameters())
    actual = simulate_times([160] * 4, selected, slow, num_parameters=count)
    numbers = [numbers_of(outcome.records)["samples_per_second"] for outcome in (real, actual)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.1)


@pytest.mark.slow
def test_an_error_ends_all_processes(subject: Subject, tmp_path: Path) -> None:
    runs = runs_of(subject, tmp_path)
    broken = runs[0]._replace(
        subject=Subject(HepSettings(folder=tmp_path / "none", network=HlfSettings(hidden=[4])))
    )
    with pytest.raises(Exception, match="none"):
        simulate_all([broken, *runs[1:]], cores=2, code="", on_progress=lambda *_: None)
    # Where the pool's thread waits for a process at the same moment, multiprocessing takes the dead one for alive.
    assert not [
        child for child in multiprocessing.active_children() if psutil.pid_exists(child.pid or 0)
    ]


def test_a_study_that_was_killed_continues_with_the_runs_that_are_missing(
    subject: Subject, tmp_path: Path
) -> None:
    runs = runs_of(subject, tmp_path, seeds=2)
    run_simulated(runs[0], "commit 1")
    # Killed while it wrote the second one.
    runs[1].folder.mkdir(parents=True)
    (runs[1].folder / f".{RESULT_FILE}").write_text('{"made_with"')
    repeated = runs_of(subject, tmp_path, seeds=2)
    assert [run for run in repeated if run.result is None] == repeated[1:]
    assert repeated[0].result is not None
    assert repeated[0].result.made_with == "commit 1"
