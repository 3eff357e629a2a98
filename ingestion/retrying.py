"""Retries of reads that fail for a reason that may pass, such as a server that is down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import tenacity

from ingestion.errors import UnreachableFileError

#: Attempts at a read whose failure may pass.
ATTEMPTS: Final = 4

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def patiently(read: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
    """Call a function that reads a file; call it again, after a growing pause, when it raises UnreachableFileError.

    Raises:
        UnreachableFileError: The last attempt failed too.
    """
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(exp_base=3),
        retry=tenacity.retry_if_exception_type(UnreachableFileError),
        reraise=True,
    )
    return attempts(read, *args, **kwargs)
