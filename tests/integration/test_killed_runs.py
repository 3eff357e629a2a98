"""Ctrl-C, and kill -9 of everything at random moments and at each step of a publication; then the same command again.

With `--rounds` the random ones come more often (`make torture`).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command_line import in_use, version_of
from fault_child import COMPLETE, IN_USE, STEPS
from finished_run import STAGES, FinishedRun
from lent_spark import command
from published_by_hand import record_as_written
from ranks import wait_until

from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore
from pipeline.stages.table import STAGE_OF
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_interrupted_and_killed_twice_ends_as_if_nothing_had_been(
    finished_run: FinishedRun, provider: SparkProvider, stage: str, fault_seed: int
) -> None:
    finished_run.restore(stage)
    interrupt(finished_run, stage)
    # The second one comes at once, whatever of the first still lives.
    kills = [finished_run.kill(stage, 2 * fault_seed + index) for index in range(2)]
    result = command(provider, stage, "--config", finished_run.config)
    assert result.exit_code == 0, f"{kills}\n{result.stderr}"
    finished_run.assert_same_result(stage)


def interrupt(finished_run: FinishedRun, stage: str) -> None:
    """Ctrl-C in a terminal, which goes to the whole group: it is said, and only what can be continued is left."""
    process = finished_run.start_and_wait_for_work(stage)
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == Exit.INTERRUPTED, message
    assert "interrupted" in message
    assert "Traceback" not in message
    leftovers = (finished_run.run_dir / stage).iterdir()
    assert [path.name for path in leftovers if not STAGE_OF[stage].can_continue(path)] == []
    finished_run.assert_nothing_left()


def test_a_version_that_is_complete_before_a_kill_is_put_in_use(
    finished_run: FinishedRun,
) -> None:
    finished_run.restore("report")
    result = finished_run.run("report", faults={"kill_at": COMPLETE + 1})
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert StageStore(finished_run.run_dir, "report").current() is None
    assert "up to date" in finished_run.output_of("report")
    finished_run.assert_same_result("report")


@pytest.mark.parametrize("step", range(len(STEPS) + 1), ids=["at the beginning", *STEPS])
def test_a_kill_while_a_model_is_published_leaves_a_whole_one_in_use(
    finished_run: FinishedRun, step: int
) -> None:
    run_dir = finished_run.restore()
    result = finished_run.run("promote", faults={"kill_at": step})
    assert result.returncode == -signal.SIGKILL, result.stderr
    store = Registry(run_dir, "hlf")
    assert (store.current() is not None) == (step >= IN_USE)
    # A complete one only waits for the pointer, which the next command sets.
    assert ("it is in use already" in finished_run.output_of("promote")) == (step >= COMPLETE)
    current = store.current()
    assert current is not None
    assert sorted(path.name for path in store.folder.iterdir()) == [current.name, "current.json"]
    trained, exported = (version_of(run_dir, stage) / "hlf" for stage in ("train", "export"))
    for ours, reference in (
        (current.folder / "model" / "weights.pt", trained / "model" / "weights.pt"),
        (current.folder / "model.onnx", exported / "model.onnx"),
    ):
        assert ours.read_bytes() == reference.read_bytes()
    finished_run.assert_nothing_left()


def test_a_rollback_skips_a_model_that_a_kill_kept_from_use(
    finished_run: FinishedRun,
) -> None:
    run_dir = finished_run.restore()
    finished_run.output_of("promote")
    store = Registry(run_dir, "hlf")
    first = store.current()
    assert first is not None
    retrain(run_dir, 1.0)
    assert (
        finished_run.run("promote", "--force", faults={"kill_at": 4}).returncode == -signal.SIGKILL
    )
    assert len(store.complete()) == 2
    assert store.current() == first
    retrain(run_dir, 2.0)
    finished_run.output_of("promote", "--force")
    assert len(store.complete()) == 2
    assert f"{first.name} is in use again" in finished_run.output_of("rollback", "hlf")


def retrain(run_dir: Path, shift: float) -> None:
    """Another model in the place of the trained one: its last biases are shifted."""
    import torch

    from models.saved_model import load_model, save_model

    trained = in_use(run_dir, "train")
    model, spec = load_model(trained.folder / "hlf" / "model")
    *_, biases = model.parameters()
    with torch.no_grad():
        biases += torch.arange(len(biases)) * shift
    save_model(model, spec, trained.folder / "hlf" / "model")
    record_as_written(StageStore(run_dir, "train"), trained)


@pytest.mark.usefixtures("no_figures")
def test_killed_in_the_middle_of_evaluating_elsewhere(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    run_dir = finished_run.restore()
    out = tmp_path / "out"
    arguments = ("evaluate-files", "--out", str(out))
    # When it has begun, and when it has predicted; metrics and figures follow.
    for pattern in (".out.unfinished", ".out.unfinished/*/predictions.parquet"):
        process = finished_run.start(*arguments)
        wait_until(lambda pattern=pattern: any(tmp_path.glob(pattern)), label=f"{pattern} is there")  # type: ignore[misc]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
        assert not out.exists()
    finished_run.output_of(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (evaluated,) = run_dir.glob("evaluate/0*")
    (current,) = out.glob("*/predictions.parquet")
    (reference,) = evaluated.glob("*/predictions.parquet")
    assert pq.read_table(current).equals(pq.read_table(reference))
    numbers: list[Any] = [
        json.loads((folder / "metrics.json").read_text())["runs"] for folder in (out, evaluated)
    ]
    assert list(numbers[0].values()) == list(numbers[1].values())
    finished_run.assert_nothing_left()
