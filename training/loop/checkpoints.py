"""Checkpoints of a run: one file per rank, then one small file that marks them as complete.

checkpoints/epoch-00003-step-00000120-of-4-<digest of the settings>/
    rank-0.pt ...   state of that rank; tensors and plain values only
    complete.json   written last, by the last rank: completes the checkpoint

A folder belongs to one run: other settings have another digest, and a run that resumes removes what was written behind
the place where it begins.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from hep_core.atomic_files import new_file
from hep_core.integrity import has_seal, is_system_error, with_seal
from training.errors import CheckpointError
from training.settings import TrainSettings

_KEPT: Final = 2
#: Places of which a worker keeps its part while they are not complete; one that was stopped for long passes hundreds.
_OPEN: Final = 32
_VERSION: Final = 11
_LEFT_OUT: Final = (
    "The training does not continue from this checkpoint, but from an older one if there is one."
)
_SECONDS_TO_APPEAR: Final = 60.0
_SECONDS_BETWEEN_LOOKS: Final = 0.5
#: Settings, in addition to those of speed, that may differ between the run that writes and the run that resumes.
_FREE: Final = frozenset({"workers", "epochs", "device"})


class Checkpoint(NamedTuple):
    """A complete checkpoint on disk."""

    folder: Path
    epoch: int
    step: int
    """Number of finished steps of the epoch; of its rows, if workers draw work units."""
    world_size: int

    def load(self, rank: int) -> dict[str, Any]:
        """Read the content of a rank; unpickling runs no code from it.

        Raises:
            CheckpointError: It is gone or damaged.
            OSError, MemoryError: The system does not give it, and may later.
        """
        path = self.folder / f"rank-{rank}.pt"
        try:
            return _read(path)
        except Exception as cause:
            # Damaged bytes raise errors of any type.
            if is_system_error(cause) and not isinstance(cause, FileNotFoundError):
                raise
            raise CheckpointError(
                f"{path} is damaged ({cause}). The same command resumes before it."
            ) from cause

    def damage(self) -> list[str]:
        """A sentence about each part that cannot be read as it was written."""
        words = []
        for rank in range(self.world_size):
            try:
                self.load(rank)
            except CheckpointError as problem:
                words.append(f"{problem} {_LEFT_OUT}")
        return words


class CheckpointFolder:
    """The checkpoints of one run, with the digest of its settings; the folder is made with the first one."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        self._digest = digest
        self._written: deque[Path] = deque()

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint of these settings that is not damaged."""
        for checkpoint in self._of_these_settings():
            if not checkpoint.damage():
                return checkpoint
        return None

    def damage(self) -> list[str]:
        """A sentence about each damaged file because of which `latest` passes over a checkpoint."""
        descriptions = [
            path for path in self.folder.glob("epoch-*/complete.json") if self._is_ours(path.parent)
        ]
        damaged = [path for path in descriptions if _described(path) is None]
        words = [f"{path} is damaged. {_LEFT_OUT}" for path in sorted(damaged)]
        for checkpoint in self._of_these_settings():
            found = checkpoint.damage()
            if not found:
                break
            words += found
        return words

    def _of_these_settings(self) -> Iterator[Checkpoint]:
        """Complete checkpoints of these settings, the newest first."""
        for content, folder in self._complete():
            if content["version"] == _VERSION and content["digest"] == self._digest:
                yield Checkpoint(folder, content["epoch"], content["step"], content["world_size"])

    def await_complete(self, epoch: int, step: int, world_size: int) -> Checkpoint:
        """Wait for a checkpoint that another rank sees; shared storage may show it to this rank a moment later."""
        folder = self._place((epoch, step), world_size)
        deadline = time.monotonic() + _SECONDS_TO_APPEAR
        while not (folder / "complete.json").exists():
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank 0 resumes from {folder}, which does not exist on {platform.node()}. All ranks need the same "
                    f"run folder: put run_dir on storage that all hosts share."
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return Checkpoint(folder, epoch, step, world_size)

    def _complete(self) -> list[tuple[dict[str, Any], Path]]:
        """Descriptions and folders of the complete checkpoints, the newest first.

        The newest may be at an earlier step than others: with other settings or another number of workers, a run
        returns to the beginning of the training or of the epoch.
        """
        found = []
        for path in self.folder.glob("epoch-*/complete.json"):
            content = _described(path)
            if content and all(
                (path.parent / name).exists() for name in _parts(content["world_size"])
            ):
                found.append((content["number"], content, path.parent))
        return [
            (content, folder)
            for _, content, folder in sorted(found, key=lambda each: each[0], reverse=True)
        ]

    def write_rank(
        self,
        positions: Sequence[tuple[int, int]],
        world_size: int,
        rank: int,
        content: dict[str, Any],
    ) -> None:
        """Write one rank's part, atomically.

        `positions`: epoch, and number of its finished steps or rows; of several checkpoints that share this part.
        """
        *others, last = (self._place(each, world_size) for each in positions[-_OPEN:])
        last.mkdir(parents=True, exist_ok=True)
        path = last / f"rank-{rank}.pt"
        with new_file(path, flushed=True) as unfinished, unfinished.open("wb") as file:
            torch.save(content, file)
        self._written.extend((*(each / path.name for each in others), path))
        # Another rank may remove a place meanwhile, once it completes a later one; and not all storage can link.
        with suppress(OSError):
            for each in others:
                each.mkdir(exist_ok=True)
                (each / path.name).hardlink_to(path)
        while len(self._written) > _OPEN:
            self._forget(self._written.popleft())

    def _forget(self, part: Path) -> None:
        """Remove an old part of a checkpoint that is not complete, and its folder with the last."""
        if not (part.parent / "complete.json").exists():
            # Another rank may have removed it.
            with suppress(OSError):
                part.unlink()
                part.parent.rmdir()

    def complete(self, positions: Sequence[tuple[int, int]], world_size: int) -> None:
        """Mark the last of some checkpoints that all ranks have written as complete; remove those before the newest.

        Several ranks may see that they are the last; both then write the same.
        """
        for position in reversed(positions):
            folder = self._place(position, world_size)
            if (folder / "complete.json").exists():
                return
            if all((folder / name).exists() for name in _parts(world_size)):
                # Another rank may complete a later one meanwhile, and remove this one.
                with suppress(FileNotFoundError):
                    self._complete_one(position, world_size)
                return

    def _complete_one(self, position: tuple[int, int], world_size: int) -> None:
        folder = self._place(position, world_size)
        epoch, step = position
        before = self._complete()
        content = {
            "version": _VERSION,
            "number": before[0][0]["number"] + 1 if before else 0,
            "digest": self._digest,
            "epoch": epoch,
            "step": step,
            "world_size": world_size,
        }
        with new_file(folder / "complete.json", flushed=True) as unfinished:
            unfinished.write_text(json.dumps(with_seal(content)), encoding="utf-8")
        kept = [path for _, path in self._complete()[:_KEPT]]
        for old in self.folder.glob("epoch-*"):
            # Workers that are ahead write later ones meanwhile.
            if old not in kept and not (self._is_ours(old) and _position_of(old) > position):
                shutil.rmtree(old, ignore_errors=True)

    def forget_after(self, position: tuple[int, int], resume: Checkpoint | None) -> None:
        """Remove what an earlier run of these settings wrote behind a position, before this run writes it again.

        `resume`: the checkpoint that it resumes from, which stays.
        """
        for folder in self.folder.glob("epoch-*"):
            is_before = _position_of(folder) <= position and (folder / "complete.json").exists()
            if (
                self._is_ours(folder)
                and not is_before
                and (resume is None or folder != resume.folder)
            ):
                shutil.rmtree(folder)

    def _is_ours(self, folder: Path) -> bool:
        return folder.name.endswith(f"-{self._digest}")

    def _place(self, position: tuple[int, int], world_size: int) -> Path:
        epoch, step = position
        return self.folder / f"epoch-{epoch:05d}-step-{step:08d}-of-{world_size}-{self._digest}"


def _parts(world_size: int) -> list[str]:
    return [f"rank-{rank}.pt" for rank in range(world_size)]


def _described(path: Path) -> dict[str, Any] | None:
    """The description of a complete checkpoint; None if it is damaged, or another rank has removed it."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content if has_seal(content) else None


def _position_of(folder: Path) -> tuple[int, int]:
    _, epoch, _, step, *_ = folder.name.split("-")
    return int(epoch), int(step)


def _read(path: Path) -> dict[str, Any]:
    """Read what torch.save wrote, with its checksums, which torch itself ignores."""
    with zipfile.ZipFile(path) as file:
        damaged = file.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    return content


def settings_digest(workload: Mapping[str, Any], train: TrainSettings) -> str:
    """Digest of what a checkpoint depends on: the workload, and all settings but speed, workers and epochs."""
    # Other workers own other events, so that what is left of an epoch cannot be dealt anew.
    free = _FREE if train.skew is None else _FREE - {"workers"}
    content = {"workload": workload, "train": train.result_items(exclude=free)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
