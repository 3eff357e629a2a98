"""Checkpoints of a run: one file per rank, then one small file that marks them as complete.

checkpoints/epoch-00003-step-00000120-of-4-<digest of the settings>/
    rank-0.pt ...   state of that rank; tensors and plain values only
    complete.json   written last, by the last rank: completes the checkpoint

A folder belongs to one run: other settings have another digest. A run that resumes removes what was
written behind the position where it begins.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from pydantic import BaseModel

from hep_core.atomic_files import new_file
from hep_core.integrity import has_seal, is_system_error, with_seal
from training.errors import CheckpointError
from training.loop.epoch_stats import EpochStatsState
from training.loop.worker_state import WorkerState
from training.readers.units import Position

#: Number of complete checkpoints to keep.
_NUM_COMPLETE: Final = 2
#: Number of incomplete checkpoints of which a worker keeps its part. A worker that was stopped for
#: long crosses hundreds of positions.
_NUM_INCOMPLETE: Final = 32
#: Version of the content; a run resumes only from this one.
VERSION: Final = 11
_CONSEQUENCE: Final = (
    "The training does not continue from this checkpoint, but from an older one if there is one."
)
#: Time in which shared storage must show a checkpoint on all hosts [s].
_SECONDS_TO_APPEAR: Final = 60.0
_SECONDS_BETWEEN_LOOKS: Final = 0.5


class RankContent(WorkerState):
    """The file of a rank: tensors and plain values."""

    stats: EpochStatsState
    """Statistics of the part of the epoch before the checkpoint."""
    num_rows_read: int
    """Number of rows that the worker has read in the run, with work units."""
    previous_world_sizes: Sequence[tuple[int, ...]]
    """Fields of a `PreviousWorkers` for each earlier number of workers in this epoch."""
    best: dict[str, Any]
    """Fields of the `BestModel` that this worker has validated."""
    history: str
    """The records of the worker, as lines of JSON."""


class Description(BaseModel):
    """The content of `complete.json`."""

    version: int
    number: int
    """Number of the checkpoint in the order of their completion."""
    digest: str
    """Digest of the settings, from `settings_digest`."""
    epoch: int
    step: int
    """Number of finished steps of the epoch; of its rows, if workers draw work units."""
    world_size: int


class Checkpoint(NamedTuple):
    """A complete checkpoint on disk."""

    folder: Path
    epoch: int
    step: int
    """Number of finished steps of the epoch; of its rows, if workers draw work units."""
    world_size: int

    @property
    def position(self) -> Position:
        """The place in the run."""
        return Position(self.epoch, self.step)

    def load(self, rank: int) -> RankContent:
        """Read the content of a rank; unpickling runs no code from it.

        Raises:
            CheckpointError: It is gone or damaged.
            OSError, MemoryError: The system does not give it, and may later.
        """
        path = self.folder / f"rank-{rank}.pt"
        try:
            return _read_content(path)
        except Exception as cause:
            # Damaged bytes raise errors of any type.
            if is_system_error(cause) and not isinstance(cause, FileNotFoundError):
                raise
            raise CheckpointError(
                f"{path} is damaged ({cause}). The same command resumes before it."
            ) from cause

    def describe_damage(self) -> list[str]:
        """Return a sentence about each rank's file that cannot be read as it was written."""
        sentences: list[str] = []
        for rank in range(self.world_size):
            try:
                self.load(rank)
            except CheckpointError as error:
                sentences.append(f"{error} {_CONSEQUENCE}")
        return sentences


class CheckpointFolder:
    """The checkpoints of one run, with the digest of its settings.

    The folder is made with the first checkpoint.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        self._digest = digest
        self._written: deque[Path] = deque()
        """Files of this rank in the newest checkpoints, the oldest first."""

    def latest(self, *, end: Position | None = None) -> Checkpoint | None:
        """Return the newest complete checkpoint of these settings that is not damaged, or None.

        `end`: the end of the run. Checkpoints behind it, of a run of more epochs, do not count.
        """
        for checkpoint in self._candidates(end):
            if not checkpoint.describe_damage():
                return checkpoint
        return None

    def describe_damage(self, *, end: Position | None = None) -> list[str]:
        """Return a sentence about each damaged file that makes `latest` pass over a checkpoint.

        Checkpoints older than the one that `latest` returns are not read. `end`: as there.
        """
        sentences: list[str] = []
        for path in sorted(self.folder.glob("epoch-*/complete.json")):
            if not self._has_our_digest(path.parent) or _read_description(path) is not None:
                continue
            if end is None or _position_of_folder(path.parent) <= end:
                sentences.append(f"{path} is damaged. {_CONSEQUENCE}")
        for checkpoint in self._candidates(end):
            damage = checkpoint.describe_damage()
            if not damage:
                break
            sentences += damage
        return sentences

    def descriptions(self) -> list[Description]:
        """Return the descriptions of all complete checkpoints, the newest first.

        Those of other settings and versions are among them.
        """
        return [description for description, _ in self._complete_folders()]

    def await_complete(self, position: Position, world_size: int) -> Checkpoint:
        """Wait for a checkpoint that rank 0 sees; shared storage may show it here later.

        Raises:
            CheckpointError: It does not appear within a minute.
        """
        folder = self._folder_at(position, world_size)
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while not (folder / "complete.json").exists():
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank 0 resumes from {folder}, which does not exist on {platform.node()}. All "
                    f"ranks need the same run folder: put run_dir on storage that all hosts share."
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return Checkpoint(folder, *position, world_size)

    def write_rank(
        self,
        positions: Sequence[Position],
        world_size: int,
        rank: int,
        state: Mapping[str, object],
    ) -> None:
        """Write one rank's part of the checkpoints at some positions, atomically.

        A worker that crossed several positions without a step has the same state at all of them. So
        the file is written at the last position, and linked into the folders of the earlier ones.
        Then the rank removes its parts that are of no use any more.

        `state`: a `RankContent`.
        """
        folders = [self._folder_at(position, world_size) for position in positions]
        last_folder = folders[-1]
        # Of many positions only the last ones get a part.
        earlier_folders = _folders_of_use(folders[-_NUM_INCOMPLETE:], world_size, rank)[:-1]
        last_folder.mkdir(parents=True, exist_ok=True)
        path = last_folder / f"rank-{rank}.pt"
        with new_file(path, flushed=True) as unfinished, unfinished.open("wb") as file:
            torch.save(state, file)
        # An error is ignored, since another rank may remove a folder when it completes a later one,
        # and since not all storage can link. The last checkpoint is enough.
        with suppress(OSError):
            for folder in earlier_folders:
                folder.mkdir(exist_ok=True)
                (folder / path.name).hardlink_to(path)
        self._written.extend(folder / path.name for folder in [*earlier_folders, last_folder])
        self.remove_replaced()

    def complete(self, positions: Sequence[Position], world_size: int) -> None:
        """Mark as complete the last of these checkpoints that all ranks have written, if any.

        Then all but the newest two complete checkpoints are removed. Several ranks may each find
        themselves the last; all then write the same.
        """
        for position in reversed(positions):
            # At the first checkpoint that is complete already, or becomes so, the older ones are
            # of no use.
            folder = self._folder_at(position, world_size)
            if (folder / "complete.json").exists():
                return
            if _has_parts(folder, range(world_size)):
                # A file may be missing if another rank completes a later one and removes this one.
                with suppress(FileNotFoundError):
                    self._write_description(folder, position, world_size)
                    self._remove_old(world_size)
                return

    def remove_replaced(self) -> None:
        """Remove the parts that this rank has in incomplete checkpoints, if these are of no use.

        They are of no use before the newest complete checkpoint, and if they are too many. Each
        rank removes its own. The last rank at a checkpoint is the slowest one, which would fall
        further behind if it removed those of all.
        """
        num_of_use = 0
        for path in reversed(self._written):
            num_of_use += 1
            if (path.parent / "complete.json").exists():
                break
        while len(self._written) > min(num_of_use, _NUM_INCOMPLETE):
            _remove_incomplete(self._written.popleft())

    def forget_after(self, position: Position, resume: Checkpoint | None) -> None:
        """Remove the checkpoints of these settings that a run which begins at a position replaces.

        These are all behind the position, and incomplete ones before it. `resume`: the checkpoint
        that the run resumes from, which stays.
        """
        for folder in self.folder.glob("epoch-*"):
            is_before = _position_of_folder(folder) <= position
            if is_before and (folder / "complete.json").exists():
                continue
            is_resumed = resume is not None and folder == resume.folder
            if self._has_our_digest(folder) and not is_resumed:
                shutil.rmtree(folder)

    def _candidates(self, end: Position | None) -> Iterator[Checkpoint]:
        """Yield the complete checkpoints of these settings and this version, the newest first.

        `end`: those behind it are left out.
        """
        for description, folder in self._complete_folders():
            checkpoint = Checkpoint(
                folder, description.epoch, description.step, description.world_size
            )
            is_ours = (description.version, description.digest) == (VERSION, self._digest)
            if is_ours and (end is None or checkpoint.position <= end):
                yield checkpoint

    def _complete_folders(self) -> list[tuple[Description, Path]]:
        """Return the descriptions and folders of all complete checkpoints, the newest first.

        Those of other settings are among them. The order is that of their completion. The newest
        may be at an earlier step than others, since a run of other settings begins again.
        """
        complete: list[tuple[Description, Path]] = []
        for path in self.folder.glob("epoch-*/complete.json"):
            description = _read_description(path)
            if description and _has_parts(path.parent, range(description.world_size)):
                complete.append((description, path.parent))
        return sorted(complete, key=lambda checkpoint: checkpoint[0].number, reverse=True)

    def _write_description(self, folder: Path, position: Position, world_size: int) -> None:
        """Write `complete.json`, with a checksum and the next number of all checkpoints."""
        numbers = [description.number for description, _ in self._complete_folders()]
        description = Description(
            version=VERSION,
            number=max(numbers, default=-1) + 1,
            digest=self._digest,
            epoch=position.epoch,
            step=position.num_done,
            world_size=world_size,
        )
        with new_file(folder / "complete.json", flushed=True) as unfinished:
            text = json.dumps(with_seal(description.model_dump()))
            unfinished.write_text(text, encoding="utf-8")

    def _remove_old(self, world_size: int) -> None:
        """Remove all but the newest two complete checkpoints, and those of other settings.

        Incomplete ones of this run stay: workers that are ahead write them, and remove them.
        """
        newest = [folder for _, folder in self._complete_folders()[:_NUM_COMPLETE]]
        for folder in self.folder.glob("epoch-*"):
            is_complete = (folder / "complete.json").exists()
            is_of_this_run = folder.name.endswith(self._ending(world_size))
            if folder not in newest and (is_complete or not is_of_this_run):
                shutil.rmtree(folder, ignore_errors=True)

    def _has_our_digest(self, folder: Path) -> bool:
        return folder.name.endswith(f"-{self._digest}")

    def _folder_at(self, position: Position, world_size: int) -> Path:
        epoch, step = position
        ending = self._ending(world_size)
        return self.folder / f"epoch-{epoch:05d}-step-{step:08d}{ending}"

    def _ending(self, world_size: int) -> str:
        """Return the end of the names of the folders of this run."""
        return f"-of-{world_size}-{self._digest}"


def _has_parts(folder: Path, ranks: Iterable[int]) -> bool:
    return all((folder / f"rank-{rank}.pt").exists() for rank in ranks)


def _folders_of_use(folders: Sequence[Path], world_size: int, rank: int) -> Sequence[Path]:
    """Return the folders in which a part of a rank may be of use.

    These are the last ones, back to one that the part completes. `folders`: in the order of their
    positions.
    """
    other_ranks = [other_rank for other_rank in range(world_size) if other_rank != rank]
    for index in reversed(range(len(folders))):
        if _has_parts(folders[index], other_ranks):
            return folders[index:]
    return folders


def _remove_incomplete(rank_file: Path) -> None:
    """Remove a rank's file, and the folder if it is empty then, unless it is complete."""
    if not (rank_file.parent / "complete.json").exists():
        # The file may be gone already, and the folder may hold files of other ranks.
        with suppress(OSError):
            rank_file.unlink()
            rank_file.parent.rmdir()


def _read_description(path: Path) -> Description | None:
    """Read `complete.json`; None if it is damaged, or another rank has removed it."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        return Description.model_validate(description) if has_seal(description) else None
    except (FileNotFoundError, ValueError):
        return None


def _position_of_folder(folder: Path) -> Position:
    """Read the position from the name of a checkpoint's folder: epoch-<n>-step-<n>-of-..."""
    _, epoch, _, step, *_ = folder.name.split("-")
    return Position(int(epoch), int(step))


def _read_content(path: Path) -> RankContent:
    """Read a file of torch.save, and check its checksums, which torch itself ignores.

    The file is a zip archive. The load accepts tensors and plain values only.
    """
    with zipfile.ZipFile(path) as file:
        damaged_member = file.testzip()
    if damaged_member is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged_member}")
    state: RankContent = torch.load(path, weights_only=True, map_location="cpu")
    return state
