"""Simulated runs of a study: each is a result, the same in any process, and all end together."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from example_study import example_plan
from feature_datasets import write_dataset
from simulated import settings, toy_network, toy_rows

from hep_core import plugins
from hep_studies import run_in_simulator
from hep_studies.measures import diverged
from hep_studies.plan import PlannedRun, Subject
from hep_studies.run_in_simulator import run_simulated, simulate_all, simulate_times, stand_in_size
from hep_studies.run_result import RESULT_FILE, RunResult, numbers_of
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import Simulated, simulate
from models.networks.hlf_settings import HlfSettings
from training.errors import StudyError
from training.workloads.hep_settings import HepSettings

NETWORK = HlfSettings(hidden=[4])


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("features") / "a"
    write_dataset(folder, rows={"train": [20] * 4, "val": [20], "test": [30]}, separation=0.6)
    return Subject(HepSettings(folder=folder, network=NETWORK), "a")


def simulated_plan(subject: Subject, folder: Path, **changes: Any) -> list[PlannedRun]:
    train = {"workers": 4, "batch_size": 8, "epochs": 2, **changes.pop("train", {})}
    return example_plan(subject, folder, train=train, **{"seeds": 1, **changes})


def simulated_result(run: PlannedRun) -> RunResult:
    run_simulated(run, "commit 1")
    assert run.result is not None
    return run.result


@pytest.mark.slow
def test_processes_give_the_numbers_of_this_one(subject: Subject, tmp_path: Path) -> None:
    run = simulated_plan(subject, tmp_path / "this")[2]
    run_of_pool = simulated_plan(subject, tmp_path / "pool")[2]
    progress: list[Any] = []

    result = simulated_result(run)
    simulate_all(
        [run_of_pool], cores=1, code="commit 1", on_progress=lambda *args: progress.append(args)
    )

    assert progress == [(1, 1, "AD-PSGD, seed 1")]
    assert run_of_pool.result is not None
    # Only the time that each took on this machine differs.
    assert replace(result, wall_seconds=None) == replace(run_of_pool.result, wall_seconds=None)
    assert result.counts is not None
    assert result.counts.num_events == 30
    assert len(result.curves["val_accuracy"]) == 2


def test_a_run_that_diverges_is_a_result(subject: Subject, tmp_path: Path) -> None:
    train = {"learning_rate": 1e30, "optimizer": "sgd"}

    result = simulated_result(simulated_plan(subject, tmp_path, train=train)[0])

    assert result.has_diverged
    assert (result.numbers, result.counts) == ({"diverged": 1.0}, None)


@pytest.mark.parametrize(("rate", "has_diverged"), [(0.1, 0.0), (3.0, 1.0)])
def test_a_run_that_ends_as_a_constant_guess_diverged(
    subject: Subject, tmp_path: Path, rate: float, has_diverged: float
) -> None:
    train = {"learning_rate": rate, "optimizer": "sgd", "epochs": 4}

    result = simulated_result(simulated_plan(subject, tmp_path, train=train)[0])

    # Three classes of equal weight.
    assert result.numbers["guess_loss"] == pytest.approx(math.log(3), rel=0.05)
    assert result.numbers["diverged"] == 0.0
    assert diverged(result, result) == has_diverged


def test_it_is_unknown_without_the_loss_of_a_guess_whether_a_run_diverged(
    subject: Subject, tmp_path: Path
) -> None:
    result = simulated_result(simulated_plan(subject, tmp_path)[0])

    assert math.isnan(diverged(replace(result, numbers={}), result))


def test_a_study_of_times_learns_nothing_and_takes_the_steps_it_says(
    subject: Subject, tmp_path: Path
) -> None:
    plan = simulated_plan(subject, tmp_path, times_only=5, train={"epochs": 1})

    result = simulated_result(plan[0])

    assert result.counts is None
    assert result.numbers["samples"] == 4 * 5 * 8
    assert result.numbers["seconds_per_batch"] > ClusterSettings().step_seconds


@pytest.mark.parametrize("drop_rate", [0.0, 0.5, 0.9])
def test_a_study_of_times_sends_as_many_gradients_as_a_network_with_dropping(
    drop_rate: float,
) -> None:
    algorithm = {"name": "sharded", "drop_rate": drop_rate, "shards": 2}
    train = settings(algorithm=algorithm, workers=4, batch_size=16)
    slow_links = ClusterSettings(
        step_seconds=1e-3, event_seconds=0, jitter=0.1, latency_seconds=2e-5, bytes_per_second=1e6
    )
    num_parameters = sum(weights.numel() for weights in toy_network().parameters())

    real = simulate(toy_network(), toy_rows(640), toy_rows(16, groups=1), train, slow_links)
    stand_in = simulate_times([160] * 4, train, slow_links, num_parameters=num_parameters)

    rate = numbers_of(stand_in.records)["samples_per_second"]
    assert rate == pytest.approx(numbers_of(real.records)["samples_per_second"], rel=0.1)


def sent_bytes(simulated: Simulated) -> int:
    return sum(record["bytes_sent"] for records in simulated.records for record in records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [
        ({"name": "sharded", "drop_rate": 0.99}, "float32"),
        ({"name": "sharded", "drop_rate": 0.99}, "float64"),
        ({"name": "sharded", "drop_rate": 0.97, "overlap": "thread"}, "float32"),
        ({"name": "choco-sgd", "fraction": 0.003}, "float32"),
        ({"name": "streaming-diloco", "local_steps": 8, "fragments": 8, "bits": 4}, "float32"),
    ],
)
def test_a_study_of_times_keeps_every_ratio_that_a_setting_sets(
    algorithm: dict[str, Any],
    precision: Literal["float32", "float64"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_parameters = 150_000
    train = settings(algorithm=algorithm, workers=6, batch_size=10, epochs=1, precision=precision)
    cluster = ClusterSettings(step_seconds=1e-3, event_seconds=0, bytes_per_second=1e8)
    group_rows = [160] * 6

    stand_in = simulate_times(group_rows, train, cluster, num_parameters=num_parameters)
    small_size = stand_in_size(train, num_parameters)
    # A network that may not be smaller than the real one has its size.
    monkeypatch.setattr("hep_studies.run_in_simulator._FEWEST_PARAMETERS", num_parameters)
    real = simulate_times(group_rows, train, cluster, num_parameters=num_parameters)

    assert stand_in.seconds == pytest.approx(real.seconds, rel=0.02)
    scale = sent_bytes(real) / sent_bytes(stand_in)
    assert scale == pytest.approx(num_parameters / small_size, rel=0.02)
    assert scale > 2


def test_a_study_of_times_takes_as_long_with_an_optimizer_of_matrices() -> None:
    seconds = []
    for optimizer in ("adamw", "muon"):
        train = settings(algorithm="d-psgd", optimizer=optimizer)
        simulated = simulate_times([160] * 4, train, ClusterSettings(), num_parameters=3000)
        seconds.append(simulated.seconds)

    assert seconds[0] == seconds[1] > 0


@pytest.mark.slow
def test_an_error_ends_all_processes(subject: Subject, tmp_path: Path) -> None:
    runs = simulated_plan(subject, tmp_path)
    missing_features = HepSettings(folder=tmp_path / "none", network=NETWORK)
    broken = runs[0]._replace(subject=Subject(missing_features))

    with pytest.raises(Exception, match="none"):
        simulate_all([broken, *runs[1:]], cores=2, code="", on_progress=lambda *_: None)

    # Where the pool's thread waits for a process at the same moment, multiprocessing takes the
    # dead one for alive.
    children = multiprocessing.active_children()
    assert not [child for child in children if psutil.pid_exists(child.pid or 0)]


def test_a_system_without_semaphores_is_named(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_in_simulator, "ProcessPoolExecutor", refuse)

    with pytest.raises(StudyError, match=r"semaphores.*Permission denied.*/dev/shm.*1777"):
        simulate_all(
            simulated_plan(subject, tmp_path), cores=2, code="", on_progress=lambda *_: None
        )


def test_a_study_that_was_killed_continues_with_the_runs_that_are_missing(
    subject: Subject, tmp_path: Path
) -> None:
    finished, killed, *_ = simulated_plan(subject, tmp_path, seeds=2)
    run_simulated(finished, "commit 1")
    killed.folder.mkdir(parents=True)
    (killed.folder / f".{RESULT_FILE}").write_text('{"made_with"')

    first, *missing = simulated_plan(subject, tmp_path, seeds=2)

    assert first.result is not None
    assert first.result.made_with == "commit 1"
    assert all(run.result is None for run in missing)


def test_an_error_of_a_plugin_keeps_its_line_on_the_way_out_of_its_process(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that comes out of another process has lost its traceback."""
    path = tmp_path / "fails_in_simulator.py"
    path.write_text("def fail(*_):\n    raise ValueError('mine')\n", encoding="utf-8")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugins.load([str(path)])
    module = sys.modules["plugin_fails_in_simulator"]
    monkeypatch.delitem(sys.modules, "plugin_fails_in_simulator")
    monkeypatch.setattr(run_in_simulator, "simulate_workload", module.fail)
    run = simulated_plan(subject, tmp_path / "study")[0]

    with pytest.raises(plugins.PluginError) as raised:
        run_in_simulator.run_in_pool(run, "commit 1")

    message = str(pickle.loads(pickle.dumps(raised.value)))  # noqa: S301 - it is ours
    assert message == f"plugin {path}, line 2: ValueError: mine"
