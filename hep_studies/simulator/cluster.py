"""The simulator's model of a cluster: times of computation and communication."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat

from hep_core.random_streams import random_stream
from hep_core.settings_section import Needs, SettingsSection
from hep_studies.simulator.costs import Link, Network


class ClusterSettings(SettingsSection):
    """A cluster of equal machines, except for slow ones, on a network of equal links.

    The defaults have the network of the thesis' cloud: 10 Gb/s ethernet with a latency of about
    50 us.
    """

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "pause_probability", "pause_seconds above 0", lambda cluster: cluster.pause_seconds > 0
        ),
        # A study that varies the probability says 0 for its runs without interruptions.
        Needs(
            "pause_seconds",
            "pause_probability",
            lambda cluster: "pause_probability" in cluster.model_fields_set,
        ),
    )

    step_seconds: float = Field(default=1e-4, ge=0)
    """Constant part of the computing time of a step [s]."""
    event_seconds: float = Field(default=1e-6, ge=0)
    """Computing time per event of the batch [s]."""
    jitter: float = Field(default=0.0, ge=0)
    """Spread of the computing time: standard deviation of the logarithm of a log-normal factor of
    mean 1."""
    slow_ranks: dict[NonNegativeInt, PositiveFloat] = Field(default={})
    """Stragglers: slow ranks with the factor on their computing time, for example `{0: 10}`."""
    pause_probability: float = Field(default=0.0, ge=0, le=1)
    """Probability that other work on the machine interrupts a step, 0 to 1."""
    pause_seconds: float = Field(default=0.0, ge=0)
    """Mean length of an interruption of a step, exponentially distributed [s]."""
    workers_per_host: int = Field(default=1, ge=1)
    """Number of workers that share a host: its memory and its NIC."""
    latency_seconds: float = Field(default=5e-5, ge=0)
    """Latency of one message between hosts [s]."""
    bytes_per_second: float = Field(default=1.25e9, gt=0)
    """Bandwidth of a host's NIC, each way [bytes/s]; 1.25e9 is 10 Gb/s."""
    memory_latency_seconds: float = Field(default=2e-6, ge=0)
    """Latency of one message within a host [s]."""
    memory_bytes_per_second: float = Field(default=1e10, gt=0)
    """Bandwidth of a message within a host [bytes/s]."""
    push_seconds: float = Field(default=0.0, ge=0)
    """Processor time of a push to a shard, under its lock, besides the messages [s]."""
    ring_above_bytes: float = Field(default=10_000, ge=0)
    """Size of a vector above which an all-reduce goes around a ring; smaller vectors take recursive
    doubling."""

    @property
    def network(self) -> Network:
        """The hosts and their connections."""
        return Network(
            Link(self.latency_seconds, self.bytes_per_second),
            Link(self.memory_latency_seconds, self.memory_bytes_per_second),
            self.workers_per_host,
            self.ring_above_bytes,
        )

    def step_of(self, batch_size: int) -> float:
        """Return the mean time of a step without messages [s]."""
        return self.step_seconds + self.event_seconds * batch_size

    def protocol(self, world_size: int) -> str:
        """Return the protocol of pairwise averages: `memory` on one host, else `sockets`."""
        return "memory" if world_size <= self.workers_per_host else "sockets"


class ComputeTimes:
    """Draws the computing time of each step of one worker.

    A time is constant part plus time per event, times the worker's slowness and a random factor
    (jitter), plus now and then a random pause. Random numbers are drawn in blocks, for speed. The
    same seed and rank give the same times.
    """

    _BLOCK: ClassVar[int] = 256
    """Number of steps whose random numbers are drawn at once."""

    def __init__(self, cluster: ClusterSettings, *, seed: int, rank: int) -> None:
        self._cluster = cluster
        self._step_seconds = cluster.step_seconds
        self._event_seconds = cluster.event_seconds
        self._slowness = cluster.slow_ranks.get(rank, 1.0)
        self._rng = random_stream(seed, "compute times", rank)
        # Jitter factor and pause [s] of the steps to come; the next one is last.
        self._drawn: list[tuple[float, float]] = []

    def draw(self, num_events: int) -> float:
        """Return the time of the next step [s]."""
        if not self._drawn:
            self._drawn = self._draw_block()
        jitter, pause = self._drawn.pop()
        mean_seconds = self._step_seconds + self._event_seconds * num_events
        return mean_seconds * self._slowness * jitter + pause

    def evaluation_seconds(self, num_events: int) -> float:
        """Return the time of a forward pass [s].

        It is a third of the time per event of a step, since gradients take twice as long. It has no
        jitter and no pauses.
        """
        return self._event_seconds * num_events * self._slowness / 3

    def _draw_block(self) -> list[tuple[float, float]]:
        """Draw the jitter factor and the pause [s] of each step of a block.

        The factor is log-normal with mean 1. A pause is exponential, with the probability of an
        interruption, else 0.
        """
        cluster = self._cluster
        if not cluster.jitter and not cluster.pause_probability:
            return [(1.0, 0.0)] * self._BLOCK
        normal = self._rng.standard_normal(self._BLOCK)
        # The mean of exp(s n) for a normal n is exp(s^2 / 2), which the second term divides out.
        jitter = np.exp(cluster.jitter * normal - cluster.jitter**2 / 2)
        is_paused = self._rng.random(self._BLOCK) < cluster.pause_probability
        pauses = self._rng.exponential(cluster.pause_seconds, self._BLOCK)
        pauses = np.where(is_paused, pauses, 0.0)
        return list(zip(jitter.tolist(), pauses.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Return the position in the worker's random numbers, as plain values for a checkpoint."""
        return {
            "generator": dict(self._rng.bit_generator.state),
            "drawn": [list(pair) for pair in self._drawn],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a position in the worker's random numbers."""
        self._rng.bit_generator.state = state["generator"]
        self._drawn = [(jitter, pause) for jitter, pause in state["drawn"]]
