"""Pythia 8: blocks of generated events that pass the lepton filter.

A generator depends on its settings and its seed only. Enrichment in heavy flavour: an event with a hard charm or bottom
quark after the shower is hadronised many times, and the heavy hadrons of each version are decayed many times. The
first version that passes the filter is kept. Its weight is the share of versions that pass, so that weighted sums are
those without repetition.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np

from hep_core.input_errors import InputFileError
from hep_simulation.particles import Floats, Integers, StableParticles, passes, pseudorapidity
from hep_simulation.repeated_decays import Versions, resample_decays
from pipeline.configuration.simulate_section import HeavyFlavourSettings, LeptonFilterSettings

_PACKAGES: Final = ("pythia8mc", "fastjet")
#: Pythia allows seeds from 1 to this one.
LAST_SEED: Final = 900_000_000
_MB_TO_PB: Final = 1e9
#: Where Pythia looks for its data, and their place below a prefix.
_DATA: Final = "PYTHIA8DATA"
_XML: Final = Path("share", "Pythia8", "xmldoc")
_BATCH: Final = 100
#: Charm and bottom quarks above this transverse momentum may give a jet its flavour [GeV].
_MIN_PARTON_PT: Final = 10.0
#: Events that Pythia may give up in a row.
_TRIES: Final = 1000
_NO_MORE: Final = (
    f"Pythia gives up {_TRIES} events in a row. Correct the settings of the process; if it reads events from a file, "
    f"these are too few."
)
_HEAVY: Final = (4, 5)
_ENERGY: Final = re.compile(r"\s*Beams:eCM\s*=?\s*([\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
#: Pythia's modes `Beams:frameType` in which hard processes come from a file.
_FROM_A_FILE: Final = (4, 5)


class GenerationError(InputFileError):
    """The simulation cannot run with these settings, or on this machine."""

    may_be_skipped = False


def require_packages() -> None:
    """Refuse to start without the extra `simulate`, before tasks fail for it."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


class HeavyQuarks(NamedTuple):
    """Charm and bottom quarks of a block of events, which give jets their flavour."""

    event: Integers
    """(n,) number of the event."""
    flavour: Integers
    """(n,) 4 or 5."""
    eta: Floats
    phi: Floats

    def of_event(self, number: int) -> HeavyQuarks:
        """Those of one event, as event 0."""
        own = HeavyQuarks(*(column[self.event == number] for column in self))
        return own._replace(event=np.zeros_like(own.event))


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
    passed_weight_squared: float
    """Sum of the squares of these weights."""
    cross_section_pb: float
    """Cross-section of the process before the filter [pb]."""
    cross_section_error_pb: float

    @property
    def filter_efficiency(self) -> float:
        """Share of the cross-section that passes the filter."""
        return self.passed_weight / self.generated if self.generated else 0.0


class Generator:
    """Pythia with the settings of a process.

    Seeds are 1 to `LAST_SEED`.

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
        self._filter = lepton_filter or LeptonFilterSettings(min_pt=0)
        self._enrichment = heavy_flavour
        _refuse_other_energy(lines, energy_tev)
        own = [
            f"Beams:eCM = {energy_tev * 1000}",
            "Print:quiet = on",
            "Random:setSeed = on",
            f"Random:seed = {seed}",
        ]
        if heavy_flavour is not None:
            own.append("HadronLevel:all = off")
        is_thinned = self._filter.min_pt > 0 and self._filter.thinning > 1
        self._early = _early_filter(self._filter, heavy_flavour, seed) if is_thinned else None
        self._pythia = _pythia([*lines, *own, "Check:abortIfVeto = on"], self._early)
        # A file of hard processes has beams of its own.
        _refuse_other_energy([f"Beams:eCM = {self._pythia.infoPython().eCM()}"], energy_tev)
        self.num_generated = 0
        """Number of generated events so far."""
        self._completed = 0
        self._in_vain = 0
        self._weight = 0.0
        self._weight_squared = 0.0
        self._order = np.random.default_rng([seed, 2])

    @property
    def reads_a_file(self) -> bool:
        """Whether the hard processes come from a file, each once and in its order."""
        return self._pythia.settings.mode("Beams:frameType") in _FROM_A_FILE

    def tally(self) -> Tally:
        """What was done so far; the cross-section becomes more precise with every event."""
        more = int(self._early is not None)
        if self._early is not None:
            # Pythia computes the cross-section anew with an event that is not given up. This one counts nowhere else.
            self._early.is_on = False
            if not any(self._pythia.next() for _ in range(_TRIES)):
                raise GenerationError(_NO_MORE)
            self._early.is_on = True
        generated, completed = self.num_generated + more, max(self._completed + more, 1)
        info = self._pythia.infoPython()
        # Events that the early filter gives up are missing in Pythia's cross-section, and their number in its error.
        cross_section = info.sigmaGen() * _MB_TO_PB * generated / completed
        relative = (info.sigmaErr() / info.sigmaGen()) ** 2 if info.sigmaGen() else 0.0
        error = (
            cross_section
            * max(relative - 1 / completed + 1 / max(generated, 1), 1 / max(generated, 1)) ** 0.5
        )
        return Tally(self.num_generated, self._weight, self._weight_squared, cross_section, error)

    def blocks(self) -> Iterator[GeneratedBlock]:
        """Blocks of events that pass the filter, without end; a block may be empty."""
        while True:
            block = self._batch() if self._enrichment is None else self._enriched(self._enrichment)
            self._weight += float(block.weights.sum())
            self._weight_squared += float(np.square(block.weights).sum())
            yield block

    def _batch(self) -> GeneratedBlock:
        # Of an event that is given up, by us or by Pythia, there is nothing.
        records = ak.drop_none(self._pythia.nextBatch(_BATCH, "none"), axis=0)
        _refuse_weights(records.info.weights[:, 0].to_list() if len(records) else [])
        events = _passing(records, self._filter) if len(records) else []
        followed = self._early.followed() if self._early else []
        self._count(_BATCH, len(records), len(followed))
        if self._early is not None:
            events += [each for each in map(self._followed, followed) if len(each.weights)]
            # In any order, since the last events of a file may be left out.
            events = [events[place] for place in self._order.permutation(len(events))]
        return joined(events)

    def _count(self, tried: int, completed: int, followed: int = 0) -> None:
        """Count events, those included that the early filter gave up; of events that Pythia gives up there are none."""
        given_up = self._early.num_given_up() if self._early else 0
        self._completed += completed
        self.num_generated += completed + followed + given_up
        self._in_vain = 0 if completed + followed + given_up else self._in_vain + tried
        if self._in_vain >= _TRIES:
            raise GenerationError(_NO_MORE)

    def _followed(self, partons: Any) -> GeneratedBlock:
        """An event of those that are thinned: as many versions as the events that it stands for."""
        found = resample_decays(
            self._pythia,
            partons,
            hadronisations=1,
            decays=self._filter.thinning,
            lepton_filter=self._filter,
        )
        return _block_of(found, partons, found.passed)

    def _enriched(self, enrichment: HeavyFlavourSettings) -> GeneratedBlock:
        """One generated event, or none if it does not pass."""
        pythia, early = self._pythia, self._early
        is_made = pythia.next()
        self._count(1, int(is_made))
        _refuse_weights([pythia.infoPython().weight()] if is_made else [])
        if not is_made or not any(
            each.idAbs() in _HEAVY and each.isFinal() and each.pT() > enrichment.min_quark_pt
            for each in pythia.event
        ):
            return _EMPTY
        partons = type(pythia.event)(pythia.event)
        hadronisations, decays = enrichment.hadronisations, enrichment.decays
        found = resample_decays(
            pythia,
            partons,
            hadronisations=hadronisations,
            decays=decays,
            lepton_filter=self._filter,
        )
        stands_for = self._filter.thinning if early and early.is_thinned else 1
        return _block_of(found, partons, stands_for * found.passed / (hadronisations * decays))


def _refuse_other_energy(lines: Sequence[str], energy_tev: float) -> None:
    """Refuse settings with another energy: the pile-up and the plots have that of the config."""
    for found in filter(None, map(_ENERGY.match, lines)):
        if not math.isclose(float(found[1]), 1000 * energy_tev, rel_tol=1e-6):
            raise GenerationError(
                f"a process has collisions of {float(found[1]):g} GeV, simulate.energy_tev is {energy_tev:g}. Correct "
                f"one of the two."
            )


def _refuse_weights(weights: Sequence[float]) -> None:
    """Refuse events that Pythia itself weights: the tally, the early filter and Event.Weight take each for one."""
    if others := [weight for weight in weights if weight != 1]:
        raise GenerationError(
            f"Pythia gives an event the weight {others[0]:g}; only events of weight 1 are simulated. Take settings "
            f"that bias the selection of events (PhaseSpace:bias2Selection) out of the process, and make one process "
            f"for each range of pTHat instead. Weighted events of a file (Beams:LHEF) cannot be used."
        )


def _block_of(found: Versions, partons: Any, weight: float) -> GeneratedBlock:
    return (
        GeneratedBlock(found.kept, _quarks_of(partons), np.array([weight]))
        if found.kept
        else _EMPTY
    )


def _quarks_of(partons: list[Any]) -> HeavyQuarks:
    quarks = [each for each in partons if each.idAbs() in _HEAVY and each.pT() > _MIN_PARTON_PT]
    flavour, eta, phi = (
        np.array([(each.idAbs(), each.eta(), each.phi()) for each in quarks]).reshape(-1, 3).T
    )
    return HeavyQuarks(np.zeros(len(quarks), np.int64), flavour.astype(np.int64), eta, phi)


def _passing(records: ak.Array, lepton_filter: LeptonFilterSettings) -> list[GeneratedBlock]:
    counts = ak.to_numpy(ak.num(records.prt, axis=1))
    flat = ak.flatten(records.prt)
    pid = ak.to_numpy(flat.id)
    event = np.repeat(np.arange(len(counts)), counts)
    px, py, pz, energy = (ak.to_numpy(flat.p[name]) for name in ("px", "py", "pz", "e"))
    stable = ak.to_numpy(flat.status) > 0
    vertices = [
        ak.to_numpy(ak.fill_none(flat.vProd[name], 0.0))[stable] for name in ("px", "py", "pz")
    ]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(event[stable], minlength=len(counts)))])
    momenta = (column[stable].astype(np.float64) for column in (px, py, pz, energy))
    particles = StableParticles(
        offsets.astype(np.int64), pid[stable].astype(np.int32), *momenta, *vertices
    )
    heavy = np.isin(np.abs(pid), _HEAVY) & (np.hypot(px, py) > _MIN_PARTON_PT)
    quarks = HeavyQuarks(
        event[heavy],
        np.abs(pid[heavy]),
        pseudorapidity(px[heavy], py[heavy], pz[heavy]),
        np.arctan2(py, px)[heavy],
    )
    kept = np.flatnonzero(passes(particles, lepton_filter)).tolist()
    return [
        GeneratedBlock(particles.of_event(number), quarks.of_event(number), np.ones(1))
        for number in kept
    ]


def joined(blocks: list[GeneratedBlock]) -> GeneratedBlock:
    """Several blocks as one."""
    blocks = [_EMPTY, *blocks]
    starts = np.cumsum([0, *(block.particles.num_events for block in blocks)])
    quarks = HeavyQuarks(
        np.concatenate(
            [block.quarks.event + start for block, start in zip(blocks, starts, strict=False)]
        ),
        *(
            np.concatenate([block.quarks[place] for block in blocks])
            for place in range(1, len(HeavyQuarks._fields))
        ),
    )
    particles = StableParticles.of_events([block.particles for block in blocks])
    return GeneratedBlock(particles, quarks, np.concatenate([block.weights for block in blocks]))


def _early_filter(
    settings: LeptonFilterSettings, heavy_flavour: HeavyFlavourSettings | None, seed: int
) -> Any:
    from hep_simulation import early_filter  # noqa: PLC0415 - needs the extra `simulate`

    rng = np.random.default_rng([seed, 1])
    if heavy_flavour is None:
        return early_filter.EarlyLeptonFilter(settings, rng)
    return early_filter.EarlyQuarkFilter(heavy_flavour, settings.thinning, rng)


def _pythia(lines: list[str], early: Any) -> Any:
    import pythia8mc  # noqa: PLC0415 - the extra `simulate`

    os.environ.setdefault(_DATA, str(_data_folder(Path(pythia8mc.__file__))))
    pythia = pythia8mc.Pythia(os.environ[_DATA], False)
    if early is not None:
        pythia.setUserHooksPtr(early)
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
    """Folder of Pythia's particle data, which the wheel installs beside the package or below the environment."""
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
