"""The command line and the run folder: locks, waiting, and exit codes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from command_line import SAMPLES, invoke, small_config

from pipeline.command_line import CliOptions
from pipeline.commands.promote import PromotionOutcome
from pipeline.errors import FolderInUseError
from pipeline.runs.lock import locked
from pipeline.terminal.exit_codes import Exit

#: Asks for the stage `simulate`.
PROCESSES = ["--set", "simulate.processes=[{name: ttbar}]"]


@pytest.mark.slow
def test_a_command_waits_for_the_run_folder_and_then_gives_up(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), [], wait=0.2).run_folder()

    start = time.monotonic()
    with (
        locked(tmp_path / "run"),
        pytest.raises(FolderInUseError, match="in use by another run"),
        run_folder.locked(),
    ):
        pytest.fail("two commands hold the run folder")

    assert time.monotonic() - start >= 0.2


@pytest.mark.slow
def test_a_command_that_waits_gets_the_run_folder_when_it_is_free(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), [], wait=10).run_folder()
    is_held, is_released = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            is_held.set()
            is_released.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)
    threading.Timer(0.1, is_released.set).start()

    with run_folder.locked():
        assert is_released.is_set()
    holder.join()


def test_side_jobs_and_the_nightly_run_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run_folder = CliOptions(str(small_config(tmp_path, SAMPLES)), []).run_folder()

    with (
        run_folder.locked("track"),
        run_folder.locked(),
        pytest.raises(FolderInUseError),
        run_folder.locked("track"),
    ):
        pytest.fail("the job runs twice at once")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "exit_codes", "needs_lock"),
    [
        ("status", {Exit.OK}, False),
        ("status --verify", {Exit.OK}, False),
        ("plan", {Exit.OK}, False),
        ("run --dry-run", {Exit.OK}, False),
        ("clean --dry-run", {Exit.OK}, False),
        ("clean", {Exit.MAY_PASS}, True),
        ("ingest", {Exit.MAY_PASS}, True),
        ("promote", {Exit.MAY_PASS}, True),
        # Their input does not exist, and they do not need the lock.
        ("compare", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
        ("evaluate-files", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
        ("track --set mlflow.uri=runs", {Exit.USER_ERROR, Exit.NOT_THERE_YET}, False),
    ],
)
def test_only_commands_that_write_stages_or_models_need_the_run_folder(
    tmp_path: Path, command: str, exit_codes: set[Exit], needs_lock: bool
) -> None:
    with locked(tmp_path / "run"):
        result = invoke(*command.split(), "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code in exit_codes, result.stderr
    assert ("in use by another run" in result.stderr) == needs_lock


@pytest.mark.parametrize(
    ("command", "files", "exit_code"),
    [
        ("ingest", "incoming/*.root", Exit.NOT_THERE_YET),
        ("validate", "incoming/*.root", Exit.NOT_THERE_YET),
        # Nobody waits for a name that is mistyped.
        ("ingest", "incomming/*.root", Exit.USER_ERROR),
        ("ingest", "incoming/qcd.root", Exit.USER_ERROR),
    ],
)
def test_files_that_may_still_come_have_an_exit_code_of_their_own(
    tmp_path: Path, command: str, files: str, exit_code: Exit
) -> None:
    (tmp_path / "incoming").mkdir()
    override = f"samples.0.files=[{tmp_path / files}]"

    result = invoke(command, "--set", override, "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == exit_code, result.stderr


@pytest.mark.parametrize(
    ("command", "did_something", "exit_code"),
    [
        (["train", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["report", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["train", "--exit-code"], True, Exit.OK),
        (["train"], False, Exit.OK),
        (["gridsearch", "--if-wanted"], False, Exit.OK),
        (["gridsearch", "--if-wanted", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code"], True, Exit.NOTHING_TO_DO),
        (["simulate", "--if-wanted", "--exit-code", *PROCESSES], True, Exit.OK),
        (["promote", "--exit-code"], False, Exit.NOTHING_TO_DO),
        (["promote", "--exit-code"], True, Exit.OK),
    ],
)
def test_with_exit_code_a_command_that_had_nothing_to_do_ends_with_99(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    did_something: bool,
    exit_code: Exit,
) -> None:
    outcomes = [PromotionOutcome("hlf", promoted=did_something, reason="")]
    monkeypatch.setattr("pipeline.commands.run.run", lambda *_, **__: did_something)
    monkeypatch.setattr("pipeline.commands.promote.promote", lambda *_, **__: outcomes)

    result = invoke(*command, "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == exit_code, result.stderr


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpirun"),
        ({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"}, "srun"),
    ],
)
def test_a_command_that_a_launcher_starts_several_times_is_refused_before_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], launcher: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    with locked(tmp_path / "run"):
        result = invoke("train", "--config", small_config(tmp_path, SAMPLES))

    assert result.exit_code == Exit.USER_ERROR
    assert f"{launcher} started this command as one of" in result.stderr
    assert f"without {launcher}: `train` starts its own" in result.stderr
