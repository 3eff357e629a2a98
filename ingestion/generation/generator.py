"""Pythia 8: blocks of generated events that pass the lepton filter.

A generator depends on its settings and its seed only. Enrichment in heavy flavour: an event with a hard charm or bottom
quark after the shower is hadronised many times, and the heavy hadrons of each version are decayed many times. The
first version that passes the filter is kept. Its weight is the share of versions that pass, so that weighted sums are
those without repetition.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from ingestion.generation.errors import GenerationError
from ingestion.generation.lepton_filter import LEPTONS, passes
from ingestion.generation.particles import Floats, Integers, StableParticles, pseudorapidity
from ingestion.generation.settings import HeavyFlavourSettings, LeptonFilterSettings

#: Pythia allows seeds from 1 to this one.
LAST_SEED: Final = 900_000_000
_MB_TO_PB: Final = 1e9
#: Where Pythia looks for its data, and their place below a prefix.
_DATA: Final = "PYTHIA8DATA"
_XML: Final = Path("share", "Pythia8", "xmldoc")
_BATCH: Final = 50
#: Charm and bottom quarks above this transverse momentum may give a jet its flavour [GeV].
_MIN_PARTON_PT: Final = 10.0
#: Ground states of charm and bottom hadrons.
_WEAKLY_DECAYING: Final = frozenset({411, 421, 431, 4122, 4132, 4232, 4332, 511, 521, 531, 541, 5122, 5132, 5232, 5332})
_FIELDS: Final = ("id", "px", "py", "pz", "e", "xProd", "yProd", "zProd")


class HeavyQuarks(NamedTuple):
    """Charm and bottom quarks of a block of events, which give jets their flavour."""

    event: Integers
    """(n,) number of the event."""
    flavour: Integers
    """(n,) 4 or 5."""
    eta: Floats
    phi: Floats


class GeneratedBlock(NamedTuple):
    """Some events that pass the filter."""

    particles: StableParticles
    quarks: HeavyQuarks
    weights: Floats
    """(num_events,)."""


class Tally(NamedTuple):
    """What a generator has done so far."""

    generated: int
    """Number of generated events, those included that the filter drops."""
    passed_weight: float
    """Sum of the weights of the events that pass."""
    cross_section_pb: float
    """Cross-section of the process before the filter [pb]."""
    cross_section_error_pb: float

    @property
    def filter_efficiency(self) -> float:
        """Share of the cross-section that passes the filter."""
        return self.passed_weight / self.generated if self.generated else 0.0


class Generator:
    """Pythia with the settings of a process.

    Args:
        lines: Settings of Pythia, in order.
        energy_tev: Energy in the centre of mass [TeV].
        seed: 1 to `LAST_SEED`.
        lepton_filter: The filter; None keeps all events.
        heavy_flavour: Enrichment; None for none.

    Raises:
        GenerationError: Pythia refuses the settings.
    """

    def __init__(
        self,
        lines: list[str],
        *,
        energy_tev: float,
        seed: int,
        lepton_filter: LeptonFilterSettings | None = None,
        heavy_flavour: HeavyFlavourSettings | None = None,
    ) -> None:
        self._filter = lepton_filter
        self._enrichment = heavy_flavour
        own = [f"Beams:eCM = {energy_tev * 1000}", "Print:quiet = on", "Random:setSeed = on", f"Random:seed = {seed}"]
        if heavy_flavour is not None:
            own.append("HadronLevel:all = off")
        self._pythia = _pythia([*lines, *own])
        self._generated = 0
        self._weight = 0.0

    @property
    def num_generated(self) -> int:
        """Number of generated events so far."""
        return self._generated

    def tally(self) -> Tally:
        """What was done so far; the cross-section becomes more precise with every event."""
        info = self._pythia.infoPython()
        return Tally(self._generated, self._weight, info.sigmaGen() * _MB_TO_PB, info.sigmaErr() * _MB_TO_PB)

    def blocks(self) -> Iterator[GeneratedBlock]:
        """Blocks of events that pass the filter, without end; a block may be empty."""
        while True:
            block = self._batch() if self._enrichment is None else self._enriched(self._enrichment)
            self._weight += float(block.weights.sum())
            yield block

    def _batch(self) -> GeneratedBlock:
        events = self._pythia.nextBatch(_BATCH)
        # Pythia gives up some events; they do not count.
        self._generated += len(events)
        particles, quarks = _of_records(events)
        if self._filter is None:
            return GeneratedBlock(particles, quarks, np.ones(particles.num_events))
        kept = np.flatnonzero(passes(particles, self._filter))
        return GeneratedBlock(*_chosen(particles, quarks, kept), np.ones(len(kept)))

    def _enriched(self, enrichment: HeavyFlavourSettings) -> GeneratedBlock:
        """One generated event, or none if it does not pass."""
        pythia = self._pythia
        if not pythia.next():
            return _EMPTY
        self._generated += 1
        partons = list(pythia.event)
        if not any(
            each.idAbs() in (4, 5) and each.isFinal() and each.pT() > enrichment.min_quark_pt for each in partons
        ):
            return _EMPTY
        quarks = _quarks_of(partons)
        # Hadronisation leaves these as they are; all other stable particles come after the partons.
        colourless = [place for place, each in enumerate(partons) if each.isFinal() and each.colType() == 0]
        saved = type(pythia.event)(pythia.event)
        kept: StableParticles | None = None
        num_passed = 0
        for _ in range(enrichment.hadronisations):
            pythia.event = saved
            self._decay_heavy(on=False)
            made = pythia.forceHadronLevel()
            self._decay_heavy(on=True)
            if made:
                event = pythia.event
                candidates = [*(event[place] for place in colourless), *list(event)[len(partons) :]]
                first, passed = self._decays([each for each in candidates if each.isFinal()], enrichment.decays)
                kept = kept or first
                num_passed += passed
        if kept is None:
            return _EMPTY
        return GeneratedBlock(kept, quarks, np.array([num_passed / (enrichment.hadronisations * enrichment.decays)]))

    def _decay_heavy(self, *, on: bool) -> None:
        for code in _WEAKLY_DECAYING:
            self._pythia.particleData.mayDecay(code, on)

    def _decays(self, stable: list[Any], number: int) -> tuple[StableParticles | None, int]:
        """Decay the heavy hadrons of the current event many times: the first version that passes, and how many pass.

        Without a heavy hadron or lepton above the filter's threshold no version can pass, and none is made.
        """
        event = self._pythia.event
        heavy = [type(each)(each) for each in stable if each.idAbs() in _WEAKLY_DECAYING]
        least = self._filter.min_pt if self._filter else 0.0
        others = [each for each in stable if each.idAbs() not in _WEAKLY_DECAYING]
        has_lepton = any(each.idAbs() in LEPTONS and each.pT() > least for each in others)
        if not has_lepton and not any(each.pT() > least for each in heavy):
            return None, 0
        rest = _of_list(others)
        for each in heavy:
            # In a record of its own the particle has no relatives.
            each.mothers(0, 0)
            each.daughters(0, 0)
        first: StableParticles | None = None
        num_passed = 0
        for _ in range(number):
            event.reset()
            for each in heavy:
                event.append(each)
            self._pythia.moreDecays()
            products = list(event)[1:]
            if not has_lepton and not any(
                each.idAbs() in LEPTONS and each.pT() > least and each.isFinal() for each in products
            ):
                continue
            made = _of_list([each for each in products if each.isFinal()])
            found = StableParticles(
                np.array([0, len(rest.pid) + len(made.pid)]),
                *(np.concatenate([one, other]) for one, other in zip(list(rest)[1:], list(made)[1:], strict=True)),
            )
            if self._filter is None or passes(found, self._filter)[0]:
                num_passed += 1
                first = first or found
        return first, num_passed


def _of_list(particles: list[Any]) -> StableParticles:
    """Particles of Pythia as one event."""
    columns = np.array([[getattr(each, name)() for name in _FIELDS] for each in particles]).reshape(-1, len(_FIELDS)).T
    return StableParticles(np.array([0, len(particles)]), columns[0].astype(np.int32), *columns[1:])


def _quarks_of(partons: list[Any]) -> HeavyQuarks:
    quarks = [each for each in partons if each.idAbs() in (4, 5) and each.pT() > _MIN_PARTON_PT]
    return HeavyQuarks(
        np.zeros(len(quarks), np.int64),
        np.array([each.idAbs() for each in quarks], np.int64),
        np.array([each.eta() for each in quarks]),
        np.array([each.phi() for each in quarks]),
    )


def _of_records(events: ak.Array) -> tuple[StableParticles, HeavyQuarks]:
    """Stable particles and heavy quarks of a batch of event records."""
    records = events.prt
    counts = ak.to_numpy(ak.num(records, axis=1))
    flat = ak.flatten(records)
    pid = ak.to_numpy(flat.id)
    event = np.repeat(np.arange(len(counts)), counts)
    px, py, pz, energy = (ak.to_numpy(flat.p[name]) for name in ("px", "py", "pz", "e"))
    stable = ak.to_numpy(flat.status) > 0
    vertices = [ak.to_numpy(ak.fill_none(flat.vProd[name], 0.0))[stable] for name in ("px", "py", "pz")]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event[stable], minlength=len(counts)))])
    momenta = (column[stable].astype(np.float64) for column in (px, py, pz, energy))
    particles = StableParticles(offsets.astype(np.int64), pid[stable].astype(np.int32), *momenta, *vertices)
    heavy = np.isin(np.abs(pid), (4, 5)) & (np.hypot(px, py) > _MIN_PARTON_PT)
    quarks = HeavyQuarks(
        event[heavy], np.abs(pid[heavy]), pseudorapidity(px[heavy], py[heavy], pz[heavy]), np.arctan2(py, px)[heavy]
    )
    return particles, quarks


def _chosen(
    particles: StableParticles, quarks: HeavyQuarks, kept: NDArray[np.int64]
) -> tuple[StableParticles, HeavyQuarks]:
    """Some events of a block."""
    place = np.full(particles.num_events, -1)
    place[kept] = np.arange(len(kept))
    mask = place[quarks.event] >= 0
    few = HeavyQuarks(place[quarks.event[mask]], quarks.flavour[mask], quarks.eta[mask], quarks.phi[mask])
    events = [particles.of_event(int(number)) for number in kept]
    return StableParticles.of_events(events) if events else _EMPTY.particles, few


def joined(blocks: list[GeneratedBlock]) -> GeneratedBlock:
    """Several blocks as one."""
    starts = np.cumsum([0, *(block.particles.num_events for block in blocks)])
    quarks = HeavyQuarks(
        np.concatenate([block.quarks.event + start for block, start in zip(blocks, starts, strict=False)]),
        *(np.concatenate([block.quarks[place] for block in blocks]) for place in range(1, len(HeavyQuarks._fields))),
    )
    particles = StableParticles.of_events([block.particles for block in blocks])
    return GeneratedBlock(particles, quarks, np.concatenate([block.weights for block in blocks]))


def _pythia(lines: list[str]) -> Any:
    import pythia8mc  # noqa: PLC0415 - the extra `simulate`; only this function needs it

    os.environ.setdefault(_DATA, str(_data_folder(Path(pythia8mc.__file__))))

    pythia = pythia8mc.Pythia(os.environ[_DATA], False)
    for line in lines:
        if not pythia.readString(line):
            raise GenerationError(
                f"Pythia does not know the setting '{line}'. Correct it under simulate.processes: in the config; "
                f"https://pythia.org/latest-manual lists all settings."
            )
    if not pythia.init():
        raise GenerationError(
            f"Pythia cannot start with the settings {'; '.join(lines)}. Its own message above gives the reason."
        )
    return pythia


def _data_folder(module: Path) -> Path:
    """Folder of Pythia's particle data, which the wheel installs beside the package or below the environment.

    Raises:
        GenerationError: The installation is incomplete.
    """
    for prefix in (Path(sys.prefix), *module.parents):
        if (prefix / _XML / "Index.xml").is_file():
            return prefix / _XML
    raise GenerationError(
        f"pythia8mc is installed without its data ({_XML}). Install it again: "
        f".venv/bin/pip install --force-reinstall --no-deps pythia8mc"
    )


_NONE: Final = np.zeros(0)
_EMPTY: Final = GeneratedBlock(
    StableParticles(np.zeros(1, np.int64), np.zeros(0, np.int32), *([_NONE] * 7)),
    HeavyQuarks(np.zeros(0, np.int64), np.zeros(0, np.int64), _NONE, _NONE),
    _NONE,
)
