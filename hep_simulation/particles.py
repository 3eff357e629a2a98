"""Generated particles of a block of events, as flat arrays, and the lepton filter on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hep_core import compiling
from pipeline.configuration.simulate_section import LeptonFilterSettings

Floats = NDArray[Any]
"""Real numbers in double precision; in a pool, single."""
Integers = NDArray[Any]
"""Whole numbers."""

#: Compiles a loop at its first call; a division by zero is infinite.
compiled = partial(compiling.compiled, error_model="numpy")

#: Radius of the isolation cone of leptons in eta and phi, and PDG codes of electrons and muons.
CONE: Final = 0.3
LEPTONS: Final = (11, 13)
#: Charges of the stable particles with a charge, by PDG code; antiparticles have the opposite.
_CHARGES = {11: -1, 13: -1, 15: -1, 211: 1, 321: 1, 2212: 1, 3112: -1, 3222: 1, 3312: -1, 3334: -1}
#: The same as an array, with a 0 at its end for all larger codes.
_CHARGE_BY_CODE = np.zeros(max(_CHARGES) + 2, np.int64)
_CHARGE_BY_CODE[list(_CHARGES)] = list(_CHARGES.values())
_NEUTRINOS = (12, 14, 16)


class StableParticles(NamedTuple):
    """Stable particles of some events; event i has the particles `offsets[i]:offsets[i + 1]`."""

    offsets: Integers
    """(num_events + 1,)."""
    pid: Integers
    """(n,) PDG codes."""
    px: Floats
    """(n,) momenta at the production vertex [GeV]."""
    py: Floats
    pz: Floats
    energy: Floats
    """(n,) [GeV]."""
    x: Floats
    """(n,) production vertices [mm]."""
    y: Floats
    z: Floats

    @property
    def num_events(self) -> int:
        """Number of events."""
        return len(self.offsets) - 1

    @property
    def event(self) -> Integers:
        """(n,) number of each particle's event."""
        num_particles = np.diff(self.offsets)
        return np.repeat(np.arange(self.num_events), num_particles)

    @property
    def pt(self) -> Floats:
        """(n,) transverse momenta [GeV]."""
        return np.hypot(self.px, self.py)

    @property
    def charge(self) -> Integers:
        """(n,) in units of the elementary charge."""
        return charges(self.pid)

    @property
    def visible(self) -> NDArray[np.bool_]:
        """(n,) False for neutrinos."""
        return ~np.isin(np.abs(self.pid), _NEUTRINOS)

    @classmethod
    def concatenate(cls, blocks: Sequence[StableParticles]) -> Self:
        """The events of several blocks, one after the other."""
        counts = np.concatenate([np.diff(block.offsets) for block in blocks])
        columns = [np.concatenate(arrays) for arrays in zip(*blocks, strict=True)]
        return cls(offsets_from_counts(counts), *columns[1:])

    def select_event(self, event: int) -> StableParticles:
        """One event."""
        start = self.offsets[event]
        stop = self.offsets[event + 1]
        offsets = np.array([0, stop - start])
        columns = [column[start:stop] for column in self[1:]]
        return StableParticles(offsets, *columns)


def offsets_from_counts(counts: Integers) -> Integers:
    """Offsets (num_events + 1,) from the numbers of candidates of each event."""
    first_offset = np.zeros(1, np.int64)
    return np.concatenate([first_offset, np.cumsum(counts, dtype=np.int64)])


def event_offsets(event: Integers, num_events: int) -> Integers:
    """Offsets (num_events + 1,) of candidates in order of the events.

    `event` (n,) is the index of the event of each candidate.
    """
    return offsets_from_counts(np.bincount(event, minlength=num_events))


def charges(pid: Integers) -> Integers:
    """(n,) charges [e] of particles by PDG code; 0 for codes that are not of stable charged ones.

    Examples:
        >>> charges(np.array([211, -211, 11, 22])).tolist()
        [1, -1, -1, 0]
    """
    code = np.minimum(np.abs(pid), len(_CHARGE_BY_CODE) - 1)
    return np.sign(pid) * _CHARGE_BY_CODE[code]


def pseudorapidity(px: Floats, py: Floats, pz: Floats) -> Floats:
    """Pseudorapidity of vectors; infinite along the beam."""
    with np.errstate(divide="ignore"):
        eta: Floats = np.arcsinh(pz / np.hypot(px, py))
    return eta


def wrapped(phi: Floats) -> Floats:
    """Angles within [-pi, pi)."""
    angles: Floats = (phi + np.pi) % (2 * np.pi) - np.pi
    return angles


def passes(particles: StableParticles, settings: LeptonFilterSettings) -> NDArray[np.bool_]:
    """(num_events,) whether an event has an isolated, central electron or muon above threshold.

    A threshold of 0 lets all events pass.
    """
    if settings.min_pt == 0:
        return np.ones(particles.num_events, np.bool_)
    passing = np.zeros(particles.num_events, np.bool_)
    is_lepton = np.isin(np.abs(particles.pid), LEPTONS)
    is_hard = particles.pt > settings.min_pt
    is_hard_lepton = is_lepton & is_hard
    events_with_lepton = np.unique(particles.event[is_hard_lepton])
    for event in events_with_lepton:
        start = particles.offsets[event]
        stop = particles.offsets[event + 1]
        leptons = np.flatnonzero(is_hard_lepton[start:stop])
        particles_of_event = particles.select_event(event)
        passing[event] = _has_isolated_lepton(particles_of_event, leptons, settings)
    return passing


def _has_isolated_lepton(
    event: StableParticles, leptons: Integers, settings: LeptonFilterSettings
) -> bool:
    """Whether one of the `leptons`, indices into a single event, is isolated and central.

    A lepton is isolated if the pT of all other visible particles in the cone around it add up to
    less than `max_isolation` of its own.
    """
    pt = event.pt
    eta = pseudorapidity(event.px, event.py, event.pz)
    phi = np.arctan2(event.py, event.px)
    for lepton in leptons:
        if abs(eta[lepton]) > settings.max_eta:
            continue
        delta_eta = eta - eta[lepton]
        delta_phi = wrapped(phi - phi[lepton])
        squared_distance = np.square(delta_eta) + np.square(delta_phi)
        in_cone = squared_distance < CONE**2
        in_cone &= event.visible
        in_cone[lepton] = False
        pt_in_cone = pt[in_cone].sum()
        if pt_in_cone < settings.max_isolation * pt[lepton]:
            return True
    return False
