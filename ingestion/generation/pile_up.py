"""Pile-up: further collisions of the same bunch crossing, drawn from a pool of minimum-bias events."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.generation.loops import compiled
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
    offsets, first = _offsets(moved.offsets, pool.offsets, numbers, drawn)
    pid, columns = np.empty(offsets[-1], np.int32), np.empty((7, offsets[-1]))
    is_pile_up = np.ones(offsets[-1], np.bool_)
    own = np.arange(len(hard.pid)) + np.repeat((offsets - hard.offsets)[:-1], np.diff(hard.offsets))
    is_pile_up[own], pid[own], columns[:, own] = False, hard.pid, moved[2:]
    _overlay(pid, columns, first, pool.pid, pool.offsets, *pool[2:], drawn, np.cos(angle), np.sin(angle), z)
    return Crossing(StableParticles(offsets, pid, *columns), is_pile_up, numbers + 1)


def _offsets(hard: Integers, pool: Integers, numbers: Integers, drawn: Integers) -> tuple[Integers, Integers]:
    """Where each event begins, and where the particles of each further collision begin: after the hard ones."""
    lengths = np.diff(pool)[drawn]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    of_event = ends[np.concatenate([[0], np.cumsum(numbers)])]
    return hard + of_event, ends[:-1] + np.repeat(hard[1:], numbers)


@compiled
def _overlay(
    pid: Integers,
    columns: Floats,
    first: Integers,
    pool_pid: Integers,
    offsets: Integers,
    pool_px: Floats,
    pool_py: Floats,
    pool_pz: Floats,
    pool_energy: Floats,
    pool_x: Floats,
    pool_y: Floats,
    pool_z: Floats,
    drawn: Integers,
    cos: Floats,
    sin: Floats,
    z: Floats,
) -> None:
    """Put the particles of collisions in their places, turned and moved along the beam."""
    px, py, pz, energy, x, y, all_z = columns
    for collision in range(len(drawn)):
        c, s, place = cos[collision], sin[collision], first[collision]
        for source in range(offsets[drawn[collision]], offsets[drawn[collision] + 1]):
            pid[place] = pool_pid[source]
            px[place] = c * pool_px[source] - s * pool_py[source]
            py[place] = s * pool_px[source] + c * pool_py[source]
            pz[place], energy[place] = pool_pz[source], pool_energy[source]
            x[place] = c * pool_x[source] - s * pool_y[source]
            y[place] = s * pool_x[source] + c * pool_y[source]
            all_z[place] = pool_z[source] + z[collision]
            place += 1


def beam_spot(number: int, spread_mm: float, rng: np.random.Generator) -> Floats:
    """Positions of collisions along the beam: a Gaussian, cut at `MAX_Z_MM` [mm]."""
    z = rng.normal(0, spread_mm, number)
    while (outside := np.abs(z) > MAX_Z_MM).any():
        z[outside] = rng.normal(0, spread_mm, int(outside.sum()))
    return z
