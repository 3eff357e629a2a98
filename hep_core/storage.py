"""Finds files by path or URL: file systems, globs, sizes, times, and retries of reads."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import Any, Final

import fsspec
import tenacity
from fsspec.implementations.local import LocalFileSystem

from hep_core.input_errors import UnreachableFileError, UnreadableFileError, remote_error
from hep_core.paths import local_matches
from hep_core.tokens import advice_on_tokens

#: Seconds until a server that does not answer counts as unreachable: for a connection, and for the
#: next bytes.
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 30
#: Attempts at a read whose failure may pass, also of the S3 library at a request for our own files.
ATTEMPTS: Final = 4
#: The limits for XRootD, whose own values make a run wait for minutes. Its client reads them from
#: the environment.
_XROOTD_LIMITS: Final = {
    "XRD_CONNECTIONWINDOW": "5",
    "XRD_CONNECTIONRETRY": "2",
    "XRD_STREAMERRORWINDOW": "10",
    "XRD_REQUESTTIMEOUT": "20",
}
#: Keys of the time or the version of a file in different file systems; the first one counts.
_TIME_KEYS: Final = ("mtime", "ETag", "LastModified", "Last-Modified")

#: Calls a function that reads a file, `retry_remote(read, path)`. It calls again, after a growing
#: pause, when the function raises UnreachableFileError, and raises the last error as it is.
retry_remote: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(ATTEMPTS),
    wait=tenacity.wait_exponential(exp_base=3),
    retry=tenacity.retry_if_exception_type(UnreachableFileError),
    reraise=True,
)


def is_remote(path: Path | str) -> bool:
    """Whether a path, also one from `as_path`, is a URL."""
    return "://" in str(path)


def protocol_of(path: str) -> str:
    """The protocol of a URL in small letters (`s3`); empty for a path.

    Examples:
        >>> protocol_of("S3://bucket/a.root"), protocol_of("/data/a.root")
        ('s3', '')
    """
    return path.partition("://")[0].lower() if is_remote(path) else ""


def url_to_fs(path: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the name of the file on it.

    It also limits how long this process waits for a server of the protocol (`limit_waiting`).

    Raises:
        UnreadableFileError: The URL is wrong, or the plug-in for its protocol is not installed.
    """
    protocol = protocol_of(path)
    if not protocol:
        # fsspec's parser would read '::' in a name as a chain of file systems.
        return LocalFileSystem(), path
    address = path.partition("://")[2]
    server, _, name = address.partition("/")
    if protocol == "root" and name and not name.startswith("/"):
        raise UnreadableFileError(
            f"{path} lacks a slash: XRootD wants a path that starts with one, after the slash "
            f"behind the server. Write root://{server}//{name}"
        )
    if "::" in address:
        raise UnreadableFileError(
            f"{path}: '::' in a URL stands for a chain of file systems, which is not read. Write "
            f"%3A%3A in a web address, the name of a server instead of its IPv6 address, or rename "
            f"the file."
        )
    try:
        limit_waiting(protocol)
        with translate_fs_errors(path, "its server"):
            filesystem, name = fsspec.core.url_to_fs(path)
    # A file system that needs options beside the URL, such as a token, raises ValueError or
    # TypeError.
    except (ImportError, ValueError, TypeError, OSError) as cause:
        raise UnreadableFileError(
            f"{path} cannot be reached ({cause}). Install the plug-in for this kind of URL: pip "
            f"install -e '.[xrootd]' (fsspec-xrootd, for root://), '.[s3]' (s3fs) or '.[https]' "
            f"(aiohttp). Or correct the URL."
        ) from cause
    return filesystem, name


@cache
def limit_waiting(protocol: str) -> None:
    """Limit how long this process waits for a silent server, where the user does not set it.

    It changes the settings of the library of the protocol, once per process. Users set their own
    limits in fsspec's files (`~/.config/fsspec/*.json`) or in the environment (`XRD_*`). Retries of
    the libraries are switched off, since `retry_remote` retries. Local files have an empty
    protocol, for which nothing is set.

    Raises:
        ImportError: The plug-in of the protocol is not installed.
    """
    if protocol == "root":
        for name, value in _XROOTD_LIMITS.items():
            os.environ.setdefault(name, value)
    elif protocol in {"http", "https"}:
        # A whole transfer may take any time, as long as bytes arrive.
        aiohttp = importlib.import_module("aiohttp")
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        _set_fsspec_defaults(("http", "https"), "client_kwargs", {"timeout": timeout})
    elif protocol in {"s3", "s3a"}:
        limits = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"total_max_attempts": 1},
        }
        _set_fsspec_defaults(("s3", "s3a"), "config_kwargs", limits)
        importlib.import_module("s3fs").S3FileSystem.retries = 1


def _set_fsspec_defaults(protocols: tuple[str, ...], key: str, defaults: dict[str, Any]) -> None:
    """Add defaults to a key of fsspec's settings, without overriding the user's values.

    A file system has several protocols (`s3` and `s3a`), and fsspec takes the settings of the last
    one that has any. So the defaults are added there.
    """
    config = fsspec.config.conf
    configured = [name for name in protocols if key in config.get(name, {})]
    protocol = configured[-1] if configured else protocols[0]
    settings = config.setdefault(protocol, {}).setdefault(key, {})
    # On the right side of `|`, the user's values replace the defaults.
    settings.update(defaults | settings)


def size_and_time(path: str) -> tuple[int, str]:
    """Size [bytes] and modification time of a file, as its file system writes the time.

    The time is empty if the file system has none; some give a version (ETag) instead.

    Raises:
        InputFileError: There is no such file, it is a folder, or its server does not answer.
    """
    filesystem, name = url_to_fs(path)
    try:
        with translate_fs_errors(path, "its size"):
            info: dict[str, Any] = filesystem.info(name)
    except (OSError, ValueError) as cause:
        # A link whose target is missing gets a message of its own.
        if not is_remote(path) and Path(path).is_symlink():
            raise UnreadableFileError(
                f"{path} is a link to '{Path(path).readlink()}', which is not there. Correct or "
                f"remove the link."
            ) from cause
        is_refused = isinstance(cause, PermissionError)
        raise UnreadableFileError(
            f"{path} cannot be opened ({cause}). Check the path and its permissions."
            f"{advice_on_tokens(path, is_refused=is_refused)}"
        ) from cause
    file_type = info.get("type")
    if file_type == "directory":
        raise UnreadableFileError(
            f"{path} is a folder. Give a glob of the files in it, such as '{path}/*.root'."
        )
    if file_type != "file":
        raise UnreadableFileError(
            f"{path} is no ordinary file (a {file_type}). Take it out of the sample's files."
        )
    times = [info[key] for key in _TIME_KEYS if info.get(key)]
    return int(info["size"] or 0), str(times[0]) if times else ""


def matching_files(pattern: str) -> list[str]:
    """Sorted paths or URLs of files that match a pattern; empty if none does.

    An existing path, also of a broken link, matches only itself, even with wildcards in it.
    """
    filesystem, name = url_to_fs(pattern)
    is_link = not is_remote(pattern) and Path(pattern).is_symlink()
    if is_link or _exists(filesystem, name, pattern):
        return [pattern]
    if not has_magic(name):
        return []
    if not is_remote(pattern):
        return local_matches(pattern)
    # Two stars within a name mean the same as one, as in a shell; fsspec refuses them.
    name = re.sub(r"(?<=[^/])\*{2,}|\*{2,}(?=[^/])", "*", name)
    with translate_fs_errors(pattern, "the list of its files"):
        matches = [str(path) for path in filesystem.glob(name) if not filesystem.isdir(path)]
    return [filesystem.unstrip_protocol(path) for path in sorted(matches)]


def _exists(filesystem: Any, name: str, pattern: str) -> bool:
    """Whether a name is there; `filesystem.exists` would say no where a server fails or refuses."""
    try:
        filesystem.info(name)
    except Exception as cause:
        problem = remote_error(pattern, where="whether it is there", cause=cause)
        # A server may fail on a name with wildcards, or refuse it. Then the list of its files
        # decides.
        is_failure = isinstance(problem, UnreachableFileError) or "Bad Request" in str(cause)
        if problem and not (is_failure and has_magic(name)):
            raise problem from cause
        return False
    return True


def as_path(path: str) -> Path:
    """The path of a file or folder that this pipeline writes; a URL gives a universal-pathlib path.

    Operations on a remote path are tried several times, and nothing about the files is cached.
    """
    if not is_remote(path):
        return Path(path)
    # This call checks the URL and limits the waiting; its result is not needed.
    url_to_fs(path)
    upath = importlib.import_module("upath")
    config = dict(fsspec.config.conf.get(protocol_of(path), {}).get("config_kwargs", {}))
    config["retries"] = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    # Other processes write there too, so lists of files are not cached. Readers of Parquet ask for
    # exactly the bytes that they need, so nothing is read ahead.
    remote_path: Path = upath.UPath(
        path, use_listings_cache=False, default_cache_type="none", config_kwargs=config
    )
    # The number of attempts at reads that break off.
    filesystem, _ = path_to_fs(remote_path)
    filesystem.retries = ATTEMPTS
    return remote_path


def path_to_fs(path: Path) -> tuple[Any, str]:
    """The file system of a path from `as_path`, and the name on it."""
    if not is_remote(path):
        return LocalFileSystem(), str(path.absolute())
    remote_path: Any = path
    return remote_path.fs, remote_path.path


@contextmanager
def translate_fs_errors(path: Path | str, subject: str) -> Iterator[None]:
    """Turn errors of a silent or refusing server or disk in the context into `InputFileError`.

    The new error names the `subject` of the read, such as "its size". Other errors pass unchanged.
    """
    try:
        yield
    except Exception as cause:
        if problem := remote_error(str(path), where=subject, cause=cause):
            raise problem from cause
        raise


def make_folder(folder: Path) -> None:
    """Make a local folder; object storage has none."""
    if not is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)


def parquet_source(path: Path) -> Any:
    """The source of a file for pyarrow: a local path, or an open file of object storage."""
    return path.open("rb") if is_remote(path) else path


def files_below(folder: Path) -> list[Path]:
    """Return the paths of all files below a local folder.

    Folders that another process removes meanwhile count as empty, as do unreadable ones. Links to
    folders are not followed.
    """
    paths = []
    # Unlike `rglob`, `walk` passes over a folder that vanishes after its name was listed.
    for parent, _, names in os.walk(folder):
        paths += [Path(parent, name) for name in names]
    return paths


def stats_of_files(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Return size, links and times of local files, without those that are gone by now."""
    stats = {}
    for path in paths:
        # Another process may remove the file between the two calls.
        with suppress(FileNotFoundError):
            if path.is_file():
                stats[path] = path.stat()
    return stats


def file_sizes(folder: Path) -> dict[str, int]:
    """Sizes [bytes] of all files below a folder, by their paths below it."""
    if is_remote(folder):
        return _remote_file_sizes(folder)
    sizes = {}
    for path, stat in stats_of_files(files_below(folder)).items():
        path_below = path.relative_to(folder).as_posix()
        sizes[path_below] = stat.st_size
    return sizes


def _remote_file_sizes(folder: Path) -> dict[str, int]:
    """Return what `file_sizes` returns, for a folder on a server."""
    filesystem, name = path_to_fs(folder)
    with translate_fs_errors(folder, "the list of its files"):
        infos: dict[str, dict[str, Any]] = filesystem.find(name, detail=True)
    sizes = {}
    for path, info in infos.items():
        path_below = path.removeprefix(f"{name}/")
        sizes[path_below] = int(info["size"])
    return sizes


def read_footers(files: Iterable[Path]) -> list[Any]:
    """The footers of Parquet files, each a `pyarrow.parquet.FileMetaData`."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - planning does not load it

    # On object storage, the wait for an answer takes longer than all other work.
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda file: pq.read_metadata(parquet_source(file)), files))
