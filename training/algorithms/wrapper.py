"""The base of what goes around the steps of any other method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Counters
from training.transports.basics import Vector


class Wrapper(Algorithm):
    """Another method, with something around its steps.

    It works on the base method's model and optimiser, and passes every call on to that method.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("base", "momenta")
    """Attributes that checkpoints leave out; `state` adds the state of the base method."""

    def __init__(self, base: Algorithm) -> None:
        self.base = base
        self.traits = base.traits
        self.model = base.model
        self.optimizer = base.optimizer
        self.transport = base.transport
        self.momenta = base.momenta

    @override
    def note_constants(self) -> None:
        """Remember the constants of this object and of the base method after the start."""
        super().note_constants()
        self.base.note_constants()

    @override
    async def start(self) -> None:
        await self.base.start()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await self.base.step(compute_gradient, num_samples)

    @override
    async def current(self, out: Vector) -> None:
        await self.base.current(out)

    @override
    async def flush(self) -> None:
        await self.base.flush()

    @override
    async def result(self, out: Vector) -> None:
        await self.base.result(out)

    @override
    async def add(self, change: Vector) -> None:
        await self.base.add(change)

    @override
    async def catch_up(self) -> None:
        await self.base.catch_up()

    @override
    async def snapshot(self, out: Vector) -> float:
        return await self.base.snapshot(out)

    @override
    async def quiesce(self) -> None:
        await self.base.quiesce()

    @override
    async def close(self) -> None:
        await self.base.close()

    @override
    def counters(self) -> Counters:
        return self.base.counters()

    @override
    async def state(self) -> dict[str, Any]:
        """Return the base method's state, and the attributes of this object."""
        return {"base": await self.base.state(), "attributes": self.state_dict()}

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        await self.base.restore(state["base"])
        self.load_state_dict(state["attributes"])

    @override
    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector] | None:
        return self.base.model_of(state["base"])

    @override
    def weight_of(self, state: dict[str, Any]) -> float:
        return self.base.weight_of(state["base"])
