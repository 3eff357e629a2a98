"""What ranks and launcher report to each other: errors, and small files in the folder of a run."""

from __future__ import annotations

import json
import re
import shutil
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

from features.errors import FeatureError
from models.errors import ModelError
from training.errors import DivergedError, LaunchError, TrainingError

#: mpirun writes its messages between two such lines.
_RULE: Final = re.compile(r"^-{20,}\n", re.MULTILINE)
_KILLED_RANK: Final = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+(signal \d+ \([^)]*\))")
_LOST_DAEMON: Final = re.compile(r"daemon.*?Remote host:\s+(\S+)", re.DOTALL)
_LOST_PEER: Final = re.compile(r"peer process has unexpectedly disconnected.*?Peer host:\s+(\S+)", re.DOTALL)
_LOST_AGENT: Final = re.compile(r"^rank \d+ on \S+ is gone$|^a sum over the agents failed: .*", re.MULTILINE)
_LONGEST: Final = 300


def told_of_loss(log: str) -> str:
    """What mpirun or srun says of a lost rank, in one sentence; empty if they say nothing.

    Args:
        log: All that the launcher and the ranks wrote.

    Examples:
        >>> told_of_loss("srun: error: host2: task 1: Killed")
        'srun: error: host2: task 1: Killed'
    """
    if killed := _KILLED_RANK.search(log):
        rank, host, how = killed.groups()
        return f"rank {rank} on {host} ended by {how}"
    if agent := _LOST_AGENT.search(log):
        return agent[0][:_LONGEST]
    if daemon := _LOST_DAEMON.search(log):
        return f"mpirun lost its daemon on {daemon[1]}: the host is down, or the daemon or the ssh to it was ended"
    if peer := _LOST_PEER.search(log):
        return f"a rank on {peer[1]} broke off its connections"
    blocks = [part for part in _RULE.split(log)[1::2] if part.strip()]
    lines = (blocks[0] if blocks else log).strip().splitlines()
    if not blocks:
        # What came last, from the beginning of a line.
        lines = lines[-3:]
    words = " ".join(" ".join(lines).split())
    return words if len(words) <= _LONGEST else words[:_LONGEST].rpartition(" ")[0] + " ..."


def described(error: BaseException) -> dict[str, Any]:
    """An error in plain values, from which another process raises it again."""
    return {
        # A full disk, for example, is no bug of this program.
        "known": isinstance(error, TrainingError | ModelError | FeatureError | OSError),
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
    """`present/`, `errors/` and `stalls/rank-<n>.json`, `signs/rank-<n>`, `started`, `lost_ranks.jsonl`.

    Args:
        folder: Folder of the run.
    """

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
