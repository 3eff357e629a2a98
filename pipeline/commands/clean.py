"""`clean`: remove old versions that nothing in use needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from hep_core.storage import files_below, stats_of_files
from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs import own_folders
from pipeline.runs.model_registry import Registry
from pipeline.runs.own_folders import is_claimed, unclaimed
from pipeline.runs.store import StageStore
from pipeline.runs.version_store import number_of
from pipeline.stages.table import STAGE_OF

#: Number of versions that are held at a time; each takes an open file.
_HELD_AT_A_TIME: Final = 100


class Removable(NamedTuple):
    """A version, kernel outputs, or files on object storage, that nothing in use needs."""

    folder: Path
    """What is removed: a folder, or on object storage the prefix of the files."""
    freed_bytes: int
    """Size of its files, without those that other versions share by hard links or by name."""


def clean(
    run_folder: RunFolder, keep: int, *, keep_unfinished: bool = False, dry_run: bool = False
) -> list[Removable]:
    """Remove old versions, interrupted work, and kernel outputs that the features do not need.

    A version is one numbered output folder of a stage, or one model of a network in the registry. A
    kernel output holds the features of one events file before the events are split and mixed.

    These versions stay:
        - the newest `keep` of each stage,
        - the newest `keep` models of each network in the registry, without withdrawn ones,
        - all versions in use, or read by a job beside this command, such as `compare`,
        - the versions that these models and versions in use were made from: `promote` asks which
          events a model has seen, also of one that a rollback puts in use.
    Results of `evaluate-files` and `compare` belong to the user and stay. Folders without the
    marker file of this code, and targets of symbolic links, stay too, and a message names each.

    Args:
        run_folder: The run folder, which is locked meanwhile, except with `dry_run`.
        keep: How many versions of each stage and network stay, at least 1.
        keep_unfinished: Whether interrupted work that a later run can continue stays too.
        dry_run: Whether only to list what would be removed.

    Returns:
        The versions that were, or would be, removed.
    """
    with nullcontext() if dry_run else run_folder.locked():
        stores = run_folder.stores()
        needed = _needed_folders(run_folder, stores, keep)
        if keep_unfinished:
            needed.update(_continuable_folders(stores))
        removed = []
        # A version comes before those that it was made from, so that they stay with it if a job
        # claims it just now.
        for store in reversed(stores):
            for folders in _batches(_removable_folders(run_folder, store, keep, needed)):
                with nullcontext(folders) if dry_run else unclaimed(folders) as held_folders:
                    claimed_folders = [folder for folder in folders if folder not in held_folders]
                    needed |= _with_sources(run_folder, stores, claimed_folders)
                    removed += _clean_store(run_folder, store, held_folders, dry_run=dry_run)
        # Kernel outputs are no versions: `keep` does not apply, only the features in use count.
        removed += _clean_kernel_outputs(run_folder, dry_run=dry_run)
        freed_bytes = sum(version.freed_bytes for version in removed)
        run_folder.results.add(
            f"{len(removed)} versions removed, {freed_bytes / 1e6:,.1f} MB",
            removed=len(removed),
            freed_bytes=freed_bytes,
        )
    return removed


def _needed_folders(
    run_folder: RunFolder, stores: Sequence[StageStore | Registry], keep: int
) -> set[Path]:
    """Collect the folders of the versions that must stay, and of all versions they were made from.

    The start is what is in use, claimed by a running job, or one of the `keep` newest models of a
    network, which a rollback may put in use.
    """
    to_visit = []
    for store in stores:
        if current := store.current():
            to_visit.append(current.folder)
        if isinstance(store, Registry):
            to_visit += [store.folder / name for name in store.promoted()[-keep:]]
        # A running job claims the folders that it reads or writes.
        complete = [store.folder / name for name in store.complete()]
        to_visit += filter(is_claimed, [*complete, *store.unfinished()])
    return _with_sources(run_folder, stores, to_visit)


def _with_sources(
    run_folder: RunFolder, stores: Sequence[StageStore | Registry], folders: Collection[Path]
) -> set[Path]:
    """Return the folders of versions, and of all versions that they were made from.

    From each folder the walk follows the sources in its manifest, `{stage: version}`, until it
    finds no new folder.
    """
    to_visit = list(folders)
    store_by_folder = {store.folder: store for store in stores}
    needed: set[Path] = set()
    while to_visit:
        # The name of a folder is the version; that of the folder around it is the store.
        folder = to_visit.pop()
        if folder in needed:
            continue
        needed.add(folder)
        manifest = store_by_folder[folder.parent].manifest_of(folder.name)
        if manifest is not None:
            # The manifest names the version of each earlier stage that was read.
            for stage, version in manifest.sources.items():
                to_visit.append(run_folder.config.run_dir / stage / version)
    return needed


def _continuable_folders(stores: Sequence[StageStore | Registry]) -> list[Path]:
    """List the folders of interrupted work that a later run can continue."""
    folders: list[Path] = []
    for store in stores:
        if isinstance(store, StageStore):
            folders += filter(STAGE_OF[store.name].can_continue, store.unfinished())
    return folders


def _removable_folders(
    run_folder: RunFolder, store: StageStore | Registry, keep: int, needed: Collection[Path]
) -> list[Path]:
    """List the version folders of a store to remove: unfinished and old ones that nothing needs.

    A version is old if its number is below that of the `keep`-th newest. `needed` are the folders
    that must stay. A message names each folder that stays because it is not ours to remove.
    """
    # Withdrawn models do not count among the newest, since a rollback skips them.
    counted = store.promoted() if isinstance(store, Registry) else store.complete()
    # Complete versions come in the order of their numbers, so the slice holds the newest.
    oldest_to_keep = number_of(counted[-keep:][0]) if counted else 0
    old = [store.folder / name for name in store.complete() if number_of(name) < oldest_to_keep]
    removable = []
    for folder in (*store.unfinished(), *old):
        if folder in needed:
            continue
        # False for folders without our marker file, for claimed ones, and behind a symbolic link.
        if store.may_remove(folder):
            removable.append(folder)
        else:
            run_folder.say(
                f"note: {folder} is kept: a symbolic link leads there, or it holds no "
                f"{own_folders.MARKER}. Remove it by hand if nothing needs it."
            )
    return removable


def _batches(folders: list[Path]) -> Iterator[list[Path]]:
    """Yield folders in groups that can be held at a time; an empty group if there are none."""
    for start in range(0, max(len(folders), 1), _HELD_AT_A_TIME):
        yield folders[start : start + _HELD_AT_A_TIME]


def _clean_store(
    run_folder: RunFolder, store: StageStore | Registry, folders: list[Path], *, dry_run: bool
) -> list[Removable]:
    """Remove version folders of a store, and the files on object storage that they alone use.

    The caller holds the folders, so that nobody claims one. Nothing is removed with `dry_run`. The
    result names each folder, then each prefix on storage.
    """
    versions = {folder: Removable(folder, _unshared_bytes(folder)) for folder in folders}
    stored_files = []
    if isinstance(store, StageStore) and store.objects:
        # `sizes` are bytes by file name; newer versions may share files of an older one.
        if store.objects.has_another_owner():
            run_folder.say(
                f"note: nothing of {store.objects.root} is removed: another run folder owns it, such "
                f"as a copy of this one, or the one that this is a copy of."
            )
        for version, sizes in store.unused_objects(without=folders).items():
            stored_files.append(Removable(store.objects.root / version, sum(sizes.values())))
    if not dry_run:
        try:
            # Each version is logged once it is gone.
            store.remove(
                folders,
                on_removed=lambda folder: _log_removed(run_folder, "version", versions[folder]),
            )
        # A part of the folders may be gone by now; the next `clean` removes the rest.
        except OSError as cause:
            raise RunFolderError(
                f"{store.folder} cannot be cleaned ({cause}). Fix its permissions."
            ) from cause
        _log_removed(run_folder, "files on storage", *stored_files)
    return [*versions.values(), *stored_files]


def _unshared_bytes(folder: Path) -> int:
    """Add up the bytes that removal frees: files with a hard link elsewhere free nothing."""
    files = [path for path in files_below(folder) if not path.is_symlink()]
    stats = stats_of_files(files).values()
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def _clean_kernel_outputs(run_folder: RunFolder, *, dry_run: bool) -> list[Removable]:
    """Remove the kernel outputs that the features in use were not made from; returns them."""
    features = run_folder.store("features")
    unused = []
    for folder, files in features.unused_kernel_outputs().items():
        freed_bytes = sum(stat.st_size for stat in stats_of_files(files).values())
        unused.append(Removable(folder, freed_bytes))
    if not dry_run:
        features.remove_unused_kernel_outputs()
        _log_removed(run_folder, "kernel outputs", *unused)
    return unused


def _log_removed(run_folder: RunFolder, description: str, *removed: Removable) -> None:
    """Write one event to the log for each removed item; a full disk has no room for a log."""
    for version in removed:
        run_folder.log_if_possible(
            f"{description} removed", folder=str(version.folder), bytes=version.freed_bytes
        )
