"""Errors of files that users give or servers hold; each message says what is wrong, where and what to do.

Every exception takes its finished message as the only argument, so that Spark can send it from a task to the driver.
"""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, Self

from hep_core.allocation import lack_of_memory
from hep_core.secrets import redact

#: Error numbers of files that no retry helps: damaged bytes cause the first three, as sizes and places; a wrong path
#: causes the others. Any other error may pass: a file that is given up for it would be lost for good.
_LASTING: Final = {
    *(errno.EINVAL, errno.EOVERFLOW, errno.EFBIG),
    *(
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EACCES,
        errno.EPERM,
    ),
}
#: What the errors of servers that refuse begin with or hold: certificates, credentials, buckets; XRootD has numbers.
_REFUSALS: Final = re.compile(
    r"\w*(Cert|Credentials)\w*Error: |NoSuchBucket: |.*(\[3010\]|auth failed)", re.IGNORECASE
)
#: Libraries whose errors are of the network, even if they are no OSError.
_REMOTE_LIBRARIES: Final = {
    "aiohttp",
    "botocore",
    "fsspec",
    "fsspec_xrootd",
    "http",
    "requests",
    "urllib3",
}


class InputFileError(Exception):
    """An error of the input that its owner can fix; the message hides secrets in URLs."""

    may_be_skipped: ClassVar[bool] = True
    """Whether the file may be skipped for it; else other files fail likewise."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UnreadableFileError(InputFileError):
    """The file is absent, cannot be opened or is no ROOT file."""


class DamagedFileError(InputFileError):
    """The file opens, but some of its data cannot be read."""

    @classmethod
    def at(cls, path: str, *, where: str, cause: Exception) -> Self:
        """Say which branch and entries cannot be read, with the message of uproot."""
        return cls(
            f"{path} is damaged: {where} cannot be read ({_described(cause)}). "
            f"Copy it again, or take it out of the sample's files."
        )


class UnreachableFileError(InputFileError):
    """The file could not be read this time; a second attempt may succeed."""


class RefusedFileError(InputFileError):
    """The server wants other credentials, has no such bucket, or shows a certificate that is not trusted."""

    may_be_skipped = False


class ProgramReadError(InputFileError):
    """A package is missing or broken, or this program has an error; the file may be good, and is never skipped."""

    may_be_skipped = False


@contextmanager
def translate_read_errors(path: str, where: str) -> Iterator[None]:
    """Turn whatever uproot raises into an error about a file: damaged bytes make it raise almost anything."""
    try:
        yield
    except InputFileError:
        raise
    except Exception as cause:
        if lack_of_memory(cause):
            raise
        raise read_error(path, where=where, cause=cause) from cause


def read_error(path: str, *, where: str, cause: Exception) -> InputFileError:
    """The error to raise after a failed read: the file is damaged, gone or out of reach, or the program is at fault."""
    if problem := remote_error(path, where=where, cause=cause):
        return problem
    if isinstance(cause, FileNotFoundError | PermissionError):
        return UnreadableFileError(
            f"{path} cannot be opened any more ({cause}). Check the path and its permissions."
        )
    if not _of_the_program(cause):
        return DamagedFileError.at(path, where=where, cause=cause)
    return ProgramReadError(
        f"{path}: {where} cannot be read ({_described(cause)}): a package is missing or broken, or this program has an "
        f"error. Run `make setup` or `python -m pipeline doctor`; if only this file fails, take it out of the sample's "
        f"files."
    )


def remote_error(path: str, *, where: str, cause: Exception) -> InputFileError | None:
    """The error to raise if the server, the network or a disk is at fault; None if it is something else."""
    # fsspec raises FileNotFoundError for every failure while it asks for a size.
    reason: BaseException = cause
    while isinstance(reason, FileNotFoundError) and reason.__cause__ is not None:
        reason = reason.__cause__
    is_forbidden = isinstance(reason, PermissionError) or getattr(reason, "status", None) in {
        401,
        403,
        407,
    }
    if "://" in path and (is_forbidden or _REFUSALS.match(_described(reason))):
        return RefusedFileError(
            f"{path}: the server refuses {where} ({_described(reason)}). Correct the URL, the credentials or the "
            f"certificate; docs/own-files.md names the variables of each kind of server."
        )
    passes = isinstance(cause, TimeoutError | ConnectionError) or (
        isinstance(cause, OSError) and cause.errno and cause.errno not in _LASTING
    )
    if not (passes or ("://" in path and _of_the_server(reason))):
        return None
    return UnreachableFileError(
        f"{path}: {where} could not be read ({_described(cause)}). "
        f"Check that its server or disk answers, and run again."
    )


def _of_the_server(cause: BaseException) -> bool:
    """Whether the server is at fault that a URL could not be read; else the URL is."""
    status = getattr(cause, "status", None)
    if status is not None:
        return int(status) >= 500
    # XRootD reports a missing file by this number.
    is_missing = isinstance(cause, FileNotFoundError | IsADirectoryError) or (
        isinstance(cause, OSError)
        and re.search(r"\[3011\]|no such file", str(cause), re.IGNORECASE)
    )
    # fsspec puts the exceptions of failed reads among the bytes of others, and uproot tries to slice them.
    is_sliced = isinstance(cause, TypeError) and "not subscriptable" in str(cause)
    library = type(cause).__module__.split(".")[0]
    return not is_missing and (
        is_sliced or isinstance(cause, OSError) or library in _REMOTE_LIBRARIES
    )


def _of_the_program(cause: Exception) -> bool:
    """Whether an exception shows an error of a program: by its type, or raised by code of this package.

    In uproot's own code, damaged bytes raise AttributeError and TypeError too.
    """
    modules = [
        "",
        *(
            frame.f_globals.get("__name__", "")
            for frame, _ in traceback.walk_tb(cause.__traceback__)
        ),
    ]
    if modules[-1].startswith("uproot.") and isinstance(cause, AttributeError | TypeError):
        return False
    is_ours = modules[-1].startswith(("hep_core.", "ingestion."))
    return is_ours or isinstance(cause, AttributeError | ImportError | NameError | TypeError)


def nearest_names(name: str, available: Sequence[str]) -> str:
    """A sentence with the names most like this one, in any case; empty if none is similar."""
    plain = {each.lower().replace("_", "."): each for each in available}
    near = [
        plain[each]
        for each in difflib.get_close_matches(
            name.lower().replace("_", "."), plain, n=3, cutoff=0.4
        )
    ]
    return f" Nearest: {', '.join(near)}." if near else ""


def shortened_list(names: Sequence[str], *, at_most: int = 8) -> str:
    """The first names of many, and the number of the others."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def _described(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {next(iter(str(cause).strip().splitlines()), 'no message')}"
