"""Which files of `ingestion.files` are one, cannot be read together, are too many bad ones, or wait for a later run."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import xxhash

from hep_core.storage import url_to_fs
from ingestion.errors import (
    BadFilesError,
    ConflictingFilesError,
    FilesToComeError,
    MissingBranchError,
    WrongBranchTypeError,
    list_messages,
)
from ingestion.schema import WEIGHT_PREFIX
from ingestion.settings import NO_WEIGHT, IngestSettings


class WaitingFile(NamedTuple):
    """A file that waits for a later run, and the reason."""

    sample: str
    path: str
    reason: str


def assign_unique_ids(infos: Sequence[Any], known: Mapping[str, Any]) -> list[Any]:
    """Files of one UUID and other content get identities from their content, but for the one that came first.

    Programs that copy a file's header, or draw UUIDs from a clock in many processes, give them a second time.
    """
    by_uuid: dict[str, list[Any]] = {}
    for info in infos:
        by_uuid.setdefault(info.uuid, []).append(info)
    found: dict[str, str] = {}
    for doubled in (each for each in by_uuid.values() if len(each) > 1):
        first, *others = sorted(doubled, key=lambda info: (info.path not in known, info.modified))
        kept = content_identity(first.path)
        # The same content keeps the same identity, which is refused.
        found |= {each.path: own for each in others if (own := content_identity(each.path)) != kept}
    return [info._replace(uuid=found.get(info.path, info.uuid)) for info in infos]


def check_number_of_bad_files(bad: Sequence[Any], settings: IngestSettings) -> None:
    """Refuse more bad files than may be skipped."""
    if len(bad) > settings.max_bad_files:
        raise BadFilesError(
            f"{len(bad)} input files are bad, more than ingest.max_bad_files allows ({settings.max_bad_files}):\n"
            f"{list_messages((each.path, each.message) for each in bad)}\nFix them, or raise ingest.max_bad_files."
        )


def check_conflicts(infos: Sequence[Any]) -> None:
    """Refuse the same file twice, and files of which some hold what others lack."""
    seen: dict[str, Any] = {}
    for info in infos:
        first = seen.setdefault(info.uuid, info)
        if first is not info:
            raise ConflictingFilesError(
                f"the same ROOT file (UUID {info.uuid}) is listed twice: {first.place} and {info.place}. "
                f"Its events would be counted twice; keep one of the two."
            )
    # What a file without entries lacks is not missed.
    infos = [info for info in infos if info.entries]
    for label in {label for info in infos for label in info.samples.values()} - {None}:
        of_class = [
            info for info in infos if label in info.samples.values() and info.weight != NO_WEIGHT
        ]
        if mixed := _mixed(of_class, lambda info: not info.weight):
            raise ConflictingFilesError(
                f"{mixed[0]} has weights of a generator, {mixed[1]} has no branch of them: its "
                f"events of weight 1 would stand beside them. State the weight of its sample: `weight:` a branch, or "
                f"`weight: none` if each of its events counts 1."
            )
    if mixed := _mixed(infos, lambda info: info.lacks_particles):
        raise ConflictingFilesError(
            f"{mixed[0]} has tracks, photons and neutral hadrons, {mixed[1]} has none: isolations of its leptons would "
            f"all be 0, which tells the files apart. Take one of the two kinds out of the samples."
        )
    _refuse_other_variations(infos)
    for info in infos:
        if info.pass_through != infos[0].pass_through:
            raise WrongBranchTypeError(
                f"{info.place} has {info.pass_through}, {infos[0].place} has {infos[0].pass_through}; the branches of "
                f"ingest.pass_through must have one type. Take one out of it, or convert the files."
            )


def _refuse_other_variations(infos: Sequence[Any]) -> None:
    """Refuse a weight that no file has, or that is another number in lists of other lengths."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for info in infos:
        for column in (*info.list_lengths, *info.absent_weights):
            # Words of a sample are meant for its own files.
            is_of_sample = column == "weight" or column.removeprefix(WEIGHT_PREFIX) in info.weights
            sample = info.sample if is_of_sample else ""
            groups.setdefault((column, sample), []).append(info)
    for (column, sample), files in groups.items():
        name = column.removeprefix(WEIGHT_PREFIX)
        key = f"weights of sample '{sample}'" if sample else "ingest.weights"
        # Collision data have no weights.
        simulated = [info for info in files if info.weight != NO_WEIGHT]
        if simulated and all(column in info.absent_weights for info in simulated):
            raise MissingBranchError(
                f"{simulated[0].place} lacks the branch of '{name}' ({key}), and so do all other files."
                f"{simulated[0].absent_weights[column]} Correct it."
            )
        filled = [info for info in files if info.list_lengths.get(column)]
        for info in filled:
            length, first_length = info.list_lengths[column], filled[0].list_lengths[column]
            if length != first_length:
                raise ConflictingFilesError(
                    f"the lists of '{name}' ({key}) have {first_length} numbers in {filled[0].place}, and {length} in "
                    f"{info.place}: the same place would be two variations. {_way_out(column)}"
                )


def _way_out(column: str) -> str:
    if column == "weight":
        return "Make two samples of the files, each with its own `weight`."
    name = column.removeprefix(WEIGHT_PREFIX)
    return (
        f"State the right one for each sample, for example `weights: {{{name}: BRANCH[0]}}` below its `name`; "
        f"`{name}: none` takes none."
    )


def content_identity(path: str) -> str:
    """A UUID made of the content of a file."""
    filesystem, name = url_to_fs(path)
    with filesystem.open(name, "rb") as file:
        return str(UUID(bytes=hashlib.file_digest(file, xxhash.xxh3_128).digest()))


def tree_identity(identity: str, tree: str) -> str:
    """The identity that a file has for a sample whose tree is not that of `ingest.tree`."""
    return str(uuid5(UUID(identity), tree))


def _mixed(infos: Iterable[Any], lacks: Callable[[Any], bool]) -> tuple[str, str] | None:
    """The places of a file that has something, and of one that lacks it, if there are both."""
    first: dict[bool, Any] = {}
    for info in infos:
        first.setdefault(lacks(info), info)
    return (first[False].place, first[True].place) if len(first) == 2 else None


def check_waiting_samples(
    waiting: Sequence[WaitingFile], readable: Collection[str], bad: Sequence[str]
) -> None:
    """Refuse a sample whose readable files all wait: the data is fine, but it is too early to read it."""
    left = [each.sample for each in waiting if each.sample not in readable]
    if left:
        first = {each.sample: each.reason for each in reversed(waiting)}
        raise FilesToComeError(
            "\n".join(
                f"sample '{name}': nothing to do yet (files left for another run: {left.count(name)}, skipped as bad: "
                f"{bad.count(name)}). The first: {first[name]}"
                for name in dict.fromkeys(left)
            )
        )


def local_time(modified: str) -> float:
    """When a local file was modified, in seconds since 1970; NaN for the formats of servers.

    Examples:
        >>> local_time("1767225600.5"), local_time("Sat, 01 Nov 2025 10:00:00 GMT")
        (1767225600.5, nan)
    """
    return float(modified) if re.fullmatch(r"\d+(\.\d+)?", modified) else math.nan


def is_recent(modified: str, seconds: float) -> bool:
    """Whether a local file was modified within `seconds` of now, before it or (clocks differ) after it."""
    return abs(time.time() - local_time(modified)) < seconds
