"""The files of a run: records of each rank, the best model, checkpoints.

Each rank writes its own record of an epoch when it has finished the epoch. The rank that validates
adds the results that concern all ranks; `merge_records` copies them to the records of all.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from hep_core.atomic_files import new_file
from training.errors import LaunchError
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint, CheckpointFolder
from training.readers.units import Position

TENSORBOARD: Final = "tensorboard"
"""Folder of the scalars, among the files of a run."""
#: Numbers of a merged record that TensorBoard shows.
_SCALARS: Final = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "learning_rate",
    "consensus_distance",
    "wait_seconds",
    "seconds",
)
#: Results that one rank finds for all ranks.
_VALIDATION: Final = (
    "train_rows",
    "samples_seen_by_all",
    "consensus_distance",
    "val_loss",
    "val_accuracy",
)

Record = dict[str, Any]
"""A worker's epoch, from `EpochStats.record` and the validation.

The value of `counted` is a list of the names of the method's counters, which are keys too.
"""


def open_scalars_writer(folder: Path) -> Any:
    """Open a writer of numbers into a folder for `tensorboard --logdir`.

    Raises:
        LaunchError: The package tensorboardX is not installed.
    """
    try:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an optional package
    except ImportError as cause:
        raise LaunchError(
            "train.tensorboard needs the package tensorboardX: `pip install tensorboardX`, "
            "or set it to false."
        ) from cause
    return SummaryWriter(str(folder))


def merge_records(ranks: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Add to the records of all ranks their common results, up to the last validated epoch.

    One rank validates an epoch, and its record has the results. They are copied to the records of
    the other ranks, with the totals of all ranks and the number of the best epoch so far. Epochs
    from the first without a validation are left out.

    `ranks`: the records of each rank, epoch by epoch.

    Examples:
        >>> sums = {"loss": 1.0, "weight": 2.0, "correct": 1.0}
        >>> first = {"epoch": 0, "samples": 2, "sums": sums, "val_loss": 0.5}
        >>> second = {"epoch": 0, "samples": 3, "sums": sums}
        >>> merged = merge_records([[first], [second]])
        >>> [(record["samples_all_ranks"], record["val_loss"]) for (record,) in merged]
        [(5, 0.5), (5, 0.5)]
    """
    records_by_epoch: defaultdict[int, list[Record]] = defaultdict(list)
    for rank_records in ranks:
        for record in rank_records:
            records_by_epoch[record["epoch"]].append(record)

    # These results are the same for all ranks.
    common_by_epoch: dict[int, Record] = {}
    best_loss, best_epoch = math.inf, -1
    for epoch, records in sorted(records_by_epoch.items()):
        validated = next((record for record in records if "val_loss" in record), None)
        if validated is None:
            break
        if validated["val_loss"] < best_loss:
            best_loss, best_epoch = validated["val_loss"], epoch
        common_by_epoch[epoch] = {
            **{name: validated[name] for name in _VALIDATION if name in validated},
            **_totals(records),
            "best_epoch": best_epoch,
        }

    merged: list[list[Record]] = []
    for rank_records in ranks:
        validated_records = [
            record | common_by_epoch[record["epoch"]]
            for record in rank_records
            if record["epoch"] in common_by_epoch
        ]
        merged.append(validated_records)
    return merged


def _totals(records: Sequence[Record]) -> Record:
    """Return number of samples, mean loss and accuracy of an epoch over all ranks.

    `records`: the records of the epoch, one of each rank.
    """
    for record in records:
        # An epoch before a resume with another number of workers has its totals already.
        if "samples_all_ranks" in record:
            names = ("samples_all_ranks", "train_loss", "train_accuracy")
            return {name: record[name] for name in names}
    loss = sum(record["sums"]["loss"] for record in records)
    weight = sum(record["sums"]["weight"] for record in records)
    correct = sum(record["sums"]["correct"] for record in records)
    return {
        "samples_all_ranks": sum(record["samples"] for record in records),
        "train_loss": loss / weight if weight else math.nan,
        "train_accuracy": correct / weight if weight else math.nan,
    }


def drop_warmup_epochs(records: Sequence[Record]) -> Sequence[Record]:
    """Return the epochs of a worker that count for timing.

    The first is left out as a warm-up, and the last since it has the wait for the worker that
    validates. Of two epochs the second stays, and a single one stays too.
    """
    return records[1:-1] or records[1:] or records


def read_records(out_dir: Path) -> list[list[Record]]:
    """Read the records of each rank, epoch by epoch, and add the common results."""
    ranks: list[list[Record]] = []
    for path in sorted((out_dir / "metrics").glob("rank-*.jsonl"), key=_rank_of_path):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A line without an end is left out, since a rank may be writing it.
        ranks.append([json.loads(line) for line in lines if line.endswith("\n")])
    return merge_records(ranks)


def _rank_of_path(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write the records of a rank, one on each line."""
    lines = [json.dumps(record) + "\n" for record in records]
    with new_file(path) as unfinished:
        unfinished.write_text("".join(lines), encoding="utf-8")


class DiskFiles:
    """Files on disk: `metrics/rank-<n>.jsonl`, the best model, `checkpoints/`.

    The records have one line per epoch, flushed at once. `digest`: from `settings_digest`.
    `scalars`: from `open_scalars_writer`; None for none.
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
        self._out_dir = out_dir
        self._metrics = out_dir / "metrics" / f"rank-{rank}.jsonl"
        self._metrics.parent.mkdir(exist_ok=True)
        self._rank, self._world_size = rank, world_size
        self.save_best = save_model
        """Saves the best model of the run; only the worker that has it calls."""
        self._scalars = scalars
        self._num_epochs_in_scalars = 0
        """Number of epochs that TensorBoard has got."""
        self.checkpoints: CheckpointFolder = CheckpointFolder(out_dir / "checkpoints", digest)

    def begin(
        self, history: Sequence[Record], position: Position, resume: Checkpoint | None
    ) -> None:
        """Begin a run, or resume it after these records at a position.

        The rank's file gets these records, without those that an interrupted run wrote after its
        checkpoint. Rank 0 also removes checkpoints that the run replaces, and the files of ranks
        that no longer exist.

        `resume`: the checkpoint that the run resumes from; None for a new run.
        """
        write_records(self._metrics, history)
        if self._rank == 0:
            self.checkpoints.forget_after(position, resume)
            for path in self._metrics.parent.glob("rank-*.jsonl"):
                if _rank_of_path(path) >= self._world_size:
                    path.unlink()

    def record(self, record: Record) -> None:
        """Add an epoch's record."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._write_scalars()

    def _write_scalars(self) -> None:
        """Write new epochs for TensorBoard, as soon as all ranks have recorded them."""
        if self._scalars is None:
            return
        ranks = read_records(self._out_dir)
        last_common_epoch = min(records[-1]["epoch"] if records else -1 for records in ranks)
        for record in ranks[0][self._num_epochs_in_scalars :]:
            if record["epoch"] <= last_common_epoch:
                for name in _SCALARS:
                    self._scalars.add_scalar(name, record[name], record["epoch"])
                self._num_epochs_in_scalars += 1
        self._scalars.flush()

    def close(self) -> None:
        """Close the files, and remove parts of checkpoints, after the end of all ranks."""
        self.checkpoints.remove_replaced()
        if self._scalars is not None:
            self._write_scalars()
            self._scalars.close()


class MemoryFiles:
    """Records and the best model in memory, without files on disk."""

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
