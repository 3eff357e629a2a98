"""Ctrl-C, and kill -9 at random moments and at each step of a publication; then the same command.

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
def test_a_stage_that_was_interrupted_and_killed_twice_gives_the_undisturbed_result(
    finished_run: FinishedRun, provider: SparkProvider, stage: str, fault_seed: int
) -> None:
    finished_run.restore(stage)
    interrupt(finished_run, stage)
    # The second kill comes at once, whatever of the first run still lives.
    first_kill = finished_run.kill(stage, 2 * fault_seed)
    second_kill = finished_run.kill(stage, 2 * fault_seed + 1)

    result = command(provider, stage, "--config", finished_run.config)

    assert result.exit_code == 0, f"{first_kill}\n{second_kill}\n{result.stderr}"
    finished_run.assert_same_result(stage)


def interrupt(finished_run: FinishedRun, stage: str) -> None:
    """Ctrl-C in a terminal, which goes to the whole group; it leaves only work to continue."""
    process = finished_run.start_and_wait_for_work(stage)
    os.killpg(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=120)
    assert process.returncode == Exit.INTERRUPTED, output
    assert "interrupted" in output
    assert "Traceback" not in output
    for path in (finished_run.run_dir / stage).iterdir():
        assert STAGE_OF[stage].can_continue(path), path
    finished_run.assert_nothing_left()


def run_and_kill(finished_run: FinishedRun, *arguments: str, step: int) -> None:
    """Run a command that kills itself at a step of its publication."""
    result = finished_run.run(*arguments, faults={"kill_at": step})
    assert result.returncode == -signal.SIGKILL, result.stderr


def test_a_version_that_is_complete_before_a_kill_is_put_in_use(
    finished_run: FinishedRun,
) -> None:
    finished_run.restore("report")
    run_and_kill(finished_run, "report", step=COMPLETE + 1)
    assert StageStore(finished_run.run_dir, "report").current() is None

    output = finished_run.output_of("report")

    assert "up to date" in output
    finished_run.assert_same_result("report")


@pytest.mark.parametrize("step", range(len(STEPS) + 1), ids=["at the beginning", *STEPS])
def test_a_kill_while_a_model_is_published_leaves_a_whole_one_in_use(
    finished_run: FinishedRun, step: int
) -> None:
    run_dir = finished_run.restore()
    registry = Registry(run_dir, "hlf")
    run_and_kill(finished_run, "promote", step=step)
    has_model_in_use = registry.current() is not None

    output = finished_run.output_of("promote")

    assert has_model_in_use == (step >= IN_USE)
    # A complete one only waits for the pointer, which the next command sets.
    assert ("it is in use already" in output) == (step >= COMPLETE)
    model = registry.current()
    assert model is not None
    names = sorted(path.name for path in registry.folder.iterdir())
    assert names == [model.name, "current.json"]
    trained = version_of(run_dir, "train") / "hlf"
    exported = version_of(run_dir, "export") / "hlf"
    weights = Path("model", "weights.pt")
    assert (model.folder / weights).read_bytes() == (trained / weights).read_bytes()
    assert (model.folder / "model.onnx").read_bytes() == (exported / "model.onnx").read_bytes()
    finished_run.assert_nothing_left()


def test_a_rollback_skips_a_model_that_a_kill_kept_from_use(
    finished_run: FinishedRun,
) -> None:
    run_dir = finished_run.restore()
    registry = Registry(run_dir, "hlf")
    finished_run.output_of("promote")
    first = registry.current()
    assert first is not None
    replace_trained_model(run_dir, shift=1.0)
    run_and_kill(finished_run, "promote", "--force", step=4)
    assert len(registry.complete()) == 2
    assert registry.current() == first
    replace_trained_model(run_dir, shift=2.0)
    finished_run.output_of("promote", "--force")
    assert len(registry.complete()) == 2

    output = finished_run.output_of("rollback", "hlf")

    assert f"{first.name} is in use again" in output


def replace_trained_model(run_dir: Path, *, shift: float) -> None:
    """Shift the last biases of the trained model."""
    import torch

    from models.saved_model import load_model, save_model

    trained = in_use(run_dir, "train")
    model, spec = load_model(trained.folder / "hlf" / "model")
    biases = list(model.parameters())[-1]
    with torch.no_grad():
        biases += torch.arange(len(biases)) * shift
    save_model(model, spec, trained.folder / "hlf" / "model")
    record_as_written(StageStore(run_dir, "train"), trained)


@pytest.mark.usefixtures("no_figures")
def test_evaluate_files_gives_its_result_after_kills_at_the_start_and_after_the_prediction(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    run_dir = finished_run.restore()
    out = tmp_path / "out"
    arguments = ("evaluate-files", "--out", str(out))
    start_and_kill(finished_run, tmp_path, ".out.unfinished", arguments)
    start_and_kill(finished_run, tmp_path, ".out.unfinished/*/predictions.parquet", arguments)
    assert not out.exists()

    finished_run.output_of(*arguments)

    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (evaluated,) = run_dir.glob("evaluate/0*")
    (predictions,) = out.glob("*/predictions.parquet")
    (expected_predictions,) = evaluated.glob("*/predictions.parquet")
    assert pq.read_table(predictions).equals(pq.read_table(expected_predictions))
    assert metrics_of_runs(out) == metrics_of_runs(evaluated)
    finished_run.assert_nothing_left()


def start_and_kill(
    finished_run: FinishedRun, folder: Path, pattern: str, arguments: tuple[str, ...]
) -> None:
    """Kill a command as soon as a file of a pattern is there."""
    process = finished_run.start(*arguments)
    wait_until(lambda: any(folder.glob(pattern)), label=f"{pattern} is there")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)


def metrics_of_runs(folder: Path) -> list[Any]:
    """The metrics of all models, whatever they are called."""
    metrics = json.loads((folder / "metrics.json").read_text())
    return list(metrics["runs"].values())
