"""Gives up events early that would hardly pass the lepton filter, and keeps all weighted sums.

Without a hard electron or muon of the hard process, an event passes only by the decay of a tau or of a heavy hadron,
which is seldom. That is clear before the costly part: where showers and collisions of other partons have come down to
`SCALE`, the lepton has all but its last recoils. Of the events without a lepton near the thresholds, one in `thinning`
is followed, and its decays are drawn that often.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pythia8mc

from ingestion.generation.settings import LeptonFilterSettings

#: Transverse momentum of the evolution at which leptons are looked at [GeV].
SCALE: Final = 8.0
#: How much a lepton may miss the thresholds there, in transverse momentum [GeV] and pseudorapidity. Of ttbar and W+jets
#: events, fewer than one in 2,000 pass by a lepton that misses more at 10 GeV; those have large weights.
_MARGIN_PT: Final = 8.0
_MARGIN_ETA: Final = 0.3
_LEPTONS: Final = (11, 13)
#: Position in Pythia's evolution.
_IN_A_DECAY: Final = 5
#: Status of intermediate resonances in Pythia's record.
_RESONANCE: Final = -22


class _HardLepton(NamedTuple):
    """An electron or muon of the hard process."""

    place: int
    """In the record of the hard process."""
    origin: int
    """Place, in both records, of the first resonance of its decay chain; its own without any."""


class EarlyFilter(pythia8mc.UserHooks):  # type: ignore[misc]
    """Pythia asks it during each event.

    Args:
        settings: The thresholds, and how many of the other events are followed.
        rng: Draws which.
    """

    def __init__(self, settings: LeptonFilterSettings, rng: np.random.Generator) -> None:
        super().__init__()
        self._settings = settings
        self._rng = rng
        self._leptons: list[_HardLepton] = []
        self._process: Any = None
        self._is_thinned = False
        self._given_up = 0
        self._followed: list[Any] = []
        self.is_on = True
        """Whether it gives up anything."""

    def result(self) -> tuple[int, list[Any]]:
        """Since the last call: number of events given up, and the others of their kind before their hadronisation."""
        found = self._given_up, self._followed
        self._given_up, self._followed = 0, []
        return found

    def canVetoProcessLevel(self) -> bool:  # noqa: D102, N802 - names of Pythia, here and below
        return True

    def doVetoProcessLevel(self, process: Any) -> bool:  # noqa: N802
        """A new hard process: what has no electron or muon is thinned at once."""
        self._process, self._is_thinned = process, False
        self._leptons = [
            _HardLepton(place, _origin(process, place))
            for place in range(5, process.size())
            if process[place].idAbs() in _LEPTONS and process[place].isFinal()
        ]
        return not self._leptons and self._gives_up()

    def canVetoPT(self) -> bool:  # noqa: D102, N802
        return True

    def scaleVetoPT(self) -> float:  # noqa: D102, N802
        return SCALE

    def doVetoPT(self, position: int, event: Any) -> bool:  # noqa: N802
        """The evolution of the event, or of a decay, reaches `SCALE`."""
        if self._is_thinned or position == _IN_A_DECAY or any(self._is_near(each, event) for each in self._leptons):
            return False
        return self._gives_up()

    def canVetoPartonLevel(self) -> bool:  # noqa: D102, N802
        return True

    def doVetoPartonLevel(self, event: Any) -> bool:  # noqa: N802
        """Partons are complete: those of thinned events are put aside, the others go on to hadrons."""
        if self._is_thinned:
            self._followed.append(pythia8mc.Event(event))
        return self._is_thinned

    def _gives_up(self) -> bool:
        self._is_thinned = self.is_on
        gives_up = self.is_on and self._rng.random() * self._settings.thinning >= 1
        self._given_up += gives_up
        return gives_up

    def _is_near(self, lepton: _HardLepton, event: Any) -> bool:
        """Whether the lepton, carried along with the resonance that it comes from, is near the thresholds."""
        now, momentum = event[event[lepton.origin].iBotCopy()].p(), self._process[lepton.place].p()
        if lepton.origin == lepton.place:
            momentum = now
        else:
            boost = pythia8mc.RotBstMatrix()
            boost.bst(self._process[lepton.origin].p(), now)
            momentum = pythia8mc.Vec4(momentum)
            momentum.rotbst(boost)
        return bool(
            momentum.pT() > self._settings.min_pt - _MARGIN_PT
            and abs(momentum.eta()) < self._settings.max_eta + _MARGIN_ETA
        )


def _origin(process: Any, place: int) -> int:
    mother = process[place].mother1()
    return _origin(process, mother) if process[mother].status() == _RESONANCE else place
