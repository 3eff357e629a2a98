"""The filter on generated particles: an isolated electron or muon."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingestion.generation.particles import StableParticles, pseudorapidity, wrapped
from ingestion.generation.settings import LeptonFilterSettings

CONE: Final = 0.3
LEPTONS: Final = (11, 13)


def passes(particles: StableParticles, settings: LeptonFilterSettings) -> NDArray[np.bool_]:
    """Which events have an electron or muon above threshold whose isolation is low enough; (num_events,).

    Args:
        particles: Stable particles of generated events, without pile-up.
        settings: Thresholds.
    """
    if settings.min_pt == 0:
        return np.ones(particles.num_events, np.bool_)
    found = np.zeros(particles.num_events, np.bool_)
    pt, event = particles.pt, particles.event
    candidates = np.flatnonzero(np.isin(np.abs(particles.pid), LEPTONS) & (pt > settings.min_pt))
    for lepton in candidates:
        start, stop = particles.offsets[event[lepton] : event[lepton] + 2]
        near = slice(start, stop)
        eta = pseudorapidity(particles.px[near], particles.py[near], particles.pz[near])
        phi = np.arctan2(particles.py[near], particles.px[near])
        own = lepton - start
        if abs(eta[own]) > settings.max_eta:
            continue
        inside = np.square(eta - eta[own]) + np.square(wrapped(phi - phi[own])) < CONE**2
        inside &= np.isin(np.abs(particles.pid[near]), (12, 14, 16), invert=True)
        inside[own] = False
        found[event[lepton]] |= pt[near][inside].sum() < settings.max_isolation * pt[lepton]
    return found
