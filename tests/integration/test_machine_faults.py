"""Full disks, folders that cannot be written, two runs at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disks import disk_at
from finished_run import FinishedRun, change_times, wait_for_command
from lent_spark import command
from ranks import wait_until

from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

#: Half a gigabyte more than `doctor` asks for.
DISK_MIB = 1500
#: Fills the disk of the file in `$0` but for 8 KiB.
FILL = 'fallocate -l $(($(df --output=avail -B1 "$(dirname "$0")" | tail -1) - 8192)) "$0"'
#: Without root's power to write into write-protected folders.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()


def test_a_stage_that_met_a_full_disk_gives_the_undisturbed_result_once_there_is_room(
    finished_run: FinishedRun,
) -> None:
    with disk_at(finished_run.run_dir, DISK_MIB):
        finished_run.restore("train")
        filler = finished_run.run_dir / "filler"

        result = finished_run.run("train", faults={"at_begin": ["sh", "-c", FILL, str(filler)]})

        assert result.returncode == 1, result.stderr
        (error,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        assert "No space left on device" in error
        assert "Check space and permissions" in error
        # Nothing was published, and nothing half-made is there.
        assert list((finished_run.run_dir / "train").iterdir()) == []
        finished_run.assert_nothing_left()

        filler.unlink()
        finished_run.output_of("train")
        finished_run.assert_same_result("train")


def test_a_disk_without_room_is_refused_before_anything_is_written(
    finished_run: FinishedRun, provider: SparkProvider
) -> None:
    with disk_at(finished_run.run_dir, 100):
        run_dir = finished_run.restore("evaluate")

        result = command(provider, "evaluate", "--config", finished_run.config)

        assert result.exit_code == 1
        assert "has 0.0" in result.stderr
        assert "Delete old runs" in result.stderr
        assert not (run_dir / "evaluate").exists()


@contextmanager
def write_protected(folder: Path) -> Iterator[None]:
    """Nobody but root can write into a folder and those below it."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o755)


def test_a_write_protected_run_folder_is_refused_for_writing_and_can_be_read(
    finished_run: FinishedRun,
) -> None:
    run_dir = finished_run.restore()
    (run_dir / ".lock").unlink()
    change_times_before = change_times(run_dir)

    with write_protected(run_dir):
        run = finished_run.run("run", through=AS_ANYBODY)
        change_times_after = change_times(run_dir)
        status = finished_run.run("status", "--json", through=AS_ANYBODY)

    assert run.returncode == 1, run.stderr
    assert f"{run_dir} cannot be written" in run.stderr
    assert "Permission denied" in run.stderr
    assert change_times_after == change_times_before
    assert status.returncode == 0, status.stderr


def test_one_of_two_runs_that_start_at_the_same_moment_runs(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    run_dir = finished_run.restore("export")
    logs_before = set(run_dir.glob("logs/*"))
    gate = tmp_path / "gate"
    processes = [finished_run.start("export", faults={"wait_for": str(gate)}) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("gate.*"))) == 2, label="both are at the lock")

    gate.touch()
    results = {process.pid: wait_for_command(process) for process in processes}

    winner, loser = sorted(results, key=lambda pid: results[pid].returncode)
    assert results[winner].returncode == 0, results[winner].stderr
    assert results[loser].returncode == 75, results[loser].stderr
    assert f"in use by another run (process {winner})" in results[loser].stderr
    # The loser has written nothing, not even to the log.
    (log,) = set(run_dir.glob("logs/*")) - logs_before
    assert log.name.endswith(f"-{winner}.jsonl")
    finished_run.assert_same_result("export")
