"""Configures torch and BLAS so that the same seed gives the same numbers."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits


def be_deterministic() -> None:
    """Make this process use deterministic algorithms only, until it ends.

    In this mode torch also fills all new memory, to make reads of unwritten memory reproducible. That costs a few per
    cent and is switched off, since no operation here reads unwritten memory.

    The BLAS of SciPy, which compiled code calls, uses one thread: with several, sums depend on their number.
    """
    threadpool_limits(1, user_api="blas")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
