"""`clean`: remove old versions that nothing in use needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs import own_folders
from pipeline.runs.log import size_of
from pipeline.runs.model_registry import Registry
from pipeline.runs.own_folders import is_claimed
from pipeline.runs.store import StageStore, number_of


class Removable(NamedTuple):
    """A version, kernel outputs, or files on object storage, that nothing in use needs."""

    folder: Path
    freed_bytes: int
    """Size of its files, without those that other versions share by hard links or by name."""


def clean(run_folder: RunFolder, keep: int, *, dry_run: bool = False) -> list[Removable]:
    """Remove old versions, interrupted work, and kernel outputs that the features in use were not made from.

    These versions stay: the newest `keep` of each stage; the newest `keep` models of each network in the registry,
    without withdrawn ones, for rollbacks; all versions in use; all versions that a job beside this command, such as
    `compare`, reads; and the versions that these were made from. Results of `evaluate-files` and `compare` belong to
    the user and stay. Folders that this code has not made, and targets of symbolic links, stay and are named.

    Returns:
        The versions that were, or would be, removed.
    """
    with nullcontext() if dry_run else run_folder.locked():
        stores = run_folder.stores()
        needed = _needed(run_folder, stores)
        # All are chosen before the first is removed.
        chosen = [(store, _removable(run_folder, store, keep, needed)) for store in stores]
        found = [
            each
            for store, folders in chosen
            for each in _clean(run_folder, store, folders, dry_run=dry_run)
        ]
        features = run_folder.store("features")
        kernels = [
            Removable(folder, size_of(files)) for folder, files in features.unused_outputs().items()
        ]
        if not dry_run:
            features.remove_unused_outputs()
            _log(run_folder, "kernel outputs", *kernels)
        found += kernels
        freed_bytes = sum(removable.freed_bytes for removable in found)
        words = f"{len(found)} versions removed, {freed_bytes / 1e6:,.1f} MB"
        run_folder.results.add(words, removed=len(found), freed_bytes=freed_bytes)
    return found


def _clean(
    run_folder: RunFolder, store: StageStore, folders: list[Path], *, dry_run: bool
) -> list[Removable]:
    """Remove version folders of a store, and what they alone use on object storage; each is logged once it is gone."""
    versions = {}
    for folder in folders:
        files = [path.lstat() for path in folder.rglob("*") if path.is_file()]
        versions[folder] = Removable(
            folder, sum(each.st_size for each in files if each.st_nlink == 1)
        )
    stored = []
    if store.stored:
        unused, root = store.unused_files(without=folders), store.stored.root
        stored = [
            Removable(root / version, sum(sizes.values())) for version, sizes in unused.items()
        ]

    if not dry_run:
        try:
            store.remove(
                folders, on_removed=lambda folder: _log(run_folder, "version", versions[folder])
            )
        except OSError as cause:
            raise RunFolderError(
                f"{store.folder} cannot be cleaned ({cause}). Fix its permissions."
            ) from cause
        _log(run_folder, "files on storage", *stored)
    return [*versions.values(), *stored]


def _log(run_folder: RunFolder, what: str, *removed: Removable) -> None:
    for each in removed:
        run_folder.log.event(f"{what} removed", folder=str(each.folder), bytes=each.freed_bytes)


def _removable(
    run_folder: RunFolder, store: StageStore, keep: int, needed: Collection[Path]
) -> list[Path]:
    """The version folders of a store to remove."""
    # Withdrawn models do not count, since a rollback skips them.
    worth_keeping = store.promoted() if isinstance(store, Registry) else store.complete()
    first_kept = number_of(worth_keeping[-keep:][0]) if worth_keeping else 0
    old = [store.folder / name for name in store.complete() if number_of(name) < first_kept]
    found = []
    for folder in (*store.unfinished(), *old):
        if folder in needed:
            continue
        if store.may_remove(folder):
            found.append(folder)
        else:
            run_folder.say(
                f"note: {folder} is kept: a symbolic link leads there, or it holds no {own_folders.MARKER}. "
                f"Remove it by hand if nothing needs it."
            )
    return found


def _needed(run_folder: RunFolder, stores: Sequence[StageStore]) -> set[Path]:
    """Folders of the versions in use or claimed by a running job, and of all that they were made from."""
    waiting = [current.folder for store in stores if (current := store.current())]
    for store in stores:
        folders = [*(store.folder / name for name in store.complete()), *store.unfinished()]
        waiting += filter(is_claimed, folders)
    store_of = {store.folder: store for store in stores}
    needed: set[Path] = set()
    while waiting:
        folder = waiting.pop()
        if folder not in needed:
            needed.add(folder)
            manifest = store_of[folder.parent].manifest_of(folder.name) or {}
            # Models that were promoted name their training.
            upstream = manifest.get(
                "upstream", {key: manifest[key] for key in ("train",) if key in manifest}
            )
            waiting += [
                run_folder.config.run_dir / stage / version for stage, version in upstream.items()
            ]
    return needed
