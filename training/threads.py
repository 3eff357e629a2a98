"""Sets up a process for computation: threads of the libraries, and torch's deterministic mode.

Without a number of threads each library takes as many as there are cores. The products of small
matrices here gain nothing from that, and threads wait for each other where other work runs: an
epoch then takes up to 30 times as long. Our own kernels have one thread.
"""

from __future__ import annotations

import scipy.linalg.cython_blas  # noqa: F401
import torch
from threadpoolctl import threadpool_limits


def use_threads(num_threads: int) -> None:
    """Give the libraries of this process a number of threads, until the next call."""
    torch.set_num_threads(num_threads)
    threadpool_limits(num_threads)


def be_deterministic() -> None:
    """Make this process use deterministic algorithms only, until it ends.

    In this mode torch also fills all new memory, to make reads of unwritten memory reproducible.
    That costs a few per cent and is switched off, since no operation here reads unwritten memory.
    """
    # `use_deterministic_algorithms` does no more here, and loads the compiler of torch: a second of
    # each rank.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
