"""Second and third attempts at reading, for failures that may pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import tenacity

from ingestion.errors import UnreachableFileError

#: How often a file is tried that fails in a way that may pass.
ATTEMPTS: Final = 3

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def patiently(read: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
    """Call a function that reads a file, again after a moment if it raises UnreachableFileError.

    Raises:
        UnreachableFileError: The last attempt failed too.
    """
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential(multiplier=0.3),
        retry=tenacity.retry_if_exception_type(UnreachableFileError),
        reraise=True,
    )
    return attempts(read, *args, **kwargs)
