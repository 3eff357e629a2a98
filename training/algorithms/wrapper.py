"""The base of the methods around another method: all that a wrapper does not have itself is the base method's."""

from __future__ import annotations

from typing import Any

from training.algorithms.base import Algorithm, Kept
from training.transports.basics import Vector


class Wrapper(Kept):
    """Another method, with something around its steps.

    Args:
        base: The base method.
    """

    def __init__(self, base: Algorithm) -> None:
        self.base = base

    def __getattr__(self, name: str) -> Any:
        """What only the base method has."""
        return getattr(self.base, name)

    async def state(self) -> dict[str, Any]:
        """The base method's state, and that of the wrapper."""
        return {"base": await self.base.state(), **self._kept()}

    async def restore(self, state: dict[str, Any]) -> None:
        """Start from what `state` gave, instead of `start`; all workers together."""
        await self.base.restore(state["base"])
        self._keep(state)

    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector] | None:
        """The base method's model in what `state` gave."""
        return self.base.model_of(state["base"])
