"""Gives up events early that would hardly pass the lepton filter, and keeps all weighted sums.

It examines an event where the showers have come down to some scale. What they do later hardly changes hard particles,
but takes most of the time, with the further collisions of partons. Of the events without a promising particle, one in
`thinning` is followed, with that weight.

Promising is an electron or muon of the hard process that is near the thresholds. Others pass only by the decay of a tau
or heavy hadron, which is seldom. With heavy-flavour enrichment it is a heavy quark well above the threshold.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pythia8mc

from pipeline.configuration.simulate_section import HeavyFlavourSettings, LeptonFilterSettings

#: Transverse momentum of the evolution at which leptons are examined, and heavy quarks, which may come late [GeV].
_LEPTON_SCALE: Final = 6.0
_QUARK_SCALE: Final = 5.0
#: How much a lepton may miss the thresholds there, in transverse momentum [GeV] and pseudorapidity. Of 2,500 ttbar and
#: W+jets events that pass, two missed more at 10 GeV; such events have the weight `thinning`.
_MARGIN_PT: Final = 5.0
_MARGIN_ETA: Final = 0.3
#: A quark promises a lepton if its transverse momentum is this much of the threshold.
_PROMISING: Final = 1.5
_LEPTONS: Final = (11, 13)
_HEAVY_QUARKS: Final = (4, 5)
#: Position in Pythia's evolution, and status of intermediate resonances.
_IN_A_DECAY: Final = 5
_RESONANCE: Final = -22


class EarlyFilter(pythia8mc.UserHooks):  # type: ignore[misc]
    """Pythia asks it during each event, at a scale [GeV]; of those that do not promise to pass, few are followed."""

    def __init__(self, thinning: int, scale: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._thinning, self._scale, self._rng = thinning, scale, rng
        self._given_up = 0
        self.is_on = True
        """Whether it gives up anything."""
        self.is_thinned = False
        """Whether the current event stands for those that were given up."""

    def num_given_up(self) -> int:
        """Number of events given up since the last call."""
        number, self._given_up = self._given_up, 0
        return number

    def canVetoProcessLevel(self) -> bool:  # noqa: D102, N802 - names of Pythia, here and below
        return True

    def doVetoProcessLevel(self, process: Any) -> bool:  # noqa: N802
        """A new hard process."""
        self.is_thinned = False
        return not self._may_promise(process) and self._gives_up()

    def canVetoPT(self) -> bool:  # noqa: D102, N802
        return True

    def scaleVetoPT(self) -> float:  # noqa: D102, N802
        return self._scale

    def doVetoPT(self, position: int, event: Any) -> bool:  # noqa: N802
        """The evolution of the event, or of a decay, reaches the scale."""
        if self.is_thinned or position == _IN_A_DECAY or self._promises(event):
            return False
        return self._gives_up()

    def _may_promise(self, process: Any) -> bool:  # noqa: ARG002
        """Whether the showers can make an event promising."""
        return True

    def _promises(self, event: Any) -> bool:
        """Whether an event is promising at the scale."""
        raise NotImplementedError

    def _gives_up(self) -> bool:
        self.is_thinned = self.is_on
        gives_up = self.is_on and self._rng.random() * self._thinning >= 1
        self._given_up += gives_up
        return gives_up


class EarlyQuarkFilter(EarlyFilter):
    """For enrichment: promising is a heavy quark well above its threshold."""

    def __init__(
        self, settings: HeavyFlavourSettings, thinning: int, rng: np.random.Generator
    ) -> None:
        super().__init__(thinning, _QUARK_SCALE, rng)
        self._min_pt = _PROMISING * settings.min_quark_pt

    def _promises(self, event: Any) -> bool:
        return any(
            each.idAbs() in _HEAVY_QUARKS and each.isFinal() and each.pT() > self._min_pt
            for each in event
        )


class EarlyLeptonFilter(EarlyFilter):
    """Promising is an electron or muon of the hard process near the thresholds."""

    def __init__(self, settings: LeptonFilterSettings, rng: np.random.Generator) -> None:
        super().__init__(settings.thinning, _LEPTON_SCALE, rng)
        self._settings = settings
        #: Places of the electrons and muons of the hard process, in its record, and in both records of the first
        #: resonance of their decay chains, or their own without any.
        self._leptons: list[tuple[int, int]] = []
        self._process: Any = None
        self._followed: list[Any] = []

    def followed(self) -> list[Any]:
        """Records before hadronisation of the thinned events since the last call; Pythia does not return these."""
        found, self._followed = self._followed, []
        return found

    def canVetoPartonLevel(self) -> bool:  # noqa: D102, N802
        return True

    def doVetoPartonLevel(self, event: Any) -> bool:  # noqa: N802
        """Partons are complete: those of thinned events are put aside, the others become hadrons."""
        if self.is_thinned:
            self._followed.append(pythia8mc.Event(event))
        return self.is_thinned

    def _may_promise(self, process: Any) -> bool:
        self._process = process
        self._leptons = [
            (place, _origin(process, place))
            for place in range(5, process.size())
            if process[place].idAbs() in _LEPTONS and process[place].isFinal()
        ]
        return bool(self._leptons)

    def _promises(self, event: Any) -> bool:
        momenta = [self._momentum(*each, event) for each in self._leptons]
        least, most = self._settings.min_pt - _MARGIN_PT, self._settings.max_eta + _MARGIN_ETA
        return any(each.pT() > least and abs(each.eta()) < most for each in momenta)

    def _momentum(self, place: int, origin: int, event: Any) -> Any:
        """Of a lepton, carried along with the resonance that it comes from, which decays later in the record."""
        now = event[event[origin].iBotCopy()].p()
        if origin == place:
            return now
        boost = pythia8mc.RotBstMatrix()
        boost.bst(self._process[origin].p(), now)
        momentum = pythia8mc.Vec4(self._process[place].p())
        momentum.rotbst(boost)
        return momentum


def _origin(process: Any, place: int) -> int:
    mother = process[place].mother1()
    return _origin(process, mother) if process[mother].status() == _RESONANCE else place
