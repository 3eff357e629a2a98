"""What becomes of the messages of mpirun and srun, and what ends a launcher whose ranks do not
come."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from feature_datasets import write_dataset
from ranks import wait_until
from training_runs import make_spec

from hep_core import plugins
from hep_core.allocation import memory_limit
from hep_core.input_errors import UnreachableFileError
from training.errors import LaunchError, StalledError
from training.launching import launcher, memory_use, mpirun, rank_reports
from training.launching.memory_use import MemoryWatch
from training.launching.rank_reports import LaunchFiles, RankError, StartLimit
from training.loop import watchdog
from training.settings import TrainSettings

#: A rank that does not come out of the start of MPI says this of itself.
PRESENT = json.dumps({"host": "host7", "pid": 1, "what": "does not come out of MPI"})
PROGRESS = json.dumps(
    {
        "run": 0,
        "epoch": 1,
        "num_epochs": 4,
        "step": 3,
        "num_steps": 10,
        "loss": 1.0,
        "samples_per_second": 1.0,
        "consensus_distance": 0.0,
    }
)
CRASH = "srun: error: host2: task 1: Segmentation fault"
#: What a launcher does in a start.
CRASH_IN_START = f"echo '{CRASH}' >&2; exit 139"
LOSS_IN_TRAINING = "touch out/started; exit 1"
COMPLETE = "echo '{}' > out/summary.json"
MEMORY_WARNING = "UCX WARN: cannot allocate memory for huge pages, others are used"


class ScriptedMpirun:
    """Launches of three ranks by scripts instead of mpirun.

    A script runs in a folder with the output folder `out` of the run.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.losses: list[str] = []
        self._folder = folder
        self._program = folder / "mpirun"
        rows = {"train": [40, 40], "val": [10], "test": [10]}
        self._dataset = write_dataset(folder / "data", rows=rows)
        monkeypatch.setattr(mpirun, "find_mpirun", lambda: self._program)
        monkeypatch.setattr(rank_reports, "_LEAST_SECONDS", 0.1)

    def launch(self, script: str, **settings: Any) -> None:
        """Launch by a script; messages about lost ranks go to `losses`."""
        self._program.write_text(f"#!/bin/sh\ncd {self._folder}\n{script}\n")
        self._program.chmod(0o755)
        run = make_spec(self._dataset, self._folder / "out", workers=3, **settings)
        launcher.launch(run, on_progress=lambda _: None, on_loss=self.losses.append)

    def launch_in_turn(self, *scripts: str, **settings: Any) -> None:
        """Launch by one script after the other: the first start runs the first one."""
        for number, script in enumerate(scripts, 1):
            (self._folder / f"script-{number}").write_text(script)
        self.launch("echo >> starts; . ./script-$(wc -l < starts)", **settings)

    def error_of(self, script: str, *, stall_seconds: float = 60.0) -> Exception:
        """The error of a launch by a script."""
        with pytest.raises((LaunchError, StalledError)) as error:
            self.launch(script, stall_seconds=stall_seconds)
        return error.value


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedMpirun:
    return ScriptedMpirun(tmp_path, monkeypatch)


def count_killed_processes(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    """Let the kernel report these numbers of processes killed for memory, one after the other."""
    remaining = iter(counts)
    monkeypatch.setattr(memory_use, "killed_for_memory", lambda: next(remaining))


def test_a_start_that_does_not_end_is_ended_and_names_the_missing_ranks(
    scripted: ScriptedMpirun,
) -> None:
    script = f"""
mkdir out/present out/signs
touch out/signs/rank-2
echo '{PRESENT}' > out/present/rank-1.json
exec sleep 1000"""

    message = str(scripted.error_of(script, stall_seconds=2.0))

    assert "the ranks did not start within 2 s" in message
    assert "rank 0: its process did not come" in message
    assert "rank 1 on host7: does not come out of MPI" in message
    # A rank that trains does not keep those that wait for the others.
    assert "rank 2" not in message


def test_a_launcher_that_is_killed_during_the_start_is_named(scripted: ScriptedMpirun) -> None:
    message = str(scripted.error_of("kill -9 $$"))

    assert message.startswith("mpirun was ended by signal 9 (Killed) while the ranks started")


def test_a_launcher_may_print_any_bytes(scripted: ScriptedMpirun) -> None:
    message = str(scripted.error_of(r"printf '\351\n'; printf 'h\351ros\n' >&2; exit 5"))

    assert message.startswith("the ranks did not start: status 5")
    assert "h\N{REPLACEMENT CHARACTER}ros" in message


@pytest.mark.parametrize(
    ("log", "awaited"),
    [
        ("", "rank 0: its process did not come, rank 1 on host7: does not come out of MPI"),
        (
            "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)\n",
            "; an earlier step of this job may still end on these nodes",
        ),
    ],
)
def test_a_long_start_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, awaited: str
) -> None:
    monkeypatch.setattr(rank_reports, "_SILENCE_SECONDS", 0.01)
    monkeypatch.setattr(rank_reports, "_LOOK_SECONDS", 0.01)
    files = LaunchFiles(tmp_path)
    files.log.write_text(log)
    files.present.mkdir()
    (files.present / "rank-1.json").write_text(PRESENT)
    messages: list[str] = []

    limit = StartLimit(files, TrainSettings(workers=2), stop=lambda: None, on_wait=messages.append)
    wait_until(lambda: len(messages) > 1, label="messages", seconds=60)
    limit.end()

    assert messages[0].startswith("for 0.01 s the start waits: ")
    assert messages[0].endswith(awaited)


@pytest.mark.parametrize("stopped_seconds", [60.0, 3600.0, 1e6])
def test_a_start_that_is_suspended_again_and_again_has_the_whole_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_seconds: float
) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    files = LaunchFiles(tmp_path)
    files.log.touch()
    stops: list[float] = []
    limit = StartLimit(
        files,
        TrainSettings(workers=2, stall_seconds=300.0),
        stop=lambda: stops.append(running_seconds[-1]),
    )
    running_seconds = [0.0]

    def run_and_stop(seconds: float) -> bool:
        """Wait in the place of the thread; after each 30 s the batch system stops the process."""
        running_seconds.append(running_seconds[-1] + seconds)
        clock.now += seconds
        if running_seconds[-1] % 30 == 0:
            clock.now += stopped_seconds
        return running_seconds[-1] > 1000

    monkeypatch.setattr(limit, "_is_over", SimpleNamespace(wait=run_and_stop))
    limit._watch()

    (seconds_until_stop,) = stops
    assert 0.9 * 300 <= seconds_until_stop <= 301


def test_a_rank_killed_for_memory_before_the_first_step_is_not_started_again(
    scripted: ScriptedMpirun, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_killed_processes(monkeypatch, 3, 4)

    message = str(scripted.error_of("touch out/started; exit 1"))

    assert message.startswith(f"the kernel has killed 1 process(es) for memory: {memory_limit()}")
    assert "No step was made" in message
    assert scripted.losses == []


def test_a_rank_killed_for_memory_after_steps_is_started_again(
    scripted: ScriptedMpirun, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_killed_processes(monkeypatch, *range(100))

    message = str(scripted.error_of(f"touch out/started; echo '{PROGRESS}'; exit 1"))

    assert len(scripted.losses) == TrainSettings().max_restarts
    assert "a rank was lost (the kernel has killed 1 process(es) for memory" in scripted.losses[0]
    assert "train.max_restarts" in message


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some steps were OOM Killed.",
        "srun: error: host2: task 1: Out Of Memory",
        "ImportError: libtorch_cpu.so: failed to map segment from shared object",
    ],
)
def test_a_lack_of_memory_in_the_log_is_named_with_the_limit(
    scripted: ScriptedMpirun, line: str
) -> None:
    message = str(scripted.error_of(f"touch out/started; echo '{line}' >&2; exit 137"))

    cause = f"a rank got no memory, or was killed for it ({line})"
    assert message.startswith(f"{cause}; here {memory_limit()}. No step")


def test_the_memory_of_each_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_killed_processes(monkeypatch, 0, 1)
    monkeypatch.setattr(memory_use, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    files = LaunchFiles(tmp_path)
    files.write_heartbeat("has begun")

    with MemoryWatch(files) as memory:
        wait_until(lambda: "rank 3 " in str(memory.largest()), label="a measurement", seconds=60)
    message = memory.kill(by_signal=False)

    mebibytes = message.partition("held up to [MiB]: rank 3 ")[2]
    assert 10 < int(mebibytes.replace(",", "")) < 100_000


@pytest.mark.parametrize(
    "end",
    ["exec sleep 1000", f"echo '{MEMORY_WARNING}' >&2; exit 137"],
    ids=["launcher that does not end", "line about memory"],
)
def test_ranks_that_report_a_stall_end_the_launch_as_a_stall(
    scripted: ScriptedMpirun, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(rank_reports, "_END_SECONDS", 0.1)

    error = scripted.error_of(f"mkdir out/stalls; {end}")

    assert isinstance(error, StalledError)


def test_a_line_about_memory_does_not_hide_a_failed_start(scripted: ScriptedMpirun) -> None:
    message = str(
        scripted.error_of(f"echo '{MEMORY_WARNING}' >&2; echo 'no option --bound' >&2; exit 1")
    )

    assert message.startswith("the ranks did not start: status 1")
    assert "no option --bound" in message


def test_a_rank_that_crashes_in_two_starts_ends_the_run(scripted: ScriptedMpirun) -> None:
    message = str(scripted.error_of(CRASH_IN_START))

    assert len(scripted.losses) == 1
    assert CRASH in scripted.losses[0]
    assert message.startswith(f"a rank was lost ({CRASH}), and then the ranks did not start")


@pytest.mark.parametrize(
    "starts",
    [
        [CRASH_IN_START, LOSS_IN_TRAINING],
        [LOSS_IN_TRAINING, CRASH_IN_START],
        [CRASH_IN_START, LOSS_IN_TRAINING, CRASH_IN_START],
    ],
    ids=["before", "after", "before and after"],
)
def test_a_crash_in_a_start_costs_one_restart_whatever_was_lost_before(
    scripted: ScriptedMpirun, starts: list[str]
) -> None:
    scripted.launch_in_turn(*starts, COMPLETE, max_restarts=len(starts))

    assert len(scripted.losses) == len(starts)


@pytest.mark.parametrize(
    "end",
    [
        f"touch out/started; {CRASH_IN_START}",
        "touch out/started; mkdir out/stalls; exit 1",
        CRASH_IN_START,
    ],
    ids=["crash", "standstill", "start not seen"],
)
def test_a_complete_training_stays_complete_though_its_ranks_end_badly(
    scripted: ScriptedMpirun, end: str
) -> None:
    scripted.launch(f"{COMPLETE}; {end}", max_restarts=0)

    (loss,) = scripted.losses
    assert "the results are complete" in loss
    assert "start again" not in loss


def test_an_error_of_a_rank_after_its_training_is_raised(scripted: ScriptedMpirun) -> None:
    error = RankError(known=True, diverged=False, damaged=False, message="no end", traceback="")

    error_text = json.dumps(error._asdict())
    write_error = f"mkdir out/errors; echo '{error_text}' > out/errors/rank-1.json"

    message = str(scripted.error_of(f"{COMPLETE}; {write_error}; exit 1"))

    assert message == "training failed on rank 1: no end"


def test_a_start_that_srun_ends_after_an_error_is_not_repeated(scripted: ScriptedMpirun) -> None:
    error = "ModuleNotFoundError: No module named mpi4py"
    log = (
        f"{error}\nsrun: error: host2: task 1: Exited with exit code 1\n"
        f"srun: Terminating StepId=7.0\nsrun: error: host1: tasks 0,2: Terminated"
    )

    message = str(scripted.error_of(f"echo '{log}' >&2; exit 1"))

    assert scripted.losses == []
    assert message.startswith(f"the ranks did not start: status 1: {error}")


def start_waiting_process(name: str) -> subprocess.Popen[bytes]:
    """A process with a name in its command line, which waits for the end of its input."""
    code = "import sys; sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE)


def test_ranks_that_outlive_their_launcher_are_ended_and_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LaunchFiles(tmp_path)
    rank_process = start_waiting_process("training.launching.rank_process")
    other_process = start_waiting_process("another")
    for rank, process in enumerate((rank_process, other_process)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        monkeypatch.setattr(os, "getpid", lambda process=process: process.pid)
        files.write_heartbeat("has begun")
    heartbeat = json.loads((files.present / "rank-1.json").read_text())

    files.end_ranks_here()

    assert heartbeat["host"] == socket.gethostname()
    assert not psutil.pid_exists(rank_process.pid)
    assert other_process.poll() is None
    rank_process.communicate()
    other_process.communicate()


def test_the_error_of_a_plugin_on_a_rank_names_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "method.py"
    plugin.write_text("def step():\n    return {}['rate']\n")
    module = plugins._import_file(plugin)
    monkeypatch.setitem(plugins._loaded, str(plugin), module)
    del sys.modules[module.__name__]
    with pytest.raises(KeyError) as key_error:
        module.step()

    error = RankError.from_exception(key_error.value)

    assert error.message == f"plugin {plugin}, line 2: KeyError: 'rate'"
    assert error.known
    assert "in step" in error.traceback


def test_a_server_that_does_not_answer_is_no_bug() -> None:
    error = RankError.from_exception(UnreachableFileError("s3://bucket/a: no answer"))

    with pytest.raises(LaunchError, match="rank 1: s3://bucket/a: no answer"):
        error.raise_again("training failed on rank 1")
