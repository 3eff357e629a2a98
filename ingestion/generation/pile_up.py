"""Pile-up: further collisions of the same bunch crossing, drawn from a pool of minimum-bias events."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.generation.particles import Floats, Integers, StableParticles
from ingestion.generation.settings import PileUpSettings

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
    hard: StableParticles, pool: StableParticles | None, settings: PileUpSettings, rng: np.random.Generator
) -> Crossing:
    """Add pile-up to hard events, and move all collisions along the beam.

    Args:
        hard: The hard events, each with its collision at z = 0.
        pool: Minimum-bias events; None if the mean is 0.
        settings: Mean number of collisions and their spread.
        rng: Draws numbers, events, angles and positions.
    """
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
    further = np.bincount(np.repeat(np.arange(num_events), numbers), lengths, num_events).astype(np.int64)
    offsets = hard.offsets + np.concatenate([[0], np.cumsum(further)])
    own = np.arange(len(hard.pid)) + np.repeat((offsets - hard.offsets)[:-1], np.diff(hard.offsets))
    is_pile_up = np.ones(offsets[-1], np.bool_)
    is_pile_up[own] = False
    source = np.arange(lengths.sum()) + np.repeat(pool.offsets[drawn] - np.cumsum(lengths) + lengths, lengths)
    cos, sin, shift = (np.repeat(each, lengths) for each in (np.cos(angle), np.sin(angle), z))
    of_pool, px, py, pz, energy, x, y, old_z = (column[source] for column in pool[1:])
    turned = (cos * px - sin * py, sin * px + cos * py, pz, energy, cos * x - sin * y, sin * x + cos * y, old_z + shift)
    pid, columns = np.empty(offsets[-1], np.int32), np.empty((7, offsets[-1]))
    pid[own], columns[:, own] = hard.pid, moved[2:]
    pid[is_pile_up], columns[:, is_pile_up] = of_pool, turned
    return Crossing(StableParticles(offsets, pid, *columns), is_pile_up, numbers + 1)


def beam_spot(number: int, spread_mm: float, rng: np.random.Generator) -> Floats:
    """Positions of collisions along the beam: a Gaussian, cut at `MAX_Z_MM` [mm]."""
    z = rng.normal(0, spread_mm, number)
    while (outside := np.abs(z) > MAX_Z_MM).any():
        z[outside] = rng.normal(0, spread_mm, int(outside.sum()))
    return z
