"""Treatment of the base optimiser's state (momentum, Adam's moments) at an average of models: a named policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from training.transports.transport import Vector

if TYPE_CHECKING:
    from torch.optim import Optimizer


class StatePolicy(StrEnum):
    """Treatment of the optimiser's momentum and moments at an exact average of the models."""

    KEEP = "keep"
    """Each worker keeps its own momentum and moments, as SlowMo with Adam (Wang et al. 2019, section 5)."""
    AVERAGE = "average"
    """Momentum and moments are averaged like the models."""
    RESET = "reset"
    """Momentum and moments restart from zero, as SlowMo does with the momentum of SGD."""


async def treat_state(optimizer: Optimizer, policy: StatePolicy, average: Callable[[Vector], Awaitable[None]]) -> None:
    """Keep, average or reset the state of an optimiser over one flat parameter.

    Adam's count of steps is the same on all workers, since all take the same number. Reset also sets it to 0, so that
    the bias correction restarts.

    Args:
        optimizer: The optimiser.
        policy: The policy.
        average: Replaces a host vector by its mean over the workers.
    """
    import torch

    if policy is StatePolicy.KEEP:
        return
    for state in optimizer.state.values():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            if policy is StatePolicy.RESET:
                value.zero_()
            elif name != "step":
                host = value.detach().to("cpu", copy=True)
                await average(host.numpy())
                with torch.no_grad():
                    value.copy_(host)
