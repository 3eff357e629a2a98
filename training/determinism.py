"""Configures torch so that the same seed gives the same numbers."""

from __future__ import annotations

import torch


def be_deterministic() -> None:
    """Make this process use deterministic algorithms only, until it ends.

    In this mode torch also fills all new memory, to make reads of unwritten memory reproducible. That costs a few per
    cent and is switched off, since no operation here reads unwritten memory.
    """
    # `use_deterministic_algorithms` does no more here, and loads the compiler of torch: a second of each rank.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
