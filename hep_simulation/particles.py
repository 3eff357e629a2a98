"""Generated particles of a block of events, as flat arrays; the filter on them; the compiler of loops over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from pipeline.configuration.simulate_section import LeptonFilterSettings

Floats = NDArray[Any]
"""Real numbers in double precision; in a pool, single."""
Integers = NDArray[Any]
"""Whole numbers."""

Loop = TypeVar("Loop", bound=Callable[..., object])

#: Radius of the isolation cone of leptons, and their codes.
CONE: Final = 0.3
LEPTONS: Final = (11, 13)
#: Charges of the stable particles with a charge, by PDG code; antiparticles have the opposite one.
_CHARGES = {11: -1, 13: -1, 15: -1, 211: 1, 321: 1, 2212: 1, 3112: -1, 3222: 1, 3312: -1, 3334: -1}
_CHARGE_OF = np.bincount(list(_CHARGES), list(_CHARGES.values()), max(_CHARGES) + 2).astype(
    np.int64
)
_INVISIBLE = (12, 14, 16)


class StableParticles(NamedTuple):
    """Stable particles of some events; event i owns `offsets[i]:offsets[i + 1]`."""

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
        return np.repeat(np.arange(self.num_events), np.diff(self.offsets))

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
        return ~np.isin(np.abs(self.pid), _INVISIBLE)

    @classmethod
    def of_events(cls, events: Sequence[StableParticles]) -> Self:
        """The events of several blocks, one after the other."""
        counts = np.concatenate(
            [np.zeros(1, np.int64), *(np.diff(each.offsets) for each in events)]
        )
        columns = (
            np.concatenate([each[place] for each in events]) for place in range(1, len(cls._fields))
        )
        return cls(np.cumsum(counts), *columns)

    def of_event(self, number: int) -> StableParticles:
        """One event."""
        start, stop = self.offsets[number : number + 2]
        return StableParticles(
            np.array([0, stop - start]), *(column[start:stop] for column in self[1:])
        )


def charges(pid: Integers) -> Integers:
    """Charges of stable particles, 0 for all others.

    Examples:
        >>> charges(np.array([211, -211, 11, 22])).tolist()
        [1, -1, -1, 0]
    """
    size = np.abs(pid)
    return np.where(
        size < len(_CHARGE_OF), np.sign(pid) * _CHARGE_OF[np.minimum(size, len(_CHARGE_OF) - 1)], 0
    )


def pseudorapidity(px: Floats, py: Floats, pz: Floats) -> Floats:
    """Pseudorapidity of vectors; infinite along the beam."""
    with np.errstate(divide="ignore"):
        eta: Floats = np.arcsinh(pz / np.hypot(px, py))
    return eta


def wrapped(phi: Floats) -> Floats:
    """Angles within [-pi, pi)."""
    turned: Floats = (phi + np.pi) % (2 * np.pi) - np.pi
    return turned


def passes(particles: StableParticles, settings: LeptonFilterSettings) -> NDArray[np.bool_]:
    """Which events have an electron or muon above threshold whose isolation is low enough; (num_events,)."""
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
        inside &= np.isin(np.abs(particles.pid[near]), _INVISIBLE, invert=True)
        inside[own] = False
        found[event[lepton]] |= pt[near][inside].sum() < settings.max_isolation * pt[lepton]
    return found


def compiled(function: Loop) -> Loop:
    """Compile a loop at its first call, and keep the machine code on disk; a division by zero is infinite.

    Numba looks for changes in one file only, so a loop calls no function of another.
    """
    return cast("Loop", numba.njit(cache=True, error_model="numpy")(function))
