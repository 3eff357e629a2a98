"""Ctrl-C at any moment ends a command in the same way and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console

from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.store import StageStore
from pipeline.stages.base import Context, Result
from pipeline.stages.ingest import Ingest

#: What a stage does when Ctrl-C comes.
WORK: Final = {
    # Spark's workers end too, and their failure may arrive first.
    "an error after it": """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
    except KeyboardInterrupt:
        raise RuntimeError("a worker ended") from None
""",
    # As some libraries do at their import.
    "swallowed": """
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        pass
""",
    "and once more at the end": """
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
""",
}
PROGRAM: Final = """
import atexit, os, signal, sys, time
from pipeline import cli
from pipeline.stages.base import Result
from pipeline.stages.ingest import Ingest

def run(stage, context):{work}
    return Result(summary="continued to the end")

Ingest.run = run
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
def test_an_interrupt_ends_a_stage_whatever_it_does_with_it(tmp_path: Path, work: str) -> None:
    program = PROGRAM.format(work=WORK[work])
    config = str(small_config(tmp_path, SAMPLES))

    completed = subprocess.run(
        [sys.executable, "-c", program, "ingest", "--config", config],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert completed.returncode == 130, completed.stderr
    assert "interrupted" in completed.stderr
    assert "bug" not in completed.stderr
    assert "continued" not in completed.stderr
    assert list((tmp_path / "run" / "ingest").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "pipeline.cli"])
def test_an_interrupt_during_the_imports_shows_no_traceback(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "pipeline", "plan"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.split("|")[-1].strip() == module)
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
    # The command may have ended before the signal came.
    assert process.returncode in {130, 0}, message
    assert "Traceback" not in message


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A runner whose ingest writes one file, without Spark."""

    def run(_: Ingest, context: Context) -> Result:
        (context.out_dir / "data").write_text("whole")
        return Result(summary="done")

    monkeypatch.setattr(Ingest, "needs", ())
    monkeypatch.setattr(Ingest, "run", run)
    return Runner(RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True)))


@pytest.mark.parametrize(
    ("step", "is_done"),
    [("create", True), ("commit", False), ("commit", True)],
    ids=["created", "not published", "published"],
)
def test_an_interrupt_leaves_no_folder_but_a_published_version(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    original = getattr(StageStore, step)

    def interrupted(*args: Any, **options: Any) -> None:
        if is_done:
            original(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(StageStore, step, interrupted)

    with pytest.raises(KeyboardInterrupt):
        runner.run(["ingest"])

    current = StageStore(tmp_path / "run", "ingest").current()
    if step == "commit" and is_done:
        assert current is not None
        assert (current.folder / "data").read_text() == "whole"
    else:
        assert current is None
        assert list((tmp_path / "run" / "ingest").iterdir()) == []
