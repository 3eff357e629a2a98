"""What ranks and launcher report to each other: errors, and small files in the folder of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil

from features.errors import FeatureError
from ingestion.plugins import PluginError, blamed
from models.errors import ModelError
from training.errors import DivergedError, LaunchError, TrainingError

#: mpirun writes its messages between two such lines.
RULE: Final = "-" * 60
_RULE: Final = re.compile(r"^-{20,}\n", re.MULTILINE)
_LONGEST: Final = 400
#: The modules that ranks run.
_PROGRAMS: Final = {"training.launching.rank_process", "training.agents.agent_process"}
_RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def told_of_loss(log: str) -> str:
    """What mpirun, srun or the driver of agents says of a lost rank, on one line; empty if they say nothing.

    Examples:
        >>> told_of_loss("srun: error: host2: task 1: Killed")
        'srun: error: host2: task 1: Killed'
    """
    blocks = [part for part in _RULE.split(log)[1::2] if part.strip()]
    lines = (blocks[0] if blocks else log).strip().splitlines()
    # Without a block: what came last, from the beginning of a line.
    words = " ".join(" ".join(lines if blocks else lines[-3:]).split())
    return words if len(words) <= _LONGEST else words[:_LONGEST].rpartition(" ")[0] + " ..."


def described(error: BaseException) -> dict[str, Any]:
    """An error in plain values, from which another process raises it again."""
    error = blamed(error) or error
    return {
        # A full disk, for example, is no bug of this program.
        "known": isinstance(error, TrainingError | ModelError | FeatureError | PluginError | OSError),
        "diverged": isinstance(error, DivergedError),
        "message": str(error) or type(error).__name__,
        "traceback": "".join(traceback.format_exception(error)),
    }


def raise_described(where: str, content: dict[str, Any]) -> NoReturn:
    """Raise what `described` gave.

    Raises:
        DivergedError: It is one.
        LaunchError: The user can fix the cause.
        RuntimeError: It is a bug of this program.
    """
    message = f"{where}: {content['message']}"
    if content["known"]:
        raise (DivergedError if content["diverged"] else LaunchError)(message)
    error = RuntimeError(message)
    error.add_note(content["traceback"])
    raise error


class LaunchFiles:
    """`present/`, `errors/` and `stalls/rank-<n>.json`, `signs/rank-<n>`, `started`, `lost_ranks.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._started = folder / "started"
        self._errors = folder / "errors"
        self.present = folder / "present"
        self.stalls = folder / "stalls"
        self.signs = folder / "signs"
        self._lost_ranks = folder / "lost_ranks.jsonl"

    def clear(self) -> None:
        """Remove all files except the losses, before each attempt."""
        self._started.unlink(missing_ok=True)
        for path in (self._errors, self.present):
            shutil.rmtree(path, ignore_errors=True)
        self.clear_stalls()

    def say_present(self, what: str) -> None:
        """Note how far the start of this rank is, as far as it knows its number before MPI has begun."""
        found = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
        # A host that does not see the folder says so later.
        with suppress(OSError):
            if found:
                self.present.mkdir(exist_ok=True)
                content = {"host": socket.gethostname(), "pid": os.getpid(), "what": what}
                path = self.present / f"rank-{found[0]}.json"
                path.with_suffix(".new").write_text(json.dumps(content), encoding="utf-8")
                path.with_suffix(".new").replace(path)

    def presence(self) -> dict[int, dict[str, Any]]:
        """What each rank has noted of its start: its host, process and how far it is."""
        paths = self.present.glob("rank-*.json")
        return {int(path.stem.removeprefix("rank-")): json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def end_ranks_here(self) -> None:
        """End the ranks on this host that outlive their launcher: they would write beside those of the next start."""
        for content in self.presence().values():
            if content["host"] == socket.gethostname():
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(content["pid"])
                    if _PROGRAMS & {*process.cmdline()}:
                        process.kill()
                        process.wait()

    def clear_stalls(self) -> None:
        """Remove the reports before the ranks begin to watch, since any report ends the job."""
        for path in (self.stalls, self.signs):
            shutil.rmtree(path, ignore_errors=True)

    def say_started(self) -> None:
        """All ranks have found each other."""
        self._started.touch()

    @property
    def has_started(self) -> bool:
        """Whether all ranks have started."""
        return self._started.exists()

    def report_error(self, rank: int, error: BaseException) -> None:
        """Write a rank's error."""
        self._errors.mkdir(exist_ok=True)
        unfinished = self._errors / f".rank-{rank}.json"
        unfinished.write_text(json.dumps(described(error)), encoding="utf-8")
        unfinished.replace(self._errors / f"rank-{rank}.json")

    def first_error(self) -> tuple[int, dict[str, Any]] | None:
        """The rank that failed first, and its error."""
        reports = sorted(self._errors.glob("rank-*.json"), key=lambda path: path.stat().st_mtime_ns)
        if not reports:
            return None
        return int(reports[0].stem.removeprefix("rank-")), json.loads(reports[0].read_text(encoding="utf-8"))

    def note_loss(self, words: str) -> None:
        """Record that a rank was lost."""
        with self._lost_ranks.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": words}) + "\n")

    def lost_ranks(self) -> list[str]:
        """Sentences about the losses so far."""
        if not self._lost_ranks.exists():
            return []
        return [json.loads(line)["what"] for line in self._lost_ranks.read_text(encoding="utf-8").splitlines()]
