"""Where files lie: their file systems by path or URL, globs, sizes, times; how long a silent server is waited for."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ingestion.errors import UnreadableFileError, remote_error

#: Seconds until a server that does not answer counts as unreachable: for a connection, and for the next bytes.
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 30
#: The same for XRootD, whose own values make a run wait for minutes; its client reads them from the environment.
_XROOTD: Final = {
    "XRD_CONNECTIONWINDOW": "5",
    "XRD_CONNECTIONRETRY": "2",
    "XRD_STREAMERRORWINDOW": "10",
    "XRD_REQUESTTIMEOUT": "20",
}


def is_url(path: str) -> bool:
    """Whether a path names a server or a plug-in's file system."""
    return "://" in path


def protocol_of(path: str) -> str:
    """The protocol of a URL in small letters (`s3`); empty for a path.

    Examples:
        >>> protocol_of("S3://bucket/a.root"), protocol_of("/data/a.root")
        ('s3', '')
    """
    return path.partition("://")[0].lower() if is_url(path) else ""


def has_wildcards(name: str) -> bool:
    """Whether a name contains wildcards."""
    return any(sign in name for sign in "*?[")


def file_system(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the name on it.

    Raises:
        UnreadableFileError: There is none, or the URL has another form.
    """
    protocol = protocol_of(path)
    if not protocol:
        # fsspec's parser would read '::' in a name as a chain of file systems.
        return LocalFileSystem(), path
    server, _, name = path.partition("://")[2].partition("/")
    if protocol == "root" and name and not name.startswith("/"):
        raise UnreadableFileError(
            f"{path} lacks a slash: XRootD wants a path that starts with one, after the slash behind the server. "
            f"Write root://{server}//{name}"
        )
    try:
        limit_waiting(protocol)
        filesystem, name = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as cause:
        raise UnreadableFileError(
            f"{path} cannot be reached ({cause}). Install the plug-in for this kind of URL: pip install -e '.[xrootd]' "
            f"(fsspec-xrootd, for root://), '.[s3]' (s3fs) or '.[https]' (aiohttp). Or correct the URL."
        ) from cause
    return filesystem, name


@cache
def limit_waiting(protocol: str) -> None:
    """Limit in this process how long a silent server is waited for, where the user's settings do not say it.

    Users say it in fsspec's own files (`~/.config/fsspec/*.json`) or in the environment (`XRD_*`). Further attempts
    are those of `ingestion.retrying`, not also those of the libraries.

    Args:
        protocol: What stands before `://`; empty for local files.

    Raises:
        ImportError: The plug-in of the protocol is not installed.
    """
    if protocol == "root":
        for name, value in _XROOTD.items():
            os.environ.setdefault(name, value)
    elif protocol in {"http", "https"}:
        aiohttp = importlib.import_module("aiohttp")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        _settings("client_kwargs", "http", "https").setdefault("timeout", timeout)
    elif protocol in {"s3", "s3a"}:
        settings = _settings("config_kwargs", "s3", "s3a")
        settings.setdefault("connect_timeout", CONNECT_SECONDS)
        settings.setdefault("read_timeout", READ_SECONDS)
        settings.setdefault("retries", {"total_max_attempts": 1})
        importlib.import_module("s3fs").S3FileSystem.retries = 1


def _settings(key: str, *protocols: str) -> dict[str, Any]:
    """The part of fsspec's settings for a file system of several protocols: the user's own, if there is one.

    The settings of all its protocols are merged, those of a later one instead of an earlier one's.
    """
    conf: dict[str, dict[str, Any]] = fsspec.config.conf
    given = [conf[name][key] for name in protocols if key in conf.get(name, {})]
    if given:
        settings: dict[str, Any] = given[-1]
        return settings
    added: dict[str, Any] = conf.setdefault(protocols[0], {}).setdefault(key, {})
    return added


def size_and_time(path: str) -> tuple[int, str]:
    """Size in bytes, and modification time in the words of the file system (empty if it has none).

    Raises:
        IngestionError: It is no file, or cannot be asked for.
    """
    filesystem, name = file_system(path)
    try:
        info: dict[str, Any] = filesystem.info(name)
    except Exception as cause:
        if problem := remote_error(path, where="its size", cause=cause):
            raise problem from cause
        if not isinstance(cause, OSError | ValueError):
            raise
        raise UnreadableFileError(f"{path} cannot be opened ({cause}). Check the path and its permissions.") from cause
    if info.get("type") == "directory":
        raise UnreadableFileError(f"{path} is a folder. Give a glob of the files in it, such as '{path}/*.root'.")
    if info.get("type") != "file":
        raise UnreadableFileError(
            f"{path} is no ordinary file (a {info.get('type')}). Take it out of the sample's files."
        )
    stamp = next((info[key] for key in ("mtime", "ETag", "LastModified", "Last-Modified") if info.get(key)), "")
    return int(info["size"] or 0), str(stamp)


def matching(pattern: str) -> list[str]:
    """Sorted paths or URLs that match; an existing path matches itself.

    Raises:
        IngestionError: The server does not answer, refuses or is not trusted.
    """
    filesystem, name = file_system(pattern)
    # An existing name is no pattern, even with wildcards in it.
    if _exists(filesystem, name, pattern):
        return [pattern]
    if not has_wildcards(name):
        return []
    try:
        found = sorted(str(path) for path in filesystem.glob(name) if not filesystem.isdir(path))
    except Exception as cause:
        if problem := remote_error(pattern, where="the list of its files", cause=cause):
            raise problem from cause
        raise
    if not is_url(pattern):
        return found
    return [filesystem.unstrip_protocol(path) for path in found]


def _exists(filesystem: Any, name: str, pattern: str) -> bool:
    """Like `filesystem.exists`, but raises when a server is down or refuses, where `exists` is False."""
    if not is_url(pattern):
        return bool(filesystem.exists(name))
    try:
        filesystem.info(name)
    except Exception as cause:
        problem = remote_error(pattern, where="whether it is there", cause=cause)
        # A server may not understand a name with wildcards; the list of the files tells then.
        if problem and not (problem.may_pass and has_wildcards(name)):
            raise problem from cause
        return False
    return True
