"""The files of a run: records of each rank, the best model, checkpoints.

Each rank writes its own record of an epoch when it is done with it. What concerns all is in the record of the rank that
found it out; `merged` brings them together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hep_core.atomic_files import new_file
from training.errors import LaunchError
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint, CheckpointFolder

#: Among the files of a run.
FOLDER: Final = "tensorboard"
_SHOWN: Final = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "learning_rate",
    "consensus_distance",
    "wait_seconds",
    "seconds",
)


Record = dict[str, Any]
"""What a worker did in an epoch."""


def scalars_writer(folder: Path) -> Any:
    """Writes numbers into a folder for `tensorboard --logdir`."""
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an optional package
    except ImportError as cause:
        raise LaunchError(
            "train.tensorboard needs the package tensorboardX: `pip install tensorboardX`, or set it to false."
        ) from cause
    return SummaryWriter(str(folder))


#: What one rank found out about all, in its record of an epoch.
_OF_ALL: Final = (
    "train_rows",
    "samples_seen_by_all",
    "consensus_distance",
    "val_loss",
    "val_accuracy",
)


def merge_records(ranks: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """The records of all ranks, each with what the ranks have in common, up to the last epoch that was validated.

    Examples:
        >>> sums = {"loss": 1.0, "weight": 2.0, "correct": 1.0}
        >>> first = {"epoch": 0, "samples": 2, "sums": sums, "val_loss": 0.5}
        >>> second = {"epoch": 0, "samples": 3, "sums": sums}
        >>> [(each["samples_all_ranks"], each["val_loss"]) for (each,) in merge_records([[first], [second]])]
        [(5, 0.5), (5, 0.5)]
    """
    epochs: dict[int, list[Record]] = {}
    for record in (record for records in ranks for record in records):
        epochs.setdefault(record["epoch"], []).append(record)
    common: dict[int, Record] = {}
    best = (math.inf, -1)
    for epoch, records in sorted(epochs.items()):
        known = next((record for record in records if "val_loss" in record), None)
        if known is None:
            break
        # The totals of an epoch that ended before a rank was lost are known already.
        totals = next(
            (record for record in records if "samples_all_ranks" in record), None
        ) or _totals(records)
        best = min(best, (known["val_loss"], epoch))
        common[epoch] = {name: known[name] for name in _OF_ALL if name in known} | {
            **{
                name: totals[name] for name in ("samples_all_ranks", "train_loss", "train_accuracy")
            },
            "best_epoch": best[1],
        }
    return [
        [record | common[record["epoch"]] for record in records if record["epoch"] in common]
        for records in ranks
    ]


def drop_warmup_epochs(records: Sequence[Record]) -> Sequence[Record]:
    """The epochs of a worker that count for timing: not the first, nor the last, if there are others.

    The last has the wait for the end, at which also the worker that validates arrives.
    """
    return records[1:-1] or records[1:] or records


def _totals(records: Sequence[Record]) -> Record:
    loss, weight, correct = (
        sum(record["sums"][name] for record in records) for name in ("loss", "weight", "correct")
    )
    return {
        "samples_all_ranks": sum(record["samples"] for record in records),
        "train_loss": loss / weight if weight else math.nan,
        "train_accuracy": correct / weight if weight else math.nan,
    }


def read_records(out_dir: Path) -> list[list[Record]]:
    """The records of each rank, epoch by epoch, with what they have in common."""
    paths = sorted((out_dir / "metrics").glob("rank-*.jsonl"), key=_rank_of)
    # A rank may be writing the last line.
    ranks = [path.read_text(encoding="utf-8").splitlines(keepends=True) for path in paths]
    return merge_records(
        [[json.loads(line) for line in lines if line.endswith("\n")] for lines in ranks]
    )


def _rank_of(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write the records of a rank, one on each line."""
    with new_file(path) as unfinished:
        unfinished.write_text(
            "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
        )


class DiskFiles:
    """Files on disk: `metrics/rank-<n>.jsonl` (one line per epoch, flushed at once), the best model, `checkpoints/`.

    `digest`: see `training.loop.checkpoints.settings_digest`. `scalars`: of `scalars_writer`; None for none.
    """

    def __init__(
        self,
        out_dir: Path,
        *,
        rank: int,
        world_size: int,
        digest: str,
        save_model: Callable[[ModelState], None],
        scalars: Any = None,
    ) -> None:
        self._metrics = out_dir / "metrics" / f"rank-{rank}.jsonl"
        self._metrics.parent.mkdir(exist_ok=True)
        self._rank, self._world_size = rank, world_size
        self.save_best = save_model
        """Keeps the best model of the run; only the worker that has it calls."""
        self._scalars = scalars
        self._shown = 0
        self.checkpoints: CheckpointFolder = CheckpointFolder(out_dir / "checkpoints", digest)

    def begin(
        self, history: Sequence[Record], position: tuple[int, int], resume: Checkpoint | None
    ) -> None:
        """Begin a run, or resume it after these records at a position: an epoch, and steps or rows of it.

        The records replace those that an interrupted run wrote after its checkpoint.
        """
        write_records(self._metrics, history)
        if self._rank == 0:
            self.checkpoints.forget_after(position, resume)
            for path in self._metrics.parent.glob("rank-*.jsonl"):
                if _rank_of(path) >= self._world_size:
                    path.unlink()

    def record(self, record: Record) -> None:
        """Add an epoch's record."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._show()

    def _show(self) -> None:
        """Write the epochs that are new for TensorBoard, of those that all ranks have recorded."""
        if self._scalars is not None:
            ranks = read_records(self._metrics.parents[1])
            recorded = min(records[-1]["epoch"] if records else -1 for records in ranks)
            for record in ranks[0][self._shown :]:
                if record["epoch"] <= recorded:
                    for name in _SHOWN:
                        self._scalars.add_scalar(name, record[name], record["epoch"])
                    self._shown += 1
            self._scalars.flush()

    def close(self) -> None:
        """Close the files after the end of all ranks."""
        if self._scalars is not None:
            self._show()
            self._scalars.close()


class MemoryFiles:
    """The same in memory: records and the best model, without files on disk."""

    checkpoints: CheckpointFolder | None = None

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.best: ModelState | None = None

    def begin(self, history: Sequence[Record], *_: object) -> None:
        """Begin after these records."""
        self.records = list(history)

    def record(self, record: Record) -> None:
        """Add an epoch's record."""
        self.records.append(record)

    def save_best(self, state: ModelState) -> None:
        """Keep the best model of the run."""
        self.best = state


RunFiles = DiskFiles | MemoryFiles
"""Storage of one worker's results."""
