"""Hadronises an event several times, and draws the decays of taus and heavy hadrons many times.

The first version that passes the lepton filter is kept. The weight of the event follows from the
share of versions that pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from hep_simulation.particles import LEPTONS, StableParticles, passes
from hep_simulation.pythia_records import select_particles
from pipeline.configuration.simulate_section import LeptonFilterSettings

#: PDG codes of taus, and of these and the ground states of charm and bottom hadrons.
_TAU: Final = 15
_DECAYING: Final = frozenset(
    {_TAU, 411, 421, 431, 4122, 4132, 4232, 4332, 511, 521, 531, 541, 5122, 5132, 5232, 5332}
)


class Versions(NamedTuple):
    """The versions of an event."""

    first: StableParticles | None
    """The first version that passes; None if none does."""
    num_passed: int
    """Number of versions that pass."""


def resample_decays(
    pythia: Any,
    partons: Any,
    *,
    hadronisations: int,
    decays: int,
    lepton_filter: LeptonFilterSettings,
) -> Versions:
    """Hadronise an event several times, and decay its taus and heavy hadrons many times in each.

    It replaces the current event of `pythia`.

    Args:
        pythia: The generator, with hadronisation switched off.
        partons: The record of the event before hadronisation.
        hadronisations: Number of hadronisations.
        decays: Number of versions of the decays in each.
        lepton_filter: The filter that versions must pass.
    """
    # Hadronisation leaves particles without colour unchanged; all others come after the partons.
    colourless = [
        index for index, parton in enumerate(partons) if parton.isFinal() and parton.colType() == 0
    ]
    first: StableParticles | None = None
    num_passed = 0
    for _ in range(hadronisations):
        # Taus and heavy hadrons stay, while all other unstable particles decay.
        pythia.event = partons
        _switch_decays(pythia, on=False)
        is_hadronised = pythia.forceHadronLevel()
        _switch_decays(pythia, on=True)
        if is_hadronised:
            indices = [*colourless, *range(partons.size(), pythia.event.size())]
            versions = _decay_versions(pythia, indices, decays, lepton_filter)
            first = first or versions.first
            num_passed += versions.num_passed
    return Versions(first, num_passed)


class _EventParticles:
    """Indices of the particles of an event before decays, by their role for the lepton filter."""

    def __init__(self, event: Any, indices: Iterable[int], min_pt: float) -> None:
        # Particles that do not decay are stable; heavy hadrons and taus are hard or soft.
        self.stable: list[int] = []
        self.hard: list[int] = []
        """Hadrons hard enough for a lepton above the threshold, and all taus: Pythia decays the
        taus of one boson together, so both decay in each version."""
        self.soft: list[int] = []
        """Hadrons that are too soft."""
        self.has_lepton = min_pt == 0
        """Whether a lepton is above the threshold without any decay."""
        self.may_pass = self.has_lepton
        """Whether there is such a lepton, or a particle that may decay to one."""
        for index in indices:
            particle = event[index]
            # Only particles at the end of their decay chain count.
            if not particle.isFinal():
                continue
            code = particle.idAbs()
            is_above = particle.pT() > min_pt
            if code not in _DECAYING:
                self.stable.append(index)
                self.has_lepton |= is_above and code in LEPTONS
            elif is_above or code == _TAU:
                self.hard.append(index)
            else:
                self.soft.append(index)
            self.may_pass |= self.has_lepton or (is_above and code in _DECAYING)


def _decay_versions(
    pythia: Any, indices: list[int], num_versions: int, lepton_filter: LeptonFilterSettings
) -> Versions:
    """Decay the current event many times; `indices` are those of its particles.

    To save time, hard particles decay first. The soft ones decay, and the isolation is computed,
    only in versions with a lepton above the threshold. The record is as before after each version.
    """
    event = pythia.event
    size = event.size()
    particles = _EventParticles(event, indices, lepton_filter.min_pt)
    if not particles.may_pass:
        return Versions(None, 0)
    stable: StableParticles | None = None
    first: StableParticles | None = None
    num_passed = 0
    for _ in range(num_versions):
        # A negative status keeps particles from decaying.
        for index in particles.soft:
            event[index].statusNeg()
        pythia.moreDecays()
        for index in particles.soft:
            event[index].statusPos()
        if particles.has_lepton or _has_new_lepton(event, size, lepton_filter.min_pt):
            pythia.moreDecays()
            if stable is None:
                stable = select_particles(event, particles.stable)
            products = [index for index in range(size, event.size()) if event[index].isFinal()]
            version = _merge(stable, select_particles(event, products))
            if passes(version, lepton_filter)[0]:
                first = first or version
                num_passed += 1
        # Remove the products, and make the decayed particles final again.
        event.popBack(event.size() - size)
        for index in (*particles.hard, *particles.soft):
            event[index].statusPos()
            event[index].daughters(0, 0)
    return Versions(first, num_passed)


def _has_new_lepton(event: Any, size: int, min_pt: float) -> bool:
    """Whether the products of decays, behind the first `size` particles, have a hard lepton."""
    for index in range(size, event.size()):
        particle = event[index]
        if particle.idAbs() in LEPTONS and particle.isFinal() and particle.pT() > min_pt:
            return True
    return False


def _merge(stable: StableParticles, products: StableParticles) -> StableParticles:
    """One event with the particles of two."""
    particles = StableParticles.concatenate([stable, products])
    return particles._replace(offsets=particles.offsets[[0, -1]])


def _switch_decays(pythia: Any, *, on: bool) -> None:
    """Let Pythia decay taus and heavy hadrons, or not."""
    for code in _DECAYING:
        pythia.particleData.mayDecay(code, on)
