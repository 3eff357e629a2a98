"""Torch set so that the same seed gives the same numbers."""

from __future__ import annotations

import torch


def be_deterministic() -> None:
    """Have this process use deterministic algorithms only; it holds until the process ends.

    Torch would then also fill all new memory, so that reading what nobody wrote gives the same twice. It costs a few
    per cent, and no operation of ours does that.
    """
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
