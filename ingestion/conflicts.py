"""Checks all input files together: identities, conflicts, too many bad files, files that wait."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any
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
from ingestion.file_info import HAS_PARTICLES, BadFile, FileInfo, WaitingFile
from ingestion.schema import WEIGHT_PREFIX
from ingestion.settings import NO_WEIGHT, IngestSettings


def assign_unique_ids(infos: Sequence[FileInfo], known_paths: Container[str]) -> list[FileInfo]:
    """Replace the UUIDs of files that share one but differ in content by hashes of their content.

    Programs that copy a file's header, or draw UUIDs from a clock in many processes, write a UUID
    twice. The file that an earlier run knows (its path is in `known_paths`), else the oldest, keeps
    its UUID. Files of the same content keep the common UUID, which `check_conflicts` refuses.
    """
    files_by_uuid: dict[str, list[FileInfo]] = {}
    for info in infos:
        files = files_by_uuid.setdefault(info.uuid, [])
        files.append(info)
    # By path and tree, since two trees of a file may be files of two samples.
    new_ids: dict[tuple[str, str], str] = {}
    for files in files_by_uuid.values():
        if len(files) == 1:
            continue
        # False sorts before True: known files come first, then those of the earliest time.
        files.sort(key=lambda info: (info.path not in known_paths, info.modified))
        first_file, *other_files = files
        first_identity = content_identity(first_file.path)
        for info in other_files:
            identity = content_identity(info.path)
            if identity != first_identity:
                new_id = tree_identity(identity, info.tree) if info.tree else identity
                new_ids[info.path, info.tree] = new_id
    return [info._replace(uuid=new_ids.get((info.path, info.tree), info.uuid)) for info in infos]


def content_identity(path: str) -> str:
    """A UUID whose 128 bits are the hash (XXH3) of the content of a file."""
    filesystem, name = url_to_fs(path)
    with filesystem.open(name, "rb") as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128)
    return str(UUID(bytes=digest.digest()))


def tree_identity(identity: str, tree: str) -> str:
    """A UUID of a file and one of its trees together.

    A file has it for a sample with another tree than `ingest.tree`, so that two samples may read
    different trees of the same file.
    """
    return str(uuid5(UUID(identity), tree))


def check_number_of_bad_files(bad: Sequence[BadFile], settings: IngestSettings) -> None:
    """Refuse more bad files than may be skipped."""
    if len(bad) > settings.max_bad_files:
        messages = list_messages((file.path, file.message) for file in bad)
        raise BadFilesError(
            f"{len(bad)} input files are bad, more than ingest.max_bad_files allows "
            f"({settings.max_bad_files}):\n{messages}\nFix them, or raise ingest.max_bad_files."
        )


def check_conflicts(infos: Sequence[FileInfo]) -> None:
    """Refuse the same file twice, and files of which some hold what others lack.

    The latter are weights of the generator (within a class), particles, further weights, and types
    of pass-through branches.

    Raises:
        InputFileError: Two files conflict; the message names both.
    """
    _check_unique(infos)
    # A file without entries lacks nothing that is needed.
    infos = [info for info in infos if info.entries]
    _check_weights_of_classes(infos)
    # A network could tell files with particles from those without by the isolations alone.
    if pair := _mixed_pair(infos, lambda info: info.lacks_particles):
        with_particles, without_particles = pair
        raise ConflictingFilesError(
            f"{with_particles.location} has tracks, photons and neutral hadrons, "
            f"{without_particles.location} has none: isolations of its leptons would all be 0, "
            f"which tells the files apart. Take one of the two kinds out of the samples."
        )
    _check_further_weights(infos)
    for info in infos:
        first = infos[0]
        if info.pass_through != first.pass_through:
            raise WrongBranchTypeError(
                f"{info.location} has {info.pass_through}, {first.location} has "
                f"{first.pass_through}; branches that pass through must have one type in all "
                f"files.",
                "Take one out of ingest.pass_through, or convert the files.",
            )


def check_particles_of_training(infos: Sequence[FileInfo], reading: Mapping[str, Any]) -> None:
    """Refuse files without particles for a training on files with particles, and the reverse.

    Isolations, and the leptons that pass their cut, would be others than those of the training.

    Args:
        infos: Files of other events, such as data.
        reading: How the events of the training were read. Earlier releases do not say whether
            their files have particles; then nothing is refused.

    Raises:
        ConflictingFilesError: There is such a file.
    """
    has_particles = reading.get(HAS_PARTICLES)
    for info in infos:
        if has_particles is None or not info.entries or info.lacks_particles != has_particles:
            continue
        if info.lacks_particles:
            difference = "has no tracks, photons and neutral hadrons, those of the training have"
        else:
            difference = "has tracks, photons and neutral hadrons, those of the training have none"
        raise ConflictingFilesError(
            f"{info.location} {difference}: the isolations of its leptons would mean something "
            f"else. Give files of the kind of the training, or train on such files."
        )


def _check_unique(infos: Sequence[FileInfo]) -> None:
    """Refuse two files of the same UUID, whose events would count twice."""
    by_uuid: dict[str, FileInfo] = {}
    for info in infos:
        first = by_uuid.setdefault(info.uuid, info)
        if first is not info:
            raise ConflictingFilesError(
                f"the same ROOT file (UUID {info.uuid}) is listed twice: {first.location} and "
                f"{info.location}. Its events would be counted twice; keep one of the two."
            )


def _check_weights_of_classes(infos: Sequence[FileInfo]) -> None:
    """Refuse a class of which only some files have weights of a generator.

    Files whose sample states `weight: none` take no part: their events count 1 on purpose.
    """
    by_label: dict[int, list[FileInfo]] = {}
    for info in infos:
        if info.weight == NO_WEIGHT:
            continue
        # The files of a sample may hold events of several classes; None is of no class.
        for label in info.samples.values():
            if label is not None:
                by_label.setdefault(label, []).append(info)
    for files in by_label.values():
        if pair := _mixed_pair(files, lambda info: not info.weight):
            with_weights, without_weights = pair
            raise ConflictingFilesError(
                f"{with_weights.location} has weights of a generator, {without_weights.location} "
                f"has no branch of them: its events of weight 1 would stand beside them. State the "
                f"weight of its sample: `weight:` a branch, or `weight: none` if each of its "
                f"events counts 1."
            )


def _mixed_pair(
    infos: Iterable[FileInfo], lacks: Callable[[FileInfo], bool]
) -> tuple[FileInfo, FileInfo] | None:
    """The first file that has something and the first that lacks it; None unless both exist."""
    first: dict[bool, FileInfo] = {}
    for info in infos:
        first.setdefault(lacks(info), info)
    return (first[False], first[True]) if len(first) == 2 else None


def _check_further_weights(infos: Sequence[FileInfo]) -> None:
    """Refuse a weight that no file has, or whose lists have different lengths in the files.

    A weight of `ingest.weights` is compared in all files; a weight that a sample states itself, in
    the files of this sample.
    """
    # The files by column and by the key of the config that names its branch.
    files_of_weight: dict[tuple[str, str], list[FileInfo]] = {}
    for info in infos:
        for column in [*info.list_lengths, *info.absent_weights]:
            weight = column, _key_of_weight(column, info)
            files = files_of_weight.setdefault(weight, [])
            files.append(info)
    for (column, key), files in files_of_weight.items():
        _check_weight_exists(column, files, key)
        _check_list_lengths(column, files, key)


def _key_of_weight(column: str, info: FileInfo) -> str:
    """The key of the config that names a weight of a file: that of its sample, or of all files."""
    name = column.removeprefix(WEIGHT_PREFIX)
    # The weights of a sample are meant for its own files.
    if column == "weight" or name in info.weights:
        return f"weights of sample '{info.sample}'"
    return "ingest.weights"


def _check_weight_exists(column: str, files: Sequence[FileInfo], key: str) -> None:
    """Refuse a weight whose branch all simulated files lack: its name is probably mistyped.

    `column` is the name of the weight; `key`, the key of the config, is for the message.
    """
    # Collision data have no weights, so their files do not count.
    simulated = [info for info in files if info.weight != NO_WEIGHT]
    if simulated and all(column in info.absent_weights for info in simulated):
        first = simulated[0]
        raise MissingBranchError(
            f"{first.location} lacks the branch of '{column.removeprefix(WEIGHT_PREFIX)}' ({key}), "
            f"and so do all other files.{first.absent_weights[column]} Correct it."
        )


def _check_list_lengths(column: str, files: Sequence[FileInfo], key: str) -> None:
    """Refuse a weight at one position of lists that have different lengths in the files.

    In lists of another length, the same position probably holds another variation.
    """
    # A length of 0 means that all lists of the file are empty.
    with_lists = [info for info in files if info.list_lengths.get(column)]
    for info in with_lists:
        first = with_lists[0]
        length, first_length = info.list_lengths[column], first.list_lengths[column]
        if length == first_length:
            continue
        name = column.removeprefix(WEIGHT_PREFIX)
        remedy = "Make two samples of the files, each with its own `weight`."
        if column != "weight":
            remedy = (
                f"State the right one for each sample, for example "
                f"`weights: {{{name}: BRANCH[0]}}` below its `name`; `{name}: none` takes none."
            )
        raise ConflictingFilesError(
            f"the lists of '{name}' ({key}) have {first_length} numbers in {first.location}, and "
            f"{length} in {info.location}: the same place would be two variations. {remedy}"
        )


def check_waiting_samples(
    waiting: Sequence[WaitingFile], readable_samples: Collection[str], bad: Sequence[BadFile]
) -> None:
    """Refuse a sample that has waiting files and no readable one: nothing is left to do now.

    `readable_samples` are the names of samples with a readable file.
    """
    by_sample: dict[str, list[WaitingFile]] = {}
    for file in waiting:
        if file.sample not in readable_samples:
            by_sample.setdefault(file.sample, []).append(file)
    problems = []
    for sample, files in by_sample.items():
        num_bad = sum(file.sample == sample for file in bad)
        problems.append(
            f"sample '{sample}': nothing to do yet (files left for another run: {len(files)}, "
            f"skipped as bad: {num_bad}). The first: {files[0].reason}"
        )
    if problems:
        raise FilesToComeError("\n".join(problems))


def local_time(modified: str) -> float:
    """When a local file was modified, in seconds since 1970; NaN for the formats of servers.

    Examples:
        >>> local_time("1767225600.5"), local_time("Sat, 01 Nov 2025 10:00:00 GMT")
        (1767225600.5, nan)
    """
    return float(modified) if re.fullmatch(r"\d+(\.\d+)?", modified) else math.nan


def is_recent(modified: str, seconds: float) -> bool:
    """Return whether a local file was modified within `seconds` of now.

    Clocks differ, so the time may also be in the future.
    """
    return abs(time.time() - local_time(modified)) < seconds
