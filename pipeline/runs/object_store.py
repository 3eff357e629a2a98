"""Files of a stage on object storage, where the config names one (`storage`).

    <storage>/<stage>/made-by-hep-pipeline          token of the last use, path of the run folder
    <storage>/<stage>/0002-1f0a93bc/events/...      the files that the run of this version wrote
    <storage>/<stage>/kernels/0002-1f0a93bc/...     and its kernel outputs

Manifests stay in the run folder. They name all files of a version by URL, also those that earlier
runs wrote, so a file is there once. The run folder keeps its token in `<stage>/storage.json`. A run
folder that has another one, or none, is refused before it writes, as is a copy of the owner.
Objects are removed only where the run folder is the owner.

Each use replaces the token: the begin of a version, its commit, a removal. A copy of the run
folder, on whatever machine, has the token of an earlier use, and is refused.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from hep_core.atomic_files import write_atomically
from hep_core.input_errors import RefusedFileError
from hep_core.integrity import file_digest
from hep_core.storage import file_sizes, path_to_fs, translate_fs_errors
from pipeline.errors import StorageInUseError
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.manifest import VERSION_NAME
from pipeline.runs.outputs import OutputFile, footer_of
from pipeline.runs.own_folders import MARKER
from pipeline.runs.state_files import read_state

#: File of the run folder with its tokens, by folder on object storage.
_TOKENS: Final = "storage.json"
_TOKENS_TYPE: Final = TypeAdapter(dict[str, list[str]])
#: What to do about a folder on object storage that another run folder owns.
_REMEDY: Final = (
    "Give each run folder a `storage` of its own, or remove the folder there if nothing needs it."
)
#: Paths of stored files below the folder of the stage; all others are not ours to remove.
_OBJECT: Final = re.compile(rf"(?:{KERNELS}/)?{VERSION_NAME.pattern}/.+")


class ObjectStore:
    """Knows the objects (stored files) of one stage, and whether this run folder owns them.

    Args:
        root: The folder on object storage.
        stage_folder: The folder of the stage in the run folder.
    """

    def __init__(self, root: Path, stage_folder: Path) -> None:
        self.root = root
        self._stage_folder = stage_folder.absolute()

    def claim(self) -> None:
        """Make this run folder the owner of the folder on object storage, with a new token.

        Ownership is a random token that stands both in the run folder and on object storage. Each
        claim replaces it, so that copies of the run folder, which hold an earlier one, are refused.

        Raises:
            StorageInUseError: Another run folder owns it, or nobody knows who wrote its objects.
        """
        has_owner = self.is_owned()
        if not has_owner:
            self._refuse_unknown_objects()
        token = uuid.uuid4().hex
        # The run folder knows the new token first, and forgets the old ones last: after a kill in
        # between it knows the token on object storage, whichever that is.
        self._write_tokens([*self._tokens(self._stage_folder), token])
        self._write_owner(f"{token} {self._stage_folder}", replace=has_owner)
        self._write_tokens([token])

    def renew_claim(self) -> None:
        """Claim the folder on object storage again; unlike `claim`, it must be owned already.

        Raises:
            StorageInUseError: Another run folder has claimed it since.
        """
        if not self.is_owned():
            raise StorageInUseError(
                f"{self.root} is no longer owned by {self._stage_folder}: another run folder, such "
                f"as a copy of this one, has claimed it since. {_REMEDY}"
            )
        self.claim()

    def _refuse_unknown_objects(self) -> None:
        """Refuse a folder on object storage that has another owner, or objects of an unknown one.

        Raises:
            StorageInUseError: It is such a folder.
        """
        unknown_objects = sorted(self.sizes())
        if not (self._owner() or unknown_objects):
            return
        example = unknown_objects[0] if unknown_objects else MARKER
        raise StorageInUseError(
            f"{self.root} holds {example}, which this run folder does not know: another run folder "
            f"writes there, such as a copy of this one, or the run folder that did is gone. "
            f"{_REMEDY}"
        )

    def is_owned(self) -> bool:
        """Return whether this run folder owns the folder on object storage.

        It does if it knows the token that is stored there, and is no copy of the owner: either the
        stored path is its own, or no run folder with the token is at the stored path any more.
        """
        # Earlier releases wrote no path, and noted two tokens, of the last run and the one before.
        token, _, owner_folder = self._owner().partition(" ")
        if token not in self._tokens(self._stage_folder):
            return False
        is_here = owner_folder in {"", str(self._stage_folder)}
        # The owner may have moved here. If it is still there, this is a copy.
        return is_here or token not in self._tokens(Path(owner_folder))

    def has_another_owner(self) -> bool:
        """Return whether another run folder owns the folder on object storage."""
        return bool(self._owner()) and not self.is_owned()

    def written(self, version: str, digests: Mapping[str, str]) -> list[OutputFile]:
        """Describe the files that the run of a version wrote, without kernel outputs.

        Args:
            version: The name of the version, such as `0002-1f0a93bc`.
            digests: Known digests by path; files without one are read.
        """
        folder = self.root / version

        def describe(path: str, size: int) -> OutputFile:
            """Return the record of one file for the manifest."""
            file = folder / path
            with translate_fs_errors(folder, path):
                digest = digests.get(path, "")
                if not digest:
                    digest = file_digest(file)
                footer = footer_of(file)
            # No JSON lies there, so the digest of the bytes is that of the content.
            return OutputFile(path, size, digest, digest, str(folder), footer)

        sizes = file_sizes(folder)
        paths = sorted(sizes)
        sizes_in_order = [sizes[path] for path in paths]
        # On object storage, the wait for an answer takes longer than all else.
        with ThreadPoolExecutor() as threads:
            return list(threads.map(describe, paths, sizes_in_order))

    def unused(self, used: Collection[str]) -> dict[str, dict[str, int]]:
        """Find the objects that nothing uses; none if this run folder does not own them.

        Args:
            used: Paths of used objects, below the folder of the stage.

        Returns:
            Sizes [bytes] by name of the version and path below the folder of the stage.
        """
        unused: defaultdict[str, dict[str, int]] = defaultdict(dict)
        if not self.is_owned():
            return unused
        for path, size in self.sizes().items():
            if path in used:
                continue
            path_in_version_folder = path.removeprefix(f"{KERNELS}/")
            version, _, _ = path_in_version_folder.partition("/")
            unused[version][path] = size
        return dict(unused)

    def remove(self, paths: Collection[str]) -> None:
        """Remove objects by their paths below the folder of the stage.

        Raises:
            RefusedFileError: An object is still there afterwards.
        """
        if not paths:
            return
        system, root = path_to_fs(self.root)
        with translate_fs_errors(self.root, "the storage"):
            system.rm([f"{root}/{path}" for path in paths])
        # s3fs passes over the objects that a server refuses to remove.
        refused = sorted(set(paths) & set(file_sizes(self.root)))
        if refused:
            raise RefusedFileError(
                f"{self.root / refused[0]} cannot be removed: the server refuses it. Give the key "
                f"the right to remove objects (s3:DeleteObject), and run the command again."
            )

    def sizes(self) -> dict[str, int]:
        """Sizes [bytes] of all objects of versions, by path below the folder of the stage."""
        sizes = file_sizes(self.root)
        return {path: size for path, size in sizes.items() if _OBJECT.fullmatch(path)}

    def paths_below(self, files: Iterable[OutputFile]) -> set[str]:
        """Paths of files of versions, below the folder of the stage, that lie on object storage."""
        urls = (f"{file.lies_in}/{file.path}" for file in files if file.lies_in)
        return {url.removeprefix(f"{self.root}/") for url in urls}

    def _tokens(self, stage_folder: Path) -> list[str]:
        return _read_tokens(stage_folder).get(str(self.root), [])

    def _owner(self) -> str:
        """Token and path of the owner; empty if there is none."""
        with translate_fs_errors(self.root, "the storage"):
            try:
                return (self.root / MARKER).read_text(encoding="utf-8")
            except FileNotFoundError:
                return ""

    def _write_owner(self, owner: str, *, replace: bool) -> None:
        """Write token and path of the owner; of several first owners only one succeeds.

        Args:
            owner: Token and path.
            replace: Whether this run folder is the owner already.

        Raises:
            StorageInUseError: Another run folder has written its own before.
        """
        system, name = path_to_fs(self.root / MARKER)
        # The mode `create` fails if the object exists: a PUT with `If-None-Match`.
        mode = "overwrite" if replace else "create"
        with translate_fs_errors(self.root, "the storage"):
            try:
                system.pipe_file(name, owner.encode(), mode=mode)
            except FileExistsError as cause:
                raise StorageInUseError(
                    f"{self.root / MARKER} is there already: another run with the same `storage` "
                    f"was faster. Give each run folder a storage of its own, or begin again."
                ) from cause

    def _write_tokens(self, tokens: list[str]) -> None:
        """Note the tokens of this folder on object storage in the run folder."""
        self._stage_folder.mkdir(parents=True, exist_ok=True)
        all_tokens = _read_tokens(self._stage_folder)
        write_atomically(self._stage_folder / _TOKENS, {**all_tokens, str(self.root): tokens})


def _read_tokens(stage_folder: Path) -> dict[str, list[str]]:
    """Return the tokens of a run folder, by folder on object storage; empty without any."""
    path = stage_folder / _TOKENS
    if not os.path.lexists(path):
        return {}
    remedy = "Restore its last state, or choose another `storage`."
    return read_state(path, _TOKENS_TYPE, remedy=remedy)
