"""Pile-up: further collisions of the same bunch crossing, drawn from a pool of minimum-bias events."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation.particles import Floats, Integers, StableParticles
from pipeline.configuration.simulate_section import PileUpSettings

#: Pythia's settings of the pool.
MINIMUM_BIAS: Final = ("SoftQCD:nonDiffractive = on",)
#: Collisions are within this distance of the centre, along the beam [mm].
MAX_Z_MM: Final = 250.0


class Crossing(NamedTuple):
    """Hard events with their pile-up."""

    particles: StableParticles
    is_pile_up: NDArray[np.bool_]
    """(n,) whether a particle comes from another collision than the hard one."""
    num_vertices: Integers
    """(num_events,) number of collisions, the hard one included."""


def overlay(
    hard: StableParticles,
    pool: StableParticles | None,
    settings: PileUpSettings,
    rng: np.random.Generator,
) -> Crossing:
    """Add pile-up to hard events, and move all collisions along the beam."""
    num_events = hard.num_events
    hard_z = beam_spot(num_events, settings.beam_spot_mm, rng)
    moved = hard._replace(z=hard.z + np.repeat(hard_z, np.diff(hard.offsets)))
    if pool is None or settings.mean == 0:
        return Crossing(moved, np.zeros(len(hard.pid), np.bool_), np.ones(num_events, np.int64))
    numbers = rng.poisson(settings.mean, num_events)
    total = int(numbers.sum())
    drawn = rng.integers(0, pool.num_events, total)
    angle = rng.uniform(-np.pi, np.pi, total)
    z = beam_spot(total, settings.beam_spot_mm, rng)
    # The particles of each event: its own, then those of one further collision after the other.
    lengths = np.diff(pool.offsets)[drawn]
    further = np.bincount(np.repeat(np.arange(num_events), numbers), lengths, num_events).astype(
        np.int64
    )
    offsets = hard.offsets + np.concatenate([[0], np.cumsum(further)])
    own = np.arange(len(hard.pid)) + np.repeat((offsets - hard.offsets)[:-1], np.diff(hard.offsets))
    is_pile_up = np.ones(offsets[-1], np.bool_)
    is_pile_up[own] = False
    source = np.arange(lengths.sum()) + np.repeat(
        pool.offsets[drawn] - np.cumsum(lengths) + lengths, lengths
    )
    cos, sin, shift = (np.repeat(each, lengths) for each in (np.cos(angle), np.sin(angle), z))

    def joined(of_hard: NDArray[Any], of_pool: NDArray[Any]) -> NDArray[Any]:
        column = np.empty(offsets[-1], of_hard.dtype)
        column[own], column[is_pile_up] = of_hard, of_pool
        return column

    def turned(along: Floats, across: Floats) -> Floats:
        result: Floats = cos * along[source] + sin * across[source]
        return result

    particles = StableParticles(
        offsets,
        joined(hard.pid, pool.pid[source]),
        joined(hard.px, turned(pool.px, -pool.py)),
        joined(hard.py, turned(pool.py, pool.px)),
        joined(hard.pz, pool.pz[source]),
        joined(hard.energy, pool.energy[source]),
        joined(hard.x, turned(pool.x, -pool.y)),
        joined(hard.y, turned(pool.y, pool.x)),
        joined(moved.z, pool.z[source] + shift),
    )
    return Crossing(particles, is_pile_up, numbers + 1)


def beam_spot(number: int, spread_mm: float, rng: np.random.Generator) -> Floats:
    """Positions of collisions along the beam: a Gaussian, cut at `MAX_Z_MM` [mm]."""
    z = rng.normal(0, spread_mm, number)
    while (outside := np.abs(z) > MAX_Z_MM).any():
        z[outside] = rng.normal(0, spread_mm, int(outside.sum()))
    return z
