"""Hadronises an event several times and draws the decays of taus and heavy hadrons many times.

The first version that passes the lepton filter is kept; the share of versions that pass is what a weight is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hep_simulation.particles import LEPTONS, StableParticles, passes
from pipeline.configuration.simulate_section import LeptonFilterSettings

#: Ground states of charm and bottom hadrons, and taus.
_TAU: Final = 15
_DECAYING: Final = frozenset(
    {_TAU, 411, 421, 431, 4122, 4132, 4232, 4332, 511, 521, 531, 541, 5122, 5132, 5232, 5332}
)
_FIELDS: Final = ("id", "px", "py", "pz", "e", "xProd", "yProd", "zProd")


class Versions(NamedTuple):
    """What became of an event."""

    kept: StableParticles | None
    """The first version that passes; None if none does."""
    passed: int
    """Number of versions that pass."""


def resample_decays(
    pythia: Any,
    partons: Any,
    *,
    hadronisations: int,
    decays: int,
    lepton_filter: LeptonFilterSettings,
) -> Versions:
    """Hadronise an event several times, and decay its taus and heavy hadrons many times in each."""
    # Hadronisation leaves these as they are; all other stable particles come after the partons.
    colourless = [
        place for place, each in enumerate(partons) if each.isFinal() and each.colType() == 0
    ]
    found = Versions(None, 0)
    for _ in range(hadronisations):
        pythia.event = partons
        _switch_decays(pythia, on=False)
        is_made = pythia.forceHadronLevel()
        _switch_decays(pythia, on=True)
        if is_made:
            places = [*colourless, *range(partons.size(), pythia.event.size())]
            new = _versions(pythia, places, decays, lepton_filter)
            found = Versions(found.kept or new.kept, found.passed + new.passed)
    return found


def _versions(
    pythia: Any, places: list[int], number: int, lepton_filter: LeptonFilterSettings
) -> Versions:
    """Decay the current event many times.

    Particles decay in each version if they are hard enough for a lepton above the threshold. The others, and the rest
    of the event, count where there is such a lepton.
    """
    event, least = pythia.event, lepton_filter.min_pt
    size = event.size()
    stable: list[int] = []
    hard: list[int] = []
    soft: list[int] = []
    is_hard = False
    has_lepton = least == 0
    for place in places:
        each = event[place]
        if not each.isFinal():
            continue
        code = each.idAbs()
        if code in _DECAYING:
            # Pythia decays the taus of one boson together, so both in each version.
            (hard if each.pT() > least or code == _TAU else soft).append(place)
            is_hard = is_hard or each.pT() > least
        else:
            stable.append(place)
            has_lepton = has_lepton or (code in LEPTONS and each.pT() > least)
    if not has_lepton and not is_hard:
        return Versions(None, 0)
    rest: StableParticles | None = None
    kept: StableParticles | None = None
    passed = 0
    for _ in range(number):
        for place in soft:
            event[place].statusNeg()
        pythia.moreDecays()
        for place in soft:
            event[place].statusPos()
        made = map(event.__getitem__, range(size, event.size()))
        if has_lepton or any(
            each.idAbs() in LEPTONS and each.isFinal() and each.pT() > least for each in made
        ):
            pythia.moreDecays()
            rest = rest or _particles(event, stable)
            new = _particles(
                event, [place for place in range(size, event.size()) if event[place].isFinal()]
            )
            found = StableParticles.of_events([rest, new])
            found = found._replace(offsets=found.offsets[::2])
            if passes(found, lepton_filter)[0]:
                kept, passed = kept or found, passed + 1
        event.popBack(event.size() - size)
        for place in (*hard, *soft):
            event[place].statusPos()
            event[place].daughters(0, 0)
    return Versions(kept, passed)


def _switch_decays(pythia: Any, *, on: bool) -> None:
    for code in _DECAYING:
        pythia.particleData.mayDecay(code, on)


def _particles(event: Any, places: Sequence[int]) -> StableParticles:
    rows = [[getattr(each, name)() for name in _FIELDS] for each in map(event.__getitem__, places)]
    columns = np.array(rows).reshape(-1, len(_FIELDS)).T
    return StableParticles(np.array([0, len(rows)]), columns[0].astype(np.int32), *columns[1:])
