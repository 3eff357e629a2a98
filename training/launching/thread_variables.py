"""The number of threads of ranks, in variables of their environment."""

from __future__ import annotations

from typing import Final

#: Variables that the libraries read at their start.
VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def thread_variables(num_threads: int) -> dict[str, str]:
    """Return the environment of a process whose libraries start with a number of threads."""
    return dict.fromkeys(VARIABLES, str(num_threads))
