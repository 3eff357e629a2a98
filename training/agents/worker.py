"""The method of an agent: a local optimiser whose model is pulled towards the joint model before every gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from typing_extensions import override

from training.agents.messages import Install
from training.algorithms.base import Algorithm, ComputeGradient, Counters, Worker
from training.algorithms.mpca_rules import JointModelSettings, contribution, displace, penalty_gradient
from training.transports.basics import Vector, is_finite
from training.transports.shards import shard_slices


class PulledWorker(Algorithm):
    """x <- x - alpha (x - x~*), then a step of the base optimiser (Langer et al. 2018, equation 7).

    All shards have one alpha, of the cycles that all of them have been through: uneven penalties could bias the model
    (section 4.4).

    Args:
        settings: Settings of the method.
        worker: The agent's model and optimiser.
        joint: The shards of the projected joint model.
    """

    def __init__(self, settings: JointModelSettings, worker: Worker, joint: Sequence[Install]) -> None:
        super().__init__(settings, worker)
        self._settings = settings
        start = np.concatenate([each.projected for each in joint])
        self.model.write(start)
        flat, gradient = self.model.flat.detach(), self.model.flat.grad
        self._on_host = on_host = flat.device.type == "cpu"
        # The rules take tensors of a GPU too.
        self._local = cast("Vector", flat.numpy() if on_host else flat)
        self._gradient = cast("Vector", gradient.numpy() if on_host and gradient is not None else gradient)
        self._projected = cast("Vector", start.copy() if on_host else flat.clone())
        self._slices = shard_slices(start.size, len(joint))
        self._cycles = [each.cycle for each in joint]
        self._steps = [0] * len(joint)
        self._squares = [0.0] * len(joint)
        self._host = self.model.empty()
        self._replaced = self._received = 0

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        form, alpha = self._settings.form, self._settings.alpha_at(min(self._cycles))
        if form != "replacement":
            self.acted["pulls"] += alpha > 0
        if form == "displacement":
            displace(self._local, self._projected, alpha)
        if await self.has_gradient(compute_gradient, num_samples):
            if form == "regulariser" and alpha:
                self._gradient += penalty_gradient(self._local, self._projected, alpha)
            self.optimizer.step()
            self._steps = [steps + 1 for steps in self._steps]

    def contribute(self, shard: int) -> Vector:
        """The contribution to the sum of a shard, since the last one; a shard that is not finite starts from x~*."""
        where, host = self._slices[shard], self._host
        self.model.read(host)
        message = contribution(host[where], self._steps[shard], weighted=self._settings.weighted)
        projected = torch.as_tensor(self._projected[where]).cpu().numpy()
        if is_finite(host[where]):
            self._squares[shard] = float(np.square(host[where].astype(np.float64) - projected).sum())
        else:
            self._local[where] = self._projected[where]
            self._replaced += 1
        self._steps[shard] = 0
        self.acted["cycles"] += 1
        return message

    def install(self, message: Install) -> None:
        """Take over a shard of the projected joint model."""
        where = self._slices[message.shard]
        given = message.projected
        self._projected[where] = given if self._on_host else cast("Vector", torch.from_numpy(given))
        if self._settings.form == "replacement" and message.cycle:
            self._local[where] = self._projected[where]
        self._cycles[message.shard] = message.cycle
        self._received += message.projected.nbytes

    @property
    def square(self) -> float:
        """|x - x~*|^2, each shard at its last contribution."""
        return sum(self._squares)

    @override
    def counters(self) -> Counters:
        return {**super().counters(), "shards_replaced": self._replaced, "bytes_received": self._received}
