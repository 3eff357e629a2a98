"""Pile-up: further collisions of a bunch crossing, drawn from a pool of minimum-bias events."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation.particles import Floats, Integers, StableParticles, offsets_from_counts
from pipeline.configuration.simulate_section import PileUpSettings

#: Pythia's settings of the pool.
MINIMUM_BIAS: Final = ("SoftQCD:nonDiffractive = on",)
#: Collisions are within this distance of the centre, along the beam [mm].
MAX_Z_MM: Final = 250.0


class Crossing(NamedTuple):
    """Hard events with their pile-up."""

    particles: StableParticles
    """All particles; those of the hard collision come first in each event."""
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
    """Add pile-up to hard events, and move all collisions along the beam.

    The number of further collisions of an event is drawn from a Poisson distribution. Without a
    pool, or of mean 0, there are none.
    """
    num_events = hard.num_events
    hard_z = beam_spot(num_events, settings.beam_spot_mm, rng)
    hard = hard._replace(z=hard.z + hard_z[hard.event])
    if pool is None or settings.mean == 0:
        is_pile_up = np.zeros(len(hard.pid), np.bool_)
        return Crossing(hard, is_pile_up, np.ones(num_events, np.int64))

    num_collisions = rng.poisson(settings.mean, num_events)
    num_drawn = int(num_collisions.sum())
    collisions = _draw_collisions(pool, num_drawn, settings.beam_spot_mm, rng)
    # `collisions.event` is the number of the collision of each particle; this is its hard event.
    event_of_collision = np.repeat(np.arange(num_events), num_collisions)
    event = event_of_collision[collisions.event]

    # The particles of each event: first its own, then those of one collision after the other.
    events_of_all = np.concatenate([hard.event, event])
    order = np.argsort(events_of_all, kind="stable")
    # In the joined columns, the particles of the hard collisions come first.
    is_pile_up = order >= len(hard.pid)
    num_of_pile_up = np.bincount(event, minlength=num_events)
    num_particles = np.diff(hard.offsets) + num_of_pile_up
    columns = []
    for hard_column, pile_up_column in zip(hard[1:], collisions[1:], strict=True):
        joined = np.concatenate([hard_column, pile_up_column], dtype=hard_column.dtype)
        columns.append(joined[order])
    particles = StableParticles(offsets_from_counts(num_particles), *columns)
    return Crossing(particles, is_pile_up, num_collisions + 1)


def _draw_collisions(
    pool: StableParticles, num_collisions: int, spread_mm: float, rng: np.random.Generator
) -> StableParticles:
    """Draw minimum-bias events, rotated around the beam and moved along it.

    Events are drawn with replacement. Each drawn collision is an event of the result.
    """
    drawn = rng.integers(0, pool.num_events, num_collisions)
    angle = rng.uniform(-np.pi, np.pi, num_collisions)
    shift_z = beam_spot(num_collisions, spread_mm, rng)

    pool_counts = np.diff(pool.offsets)
    num_particles = pool_counts[drawn]
    offsets = offsets_from_counts(num_particles)
    collision = np.repeat(np.arange(num_collisions), num_particles)
    # Index of each particle in the pool: it counts up from the first particle of the drawn event.
    shift_to_pool = pool.offsets[drawn] - offsets[:-1]
    source = np.arange(offsets[-1]) + shift_to_pool[collision]
    # Momenta and vertices are rotated by the angle of their collision.
    cos = np.cos(angle)[collision]
    sin = np.sin(angle)[collision]
    px, py = _rotated(pool.px[source], pool.py[source], cos, sin)
    x, y = _rotated(pool.x[source], pool.y[source], cos, sin)
    z = pool.z[source] + shift_z[collision]
    pid = pool.pid[source]
    pz = pool.pz[source]
    energy = pool.energy[source]
    return StableParticles(offsets, pid, px, py, pz, energy, x, y, z)


def _rotated(x: Floats, y: Floats, cos: Floats, sin: Floats) -> tuple[Floats, Floats]:
    """Vectors, (n,), rotated by angles with these cosines and sines."""
    rotated_x: Floats = cos * x - sin * y
    rotated_y: Floats = cos * y + sin * x
    return rotated_x, rotated_y


def beam_spot(num_collisions: int, spread_mm: float, rng: np.random.Generator) -> Floats:
    """(num_collisions,) positions of collisions along the beam [mm].

    They are drawn from a Gaussian; those beyond `MAX_Z_MM` are drawn again.
    """
    z = rng.normal(0, spread_mm, num_collisions)
    while (is_outside := np.abs(z) > MAX_Z_MM).any():
        num_outside = int(is_outside.sum())
        z[is_outside] = rng.normal(0, spread_mm, num_outside)
    return z
