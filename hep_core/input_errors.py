"""Errors of files of users and servers; a message says what is wrong, where and what to do.

Every exception takes its finished message, and a remedy in the config if there is one, as its
arguments, so that Spark can send it from a task to the driver.
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
from hep_core.tokens import advice_on_tokens

#: Error numbers of files that no retry helps. Damaged bytes cause the first three, as sizes and
#: offsets; a wrong path causes the others. Any other error may pass: a file that is given up for it
#: would be lost for good.
_LASTING: Final = {
    errno.EINVAL,
    errno.EOVERFLOW,
    errno.EFBIG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
}
#: Errors of servers that refuse, or of libraries that ask them for nothing without valid
#: credentials: certificates, credentials, buckets; XRootD has numbers. S3 calls a request with a
#: token that has ended a bad one.
_REFUSALS: Final = re.compile(
    r"\w*(Cert|Credentials)\w*Error: |NoSuchBucket: |OSError: \[Errno 22\] Bad Request"
    r"|.*(\[3010\]|auth failed|credentials are still expired)",
    re.IGNORECASE,
)
#: Status codes of web servers that refuse.
_REFUSING_STATUS: Final = {401, 403, 407}
#: Libraries whose errors are of the network, even if they are no OSError.
_NETWORK_LIBRARIES: Final = {
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
    """Whether a run may skip the file; after the other errors, more files would fail likewise."""

    def __init__(self, message: str, config_remedy: str = "") -> None:
        """Make an error of its finished message.

        Args:
            message: What is wrong, and what to do whatever the config says.
            config_remedy: What to do by keys of the config; empty if no key helps.
        """
        arguments = [redact(message)]
        if config_remedy:
            arguments.append(redact(config_remedy))
        super().__init__(*arguments)

    def __str__(self) -> str:
        """Return the message and the remedy; a message of several lines has it on a new one."""
        separator = "\n" if "\n" in self.args[0] else " "
        return separator.join(self.args)

    def with_remedy(self, remedy: str) -> Self:
        """Return the error with another remedy, for a command that does not read the config.

        An error without a remedy in the config, and every error for an empty `remedy`, is returned
        unchanged.
        """
        has_config_remedy = len(self.args) > 1
        if not has_config_remedy or not remedy:
            return self
        return type(self)(self.args[0], remedy)


class UnreadableFileError(InputFileError):
    """The file is absent, cannot be opened or is no ROOT file."""


class DamagedFileError(InputFileError):
    """The file opens, but some of its data cannot be read."""

    @classmethod
    def at(cls, path: str, *, where: str, cause: Exception) -> Self:
        """The error that names the unreadable branch and entries, with the message of uproot."""
        return cls(
            f"{path} is damaged: {where} cannot be read ({_described(cause)}). "
            f"Copy it again, or take it out of the sample's files."
        )


class UnreachableFileError(InputFileError):
    """The file could not be read this time; a second attempt may succeed."""


class RefusedFileError(InputFileError):
    """The server wants other credentials, has no such bucket, or has an untrusted certificate."""

    may_be_skipped = False


class ProgramReadError(InputFileError):
    """A package is missing or broken, or this program has an error; the file may be good."""

    may_be_skipped = False


@contextmanager
def translate_read_errors(path: str, where: str) -> Iterator[None]:
    """Turn every error in the context into an `InputFileError` about a file.

    Damaged bytes make uproot raise errors of almost any type. A lack of memory passes unchanged.
    `where` says what is read, such as "entries 0 to 99".
    """
    try:
        yield
    except InputFileError:
        raise
    except Exception as cause:
        if lack_of_memory(cause):
            raise
        raise read_error(path, where=where, cause=cause) from cause


def read_error(path: str, *, where: str, cause: Exception) -> InputFileError:
    """The error to raise after a failed read, by what is at fault.

    The server, network or disk is tried first, then the path or its permissions. Then the program
    is at fault if the type of the error or the code that raised it shows it; else the file is
    damaged.
    """
    if problem := remote_error(path, where=where, cause=cause):
        return problem
    if isinstance(cause, FileNotFoundError | PermissionError):
        is_refused = isinstance(cause, PermissionError)
        return UnreadableFileError(
            f"{path} cannot be opened any more ({cause}). Check the path and its permissions."
            f"{advice_on_tokens(path, is_refused=is_refused)}"
        )
    if not _is_program_error(cause):
        return DamagedFileError.at(path, where=where, cause=cause)
    return ProgramReadError(
        f"{path}: {where} cannot be read ({_described(cause)}): a package is missing or broken, or "
        f"this program has an error. Run `make setup` or `python -m pipeline doctor`; if only this "
        f"file fails, take it out of the sample's files."
    )


def remote_error(path: str, *, where: str, cause: Exception) -> InputFileError | None:
    """The error to raise if the server, the network or a disk is at fault; else None.

    A server that refuses gives RefusedFileError. A failure that may pass gives
    UnreachableFileError, after which `retry_remote` reads again.
    """
    # fsspec raises FileNotFoundError for every failure while it asks for a size; its cause is the
    # real reason.
    reason: BaseException = cause
    while isinstance(reason, FileNotFoundError) and reason.__cause__ is not None:
        reason = reason.__cause__
    is_url = "://" in path
    if is_url and _is_refusal(reason):
        return RefusedFileError(
            f"{path}: the server refuses {where} ({_described(reason)}). Correct the URL, the "
            f"credentials or the certificate; docs/own-files.md names the variables of each kind "
            f"of server.{advice_on_tokens(path, is_refused=True)}"
        )
    if _may_pass(cause) or (is_url and _is_server_error(reason)):
        return UnreachableFileError(
            f"{path}: {where} could not be read ({_described(cause)}). "
            f"Check that its server or disk answers, and run again.{advice_on_tokens(path)}"
        )
    return None


def _is_refusal(cause: BaseException) -> bool:
    """Whether a server refuses access: by the type of an error, its HTTP status or its text."""
    has_status = getattr(cause, "status", None) in _REFUSING_STATUS
    is_forbidden = isinstance(cause, PermissionError) or has_status
    return is_forbidden or _REFUSALS.match(_described(cause)) is not None


def _may_pass(cause: Exception) -> bool:
    """Whether an error of the system may pass: a timeout, or an errno not among `_LASTING`."""
    if isinstance(cause, TimeoutError | ConnectionError):
        return True
    return isinstance(cause, OSError) and bool(cause.errno) and cause.errno not in _LASTING


def _is_server_error(cause: BaseException) -> bool:
    """Whether the server or network is at fault that a URL could not be read.

    Else the URL or the file is at fault. An HTTP status from 500 on is of the server.
    """
    status = getattr(cause, "status", None)
    if status is not None:
        return int(status) >= 500
    if isinstance(cause, FileNotFoundError | IsADirectoryError):
        return False
    if isinstance(cause, OSError):
        # XRootD reports a missing file by this number.
        return re.search(r"\[3011\]|no such file", str(cause), re.IGNORECASE) is None
    # fsspec returns the exceptions of failed reads among the bytes, and uproot's attempt to slice
    # one raises a TypeError.
    is_sliced = isinstance(cause, TypeError) and "not subscriptable" in str(cause)
    library = type(cause).__module__.split(".")[0]
    return is_sliced or library in _NETWORK_LIBRARIES


def _is_program_error(cause: Exception) -> bool:
    """Whether an exception shows an error of a program: by its type, or raised by our code.

    AttributeError and TypeError raised inside uproot do not count: damaged bytes cause them too.
    """
    # The last frame is the innermost: its module raised the error.
    module = ""
    for frame, _ in traceback.walk_tb(cause.__traceback__):
        module = frame.f_globals.get("__name__", "")
    if module.startswith(("hep_core.", "ingestion.")):
        return True
    if isinstance(cause, AttributeError | TypeError):
        return not module.startswith("uproot.")
    return isinstance(cause, ImportError | NameError)


def nearest_names(name: str, available: Sequence[str]) -> str:
    """A sentence with the three most similar names, in any case; empty if none is similar."""
    by_plain_name = {_plain(candidate): candidate for candidate in available}
    nearest = difflib.get_close_matches(_plain(name), by_plain_name, n=3, cutoff=0.4)
    if not nearest:
        return ""
    return f" Nearest: {', '.join(by_plain_name[plain_name] for plain_name in nearest)}."


def _plain(name: str) -> str:
    return name.lower().replace("_", ".")


def shortened_list(names: Sequence[str], *, at_most: int = 8) -> str:
    """The first of some names, and the number of further ones."""
    text = ", ".join(names[:at_most])
    if len(names) > at_most:
        text += f" and {len(names) - at_most} more"
    return text


def _described(cause: BaseException) -> str:
    """Type and first line of an exception."""
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
