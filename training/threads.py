"""Sets the number of threads of the libraries that compute: torch, OpenMP and BLAS.

Without it each takes as many as there are cores. The products of small matrices here gain nothing from that, and where
other work runs beside, threads wait for each other: an epoch then takes up to 30 times as long. Our own kernels have
one thread.
"""

from __future__ import annotations

from typing import Final

# Compiled kernels load the BLAS of SciPy at their first call, which would be after its number of threads is set.
import scipy.linalg.cython_blas  # noqa: F401
import torch
from threadpoolctl import threadpool_limits

#: Variables that the libraries read at their start.
VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(number: int) -> None:
    """Give the libraries of this process a number of threads, until the next call."""
    torch.set_num_threads(number)
    threadpool_limits(number)


def thread_variables(number: int) -> dict[str, str]:
    """Environment of a process whose libraries start with a number of threads."""
    return dict.fromkeys(VARIABLES, str(number))
