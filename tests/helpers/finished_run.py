"""A finished run, and stages of it that are killed, started again and compared with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import SAMPLES, in_use, invoke, small_config, version_of
from filelock import FileLock
from ranks import wait_until

from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.store import StageStore

#: The grid search is at the side of the others.
SETTINGS: Final = {
    "gridsearch": {"hidden": [[4, 8]], "batch_size": [64], "epochs": [2], "folds": 2},
    # Ranks need a second to load petastorm, and get the same batches from Arrow.
    "train": {"workers": 2, "epochs": 3, "batch_size": 8, "checkpoint_steps": 5, "reader": "arrow"},
}
#: In the order in which they run.
STAGES: Final = ("ingest", "features", "gridsearch", "train", "evaluate", "export", "report")
ROOT: Final = Path(__file__).resolve().parents[2]
#: Runs stages that no single command includes, on one Spark: `run` leaves out a search that no
#: network asks for. Files of figures stay empty.
ALL_STAGES: Final = f"""
import sys
sys.path.append({str(ROOT / "tests" / "helpers")!r})
import pytest
from lent_spark import with_brief_timing, without_figures
from pipeline.command_line import CliOptions
from pipeline.commands.run import run
patch = pytest.MonkeyPatch()
without_figures(patch)
with_brief_timing(patch)
run(CliOptions(sys.argv[1], []).run_folder(), sys.argv[2:])
"""
#: Which processes are ours, in their environment.
MARK: Final = "HEP_PIPELINE_FINISHED_RUN"
#: Keys of JSON whose values are times, digests of these, or tell how the work was shared.
_TIMES: Final = frozenset(
    {
        "created",
        "seconds",
        "latency",
        "latency_us",
        "events_per_second",
        "speed_up",
        "training_seconds",
        "trainings_taken_over",
        "per_rank",
        "consensus_distance",
        "seal",
    }
)


class FinishedRun:
    """A finished run of a small config; its run folder can be put back to before any stage.

    Cases work in `folder`. In `shared` the run is kept as it was when it had finished: the first of
    several test processes makes it, the others wait for it. `seconds`: about how long each stage
    takes as a command of its own.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        for name in ("qcd", "ttbar", "wjets"):
            # With its time: files of another time are read to see whether they changed.
            shutil.copy2(SAMPLES / f"{name}_13TeV_PU20_0.root", self.data)
        self.config = small_config(folder, self.data, **SETTINGS)
        self.run_dir = folder / "run"
        self.mark = uuid.uuid4().hex
        self._saved = shared / "run"
        times = shared / "seconds.json"
        with FileLock(shared.with_suffix(".lock")):
            if not times.exists():
                seconds = self._run_all()
                shared.mkdir()
                self.run_dir.rename(self._saved)
                times.write_text(json.dumps(seconds))
        self.seconds: dict[str, float] = json.loads(times.read_text())
        self.restore()

    def _run_all(self) -> dict[str, float]:
        started = time.monotonic()
        result = wait_for_command(
            self._start("-c", ALL_STAGES, str(self.config), *STAGES), seconds=800
        )
        assert result.returncode == 0, result.stderr
        seconds = {stage: in_use(self.run_dir, stage).manifest.seconds for stage in STAGES}
        start = time.monotonic() - started - sum(seconds.values())
        # Most of the first stage is the start of Spark, which each command needs for itself.
        for stage in ("features", "gridsearch"):
            seconds[stage] += seconds["ingest"]
        return {stage: start + stage_seconds for stage, stage_seconds in seconds.items()}

    def copy(self, folder: Path) -> Path:
        """Copy data and finished run to another folder, which gets its own config; returns that."""
        shutil.copytree(self.data, folder / "data")
        shutil.copytree(self._saved, folder / "run")
        return small_config(folder, folder / "data", **SETTINGS)

    def restore(self, state_before: str | None = None) -> Path:
        """Put the run folder back, without the output of a stage and later ones; returns it."""
        if self.run_dir.exists():
            # Not the folder itself: a disk may be mounted there.
            for path in self.run_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._saved, self.run_dir, dirs_exist_ok=True)
        for stage in STAGES[STAGES.index(state_before) if state_before else len(STAGES) :]:
            shutil.rmtree(self.run_dir / stage)
        return self.run_dir

    def start(
        self, *arguments: str, faults: Mapping[str, Any] | None = None, through: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a command in a process group of its own; `through`: the command that starts it."""
        program = ["-m", "pipeline"]
        if faults is not None:
            program = [str(ROOT / "tests" / "helpers" / "fault_child.py"), json.dumps(faults)]
        return self._start(*program, *arguments, "--config", str(self.config), through=through)

    def _start(self, *arguments: str, through: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*through, sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)},
        )

    def start_and_wait_for_work(self, stage: str, *options: str) -> subprocess.Popen[str]:
        """Start a stage; return when its version folder is there and the work has begun."""
        folder = self.run_dir / stage
        files_before = set(folder.glob("0*"))
        process = self.start(stage, *options)
        wait_until(lambda: bool(set(folder.glob("0*")) - files_before), label=f"{stage} has begun")
        return process

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; see `start`."""
        return wait_for_command(self.start(*arguments, **options))

    def output_of(self, *arguments: str | Path) -> str:
        """The output of a command in this process, which spares the imports; none starts Spark."""
        result = invoke(*arguments, "--config", self.config)
        assert result.exit_code == 0, result.output
        return str(result.output)

    def kill(self, stage: str, seed: int) -> str:
        """Kill a stage at a random moment of its usual duration; returns when it was."""
        random = np.random.default_rng([seed, *stage.encode()])
        moment = float(random.uniform(0, self.seconds[stage]))
        process = self.start(stage)
        started = time.monotonic()
        try:
            process.wait(timeout=moment)
            # The first time, kernels may have had to be compiled.
            self.seconds[stage] = time.monotonic() - started
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
        return f"{stage}, seed {seed}: killed after {moment:.2f} of {self.seconds[stage]:.2f} s"

    def assert_same_result(self, stage: str) -> None:
        """The stage's result is that of the finished run, and nothing else is left.

        Raises:
            AssertionError: It is not so; says what differs.
        """
        current, reference = version_of(self.run_dir, stage), version_of(self._saved, stage)
        assert_same_version(
            current,
            reference,
            stage,
            tests=sorted(version_of(self._saved, "features").glob("test/*.parquet")),
        )
        folders = sorted(path.name for path in (self.run_dir / stage).iterdir())
        kernels = [KERNELS] if stage == "features" else []
        assert folders == sorted([current.name, "current.json", *kernels])
        if kernels:
            assert [path.name for path in (self.run_dir / stage / KERNELS).iterdir()] == [
                current.name
            ]
            assert StageStore(self.run_dir, stage).unused_kernel_outputs() == {}
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        """No temporary file, and within half a minute no process."""
        hidden = [str(path) for path in self.run_dir.rglob(".*") if not path.name.endswith(".lock")]
        assert hidden == []
        assert [path for path in self.run_dir.rglob("*.new") if path.is_file()] == []
        wait_until(lambda: not self.processes(), label="all processes are gone")

    def processes(self) -> list[psutil.Process]:
        """All that live and were started by this run, Spark's and MPI's too."""
        living = []
        for process in psutil.process_iter(["environ", "status"]):
            environment = process.info["environ"] or {}
            is_zombie = process.info["status"] == psutil.STATUS_ZOMBIE
            if environment.get(MARK) == self.mark and not is_zombie:
                living.append(process)
        return living


def wait_for_command(
    process: subprocess.Popen[str], *, seconds: float = 240
) -> subprocess.CompletedProcess[str]:
    """Wait for a command; after the time limit, its processes are killed and the test fails."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def change_times(folder: Path) -> dict[str, int]:
    """All files and folders with the time at which each was changed."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))
    }


def assert_same_version(
    current: Path, reference: Path, stage: str, *, tests: Sequence[Path]
) -> None:
    """Two versions hold the same; `tests` are the events on which exported networks are compared.

    Raises:
        AssertionError: They do not; names the file.
    """
    names = files_of(reference, stage)
    assert files_of(current, stage) == names, f"{stage}: other files"
    for name in names:
        read = _reader_of(name, tests)
        if read is not None:
            assert read(current / name) == read(reference / name), f"{stage}: {name} differs"


def _reader_of(name: str, tests: Sequence[Path]) -> Callable[[Path], Any] | None:
    """The function that reads what a file must share with that of another run; None: nothing."""
    path = Path(name)
    if path.suffix == ".parquet":
        read_table: Callable[[Path], pa.Table] = pq.read_table
        return read_table
    if path.name in {"weights.pt", "cutflow.txt"}:
        return Path.read_bytes
    if path.name == "model.onnx":
        return lambda onnx: _probabilities(onnx, tests)
    if path.suffix == ".json" and path.name not in {"manifest.json", "run.json"}:
        return lambda document: without_times(json.loads(document.read_text()))
    return None


def files_of(folder: Path, stage: str) -> list[str]:
    """Files of a version by relative path; of a training those that other stages read."""
    patterns = ["**/*"]
    if stage == "train":
        patterns = ["*/model/*", "*/summary.json", "*/run.json", "manifest.json"]
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(str(path.relative_to(folder)) for path in paths)


def without_times(document: Any) -> Any:
    """JSON without the values that differ between runs."""
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if key not in _TIMES}
    if isinstance(document, list):
        return [without_times(element) for element in document]
    return document


def _probabilities(path: Path, tests: Sequence[Path]) -> pa.Table:
    from models.export.onnx_classifier import OnnxClassifier
    from models.prediction import predict

    return predict(OnnxClassifier.load(path), tests)
