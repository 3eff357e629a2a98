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
    lengths = np.diff(pool.offsets)[drawn]
    ends = np.cumsum(lengths)
    collision = np.repeat(np.arange(total), lengths)
    places = (
        np.arange(int(ends[-1]) if total else 0) - np.repeat(ends - lengths, lengths) + pool.offsets[drawn][collision]
    )
    cos, sin = np.cos(angle)[collision], np.sin(angle)[collision]
    px, py, x, y = (column[places].astype(np.float64) for column in (pool.px, pool.py, pool.x, pool.y))
    others = {
        "pid": pool.pid[places],
        "px": cos * px - sin * py,
        "py": sin * px + cos * py,
        "pz": pool.pz[places].astype(np.float64),
        "energy": pool.energy[places].astype(np.float64),
        "x": cos * x - sin * y,
        "y": sin * x + cos * y,
        "z": pool.z[places] + z[collision],
    }
    event = np.concatenate([moved.event, np.repeat(np.arange(num_events), numbers)[collision]])
    order = np.argsort(event, kind="stable")
    columns = {name: np.concatenate([getattr(moved, name), column])[order] for name, column in others.items()}
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event, minlength=num_events))]).astype(np.int64)
    is_pile_up = np.concatenate([np.zeros(len(hard.pid), np.bool_), np.ones(len(places), np.bool_)])[order]
    return Crossing(StableParticles(offsets, **columns), is_pile_up, numbers + 1)


def beam_spot(number: int, spread_mm: float, rng: np.random.Generator) -> Floats:
    """Positions of collisions along the beam: a Gaussian, cut at `MAX_Z_MM` [mm]."""
    z = rng.normal(0, spread_mm, number)
    while (outside := np.abs(z) > MAX_Z_MM).any():
        z[outside] = rng.normal(0, spread_mm, int(outside.sum()))
    return z
