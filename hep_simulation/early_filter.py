"""Vetoes events early that would hardly pass the lepton filter, and keeps all weighted sums.

It examines an event where the showers have come down to some scale. The later shower hardly changes
hard particles, but takes most of the time, with the further collisions of partons. Of the events
without a promising particle, one in `thinning` is followed, with that weight.

An electron or muon of the hard process near the thresholds is promising. Other events pass only by
the decay of a tau or heavy hadron, which is seldom. With heavy-flavour enrichment a heavy quark
well above the threshold is promising.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pythia8mc

from hep_simulation.particles import LEPTONS
from hep_simulation.pythia_records import has_heavy_quark
from pipeline.configuration.simulate_section import HeavyFlavourSettings, LeptonFilterSettings

#: Pythia's showers evolve from high to low transverse momentum. Events are examined at these scales
#: [GeV]: for leptons, and for heavy quarks, which may come late.
_LEPTON_SCALE: Final = 6.0
_QUARK_SCALE: Final = 5.0
#: How much a lepton may miss the thresholds there, in transverse momentum [GeV] and pseudorapidity.
#: Of 2,500 ttbar and W+jets events that pass, two missed more at 10 GeV; such events have the
#: weight `thinning`.
_MARGIN_PT: Final = 5.0
_MARGIN_ETA: Final = 0.3
#: A quark promises a lepton if its transverse momentum is this multiple of the threshold.
_PROMISING: Final = 1.5
#: Pythia's number for the evolution of a decay, and its status of intermediate resonances.
_IN_A_DECAY: Final = 5
_RESONANCE: Final = -22
#: Index of the first particle of the hard process that is not incoming.
_FIRST_OUTGOING: Final = 5


class EarlyFilter(pythia8mc.UserHooks):  # type: ignore[misc]
    """Examines each event of Pythia at a scale [GeV], and vetoes most that are not promising.

    Of these, one in `thinning`, drawn by `rng`, is thinned instead: it stands for all of them.
    Pythia calls the methods with names in camel case; `canVeto...` says whether it calls the method
    `doVeto...`, whose result is whether Pythia drops the event.
    """

    def __init__(self, thinning: int, scale: float, rng: np.random.Generator) -> None:
        super().__init__()
        self._thinning = thinning
        self._scale = scale
        self._rng = rng
        self._num_vetoed = 0
        self.is_on = True
        """Whether it vetoes anything."""
        self.is_thinned = False
        """Whether the current event stands for the vetoed ones."""

    def pop_num_vetoed(self) -> int:
        """Number of events vetoed since the last call; it begins to count anew."""
        num_vetoed, self._num_vetoed = self._num_vetoed, 0
        return num_vetoed

    def canVetoProcessLevel(self) -> bool:  # noqa: D102, N802
        return True

    def doVetoProcessLevel(self, process: Any) -> bool:  # noqa: N802
        """Whether Pythia drops a new hard process, since no shower can make it promising."""
        self.is_thinned = False
        return not self._may_promise(process) and self._draw_veto()

    def canVetoPT(self) -> bool:  # noqa: D102, N802
        return True

    def scaleVetoPT(self) -> float:  # noqa: D102, N802
        return self._scale

    def doVetoPT(self, position: int, event: Any) -> bool:  # noqa: N802
        """Whether Pythia drops an event whose evolution, or that of a decay, reaches the scale."""
        # A thinned event is followed to its end. The evolution of a decay is not examined.
        if self.is_thinned or position == _IN_A_DECAY or self._is_promising(event):
            return False
        return self._draw_veto()

    def _may_promise(self, process: Any) -> bool:  # noqa: ARG002
        """Whether the showers can make an event promising."""
        return True

    def _is_promising(self, event: Any) -> bool:
        """Whether an event is promising at the scale."""
        raise NotImplementedError

    def _draw_veto(self) -> bool:
        """Draw whether an event that is not promising is vetoed, unless the filter is off.

        One that is not vetoed is a thinned event.
        """
        self.is_thinned = self.is_on
        is_vetoed = self.is_on and self._rng.random() * self._thinning >= 1
        self._num_vetoed += is_vetoed
        return is_vetoed


class EarlyQuarkFilter(EarlyFilter):
    """The filter for enrichment: a heavy quark well above its threshold is promising."""

    def __init__(
        self, settings: HeavyFlavourSettings, thinning: int, rng: np.random.Generator
    ) -> None:
        super().__init__(thinning, _QUARK_SCALE, rng)
        self._min_pt = _PROMISING * settings.min_quark_pt

    def _is_promising(self, event: Any) -> bool:
        return has_heavy_quark(event, self._min_pt)


class EarlyLeptonFilter(EarlyFilter):
    """The usual filter: an electron or muon of the hard process near thresholds is promising."""

    def __init__(self, settings: LeptonFilterSettings, rng: np.random.Generator) -> None:
        super().__init__(settings.thinning, _LEPTON_SCALE, rng)
        self._settings = settings
        #: Index of each electron and muon in the record of the hard process, and index, in both
        #: records, of the first resonance of its decay chain; without any, twice its own.
        self._leptons: list[tuple[int, int]] = []
        self._process: Any = None
        self._thinned_events: list[Any] = []

    def pop_thinned(self) -> list[Any]:
        """Records before hadronisation of the thinned events since the last call, which it forgets.

        Pythia does not return these events.
        """
        events, self._thinned_events = self._thinned_events, []
        return events

    def canVetoPartonLevel(self) -> bool:  # noqa: D102, N802
        return True

    def doVetoPartonLevel(self, event: Any) -> bool:  # noqa: N802
        """Whether Pythia stops here: thinned events are put aside, the others become hadrons."""
        if self.is_thinned:
            self._thinned_events.append(pythia8mc.Event(event))
        return self.is_thinned

    def _may_promise(self, process: Any) -> bool:
        """Whether the hard process has an electron or muon; it remembers these and the process."""
        self._process = process
        self._leptons = []
        for index in range(_FIRST_OUTGOING, process.size()):
            particle = process[index]
            if particle.idAbs() in LEPTONS and particle.isFinal():
                self._leptons.append((index, _origin(process, index)))
        return bool(self._leptons)

    def _is_promising(self, event: Any) -> bool:
        """Whether an electron or muon of the hard process is near the thresholds, or above."""
        min_pt = self._settings.min_pt - _MARGIN_PT
        max_eta = self._settings.max_eta + _MARGIN_ETA
        for lepton, origin in self._leptons:
            momentum = self._momentum(lepton, origin, event)
            if momentum.pT() > min_pt and abs(momentum.eta()) < max_eta:
                return True
        return False

    def _momentum(self, lepton: int, origin: int, event: Any) -> Any:
        """Momentum of a lepton of the hard process at the current stage of the shower.

        The shower recoils change the momentum of a resonance, such as a W, before its decay is in
        the record `event`. The momentum of the lepton is boosted from the old to the new momentum
        of its first resonance, `origin`. Without a resonance it is that of the lepton itself.
        """
        origin_momentum = event[event[origin].iBotCopy()].p()
        if origin == lepton:
            return origin_momentum
        boost = pythia8mc.RotBstMatrix()
        boost.bst(self._process[origin].p(), origin_momentum)
        momentum = pythia8mc.Vec4(self._process[lepton].p())
        momentum.rotbst(boost)
        return momentum


def _origin(process: Any, index: int) -> int:
    """Index of the first resonance of the decay chain of a particle; its own without any."""
    mother = process[index].mother1()
    if process[mother].status() == _RESONANCE:
        return _origin(process, mother)
    return index
