"""The lock of a folder: one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TextIO

from pipeline.errors import FolderInUseError, RunFolderError, cannot_write

#: File with the process id of the holder.
LOCK: Final = ".lock"
#: Attempts at a lock whose holder has not said who it is, 10 ms apart.
_ATTEMPTS: Final = 100


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder while the `with` block runs; a second run is refused.

    The operating system frees the lock when the process ends, however that ends.
    The folder itself is locked, so nobody frees it by removing a file. Its file `.lock` is locked
    too, since NFS informs other hosts only of locks on files. Folders that were made for the lock
    are removed with it if they are empty.

    Raises:
        FolderInUseError: Another run holds the folder.
        RunFolderError: The folder cannot be written, or its file system has no locks.
    """
    with ExitStack() as stack:
        try:
            # The folders that this lock creates, the innermost first.
            missing_folders = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            lock_file = stack.enter_context((folder / LOCK).open("a+"))
        except OSError as cause:
            raise cannot_write(folder, cause) from cause
        _lock(descriptor, lock_file, folder)
        # A refused run reads the process id here for its message.
        _replace_text(lock_file, str(os.getpid()))
        try:
            yield
        finally:
            _replace_text(lock_file, "")
            if missing_folders:
                _remove_if_empty(missing_folders)


def _replace_text(lock_file: TextIO, text: str) -> None:
    """Replace the text of a lock file, if the disk has room for it: the lock holds without it."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock_file.fileno(), 0)
        os.write(lock_file.fileno(), text.encode())


def _lock(descriptor: int, lock_file: TextIO, folder: Path) -> None:
    """Lock a folder and its file `.lock`, or refuse because another run holds them.

    It tries at most a second: until it gets both locks, or the holder's process id is readable.

    Args:
        descriptor: The open folder.
        lock_file: The open file `.lock` in it.
        folder: The path of the folder, for messages.

    Raises:
        FolderInUseError: Another run holds the folder.
        RunFolderError: The file system has no locks.
    """
    holder = ""
    # A run writes its process id just after it gets the lock, and removes it just before it frees
    # the lock.
    for _ in range(_ATTEMPTS):
        try:
            _lock_folder(descriptor)
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.seek(0)
            holder = lock_file.read().strip()
            if holder:
                break
            time.sleep(0.01)
        except OSError as cause:
            raise RunFolderError(
                f"{folder}: its file system cannot lock files ({cause}), so two runs could write "
                f"there at once. Mount it with locks (Lustre: the option `flock`; NFS: a lock "
                f"daemon), or choose a run_dir on another file system."
            ) from cause
        else:
            # A removed folder has no links; a lock on it would protect nothing.
            if os.fstat(descriptor).st_nlink:
                return
            # Another run has just removed the folder that it made.
            break
    raise FolderInUseError(
        f"{folder} is in use by another run (process {holder or 'unknown'}). "
        f"Wait for it (--wait 600), end it, or choose another run_dir."
    )


def _lock_folder(descriptor: int) -> None:
    """Lock an open folder, without waiting; nothing happens if its file system locks only files.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _remove_if_empty(folders: list[Path]) -> None:
    """Remove folders, the innermost first, until one of them holds anything else.

    Nothing is removed if the innermost holds more than the file `.lock`.
    """
    innermost = folders[0]
    if [path.name for path in innermost.iterdir()] != [LOCK]:
        return
    (innermost / LOCK).unlink()
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()
