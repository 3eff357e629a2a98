"""Retries of reads that fail for a reason that may pass, such as a server that is down."""

from __future__ import annotations

from typing import Final

import tenacity

from ingestion.errors import UnreachableFileError

#: Attempts at a read whose failure may pass.
ATTEMPTS: Final = 4

#: Calls a function that reads a file, `patiently(read, path)`; again, after a growing pause, when it raises
#: UnreachableFileError. The last one is raised as it is.
patiently: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(ATTEMPTS),
    wait=tenacity.wait_exponential(exp_base=3),
    retry=tenacity.retry_if_exception_type(UnreachableFileError),
    reraise=True,
)
