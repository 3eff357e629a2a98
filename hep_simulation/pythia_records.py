"""Reads particles from event records of Pythia, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from hep_simulation.particles import StableParticles

HEAVY_QUARKS: Final = (4, 5)


def has_heavy_quark(event: Any, min_pt: float) -> bool:
    """Whether an event has a final charm or bottom quark above a transverse momentum [GeV]."""
    for particle in event:
        is_heavy = particle.idAbs() in HEAVY_QUARKS
        if is_heavy and particle.isFinal() and particle.pT() > min_pt:
            return True
    return False


def select_particles(event: Any, indices: Iterable[int]) -> StableParticles:
    """The particles of a record at some indices, as one event.

    `event` is Pythia's event record.
    """
    rows = []
    for index in indices:
        particle = event[index]
        momentum = (particle.px(), particle.py(), particle.pz(), particle.e())
        vertex = (particle.xProd(), particle.yProd(), particle.zProd())
        rows.append((particle.id(), *momentum, *vertex))
    # The shape keeps eight columns without any particle.
    table = np.array(rows).reshape(-1, 8)
    pid, *columns = table.T
    offsets = np.array([0, len(rows)])
    return StableParticles(offsets, pid.astype(np.int32), *columns)
