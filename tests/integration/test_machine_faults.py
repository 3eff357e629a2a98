"""Full disks, folders that cannot be written, two runs at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from finished_run import FinishedRun, change_times, wait_for_command
from lent_spark import command
from ranks import wait_until

from pipeline.machine.spark_session import SparkProvider

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

#: Half a gigabyte more than what `doctor` asks for.
DISK_MIB = 1500


@contextlib.contextmanager
def disk_at(folder: Path, mebibytes: int) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no disk of a chosen size can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def test_with_room_again_the_same_command_finishes_as_if_there_had_always_been(
    finished_run: FinishedRun,
) -> None:
    with disk_at(finished_run.run_dir, DISK_MIB):
        finished_run.restore("train")
        filler = finished_run.run_dir / "filler"
        # But for 8 KiB.
        fill = 'fallocate -l $(($(df --output=avail -B1 "$(dirname "$0")" | tail -1) - 8192)) "$0"'
        result = finished_run.run("train", faults={"at_begin": ["sh", "-c", fill, str(filler)]})
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


def test_a_disk_that_is_full_from_the_start_is_refused_before_anything_is_written(
    finished_run: FinishedRun, provider: SparkProvider
) -> None:
    with disk_at(finished_run.run_dir, 100):
        run_dir = finished_run.restore("evaluate")
        result = command(provider, "evaluate", "--config", finished_run.config)
        assert result.exit_code == 1
        assert "has 0.0" in result.stderr
        assert "Delete old runs" in result.stderr
        assert not (run_dir / "evaluate").exists()


@contextlib.contextmanager
def write_protected(folder: Path) -> Iterator[None]:
    """All folders from this one on cannot be written, by those who are not root."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o755)


#: Without root's power to write what is write-protected.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()


def test_a_run_folder_that_cannot_be_written_is_refused_by_what_writes(
    finished_run: FinishedRun,
) -> None:
    run_dir = finished_run.restore()
    (run_dir / ".lock").unlink()
    change_times_before = change_times(run_dir)
    with write_protected(run_dir):
        result = finished_run.run("run", through=AS_ANYBODY)
        assert result.returncode == 1, result.stderr
        assert f"{run_dir} cannot be written" in result.stderr
        assert "Permission denied" in result.stderr
        assert change_times(run_dir) == change_times_before
        # It can be read.
        result = finished_run.run("status", "--json", through=AS_ANYBODY)
        assert result.returncode == 0, result.stderr


def test_of_two_that_start_at_the_same_moment_one_runs(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    run_dir = finished_run.restore("export")
    files_before = set(run_dir.glob("logs/*"))
    gate = tmp_path / "gate"
    pair = [finished_run.start("export", faults={"wait_for": str(gate)}) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("gate.*"))) == 2, label="both are at the lock")
    gate.touch()
    ended = {process.pid: wait_for_command(process) for process in pair}
    (winner,) = [pid for pid, result in ended.items() if result.returncode == 0]
    (loser,) = set(ended) - {winner}
    assert ended[loser].returncode == 75, ended[loser].stderr
    assert f"in use by another run (process {winner})" in ended[loser].stderr
    # The other one has written nothing, not even to the log.
    (log,) = set(run_dir.glob("logs/*")) - files_before
    assert log.name.endswith(f"-{winner}.jsonl")
    finished_run.assert_same_result("export")
