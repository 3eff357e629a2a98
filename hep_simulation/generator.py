"""Pythia 8: blocks of generated events that pass the lepton filter.

A generator depends on its settings and its seed only. Enrichment in heavy flavour: an event with a
hard charm or bottom quark after the shower is hadronised many times, and the heavy hadrons of each
version are decayed many times. The first version that passes the filter is kept. Its weight is the
share of versions that pass, so that weighted sums are those without repetition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np

from hep_simulation.particles import (
    Floats,
    Integers,
    StableParticles,
    event_offsets,
    offsets_from_counts,
    passes,
    pseudorapidity,
)
from hep_simulation.pythia_records import HEAVY_QUARKS, has_heavy_quark
from hep_simulation.pythia_setup import GenerationError, check_energy, check_weights, start_pythia
from hep_simulation.repeated_decays import Versions, resample_decays
from pipeline.configuration.simulate_section import HeavyFlavourSettings, LeptonFilterSettings

#: Pythia allows seeds from 1 to this number.
LAST_SEED: Final = 900_000_000
#: Pythia gives cross-sections in mb.
_MB_TO_PB: Final = 1e9
#: Events that Pythia generates in one call.
_BATCH: Final = 100
#: Charm and bottom quarks above this transverse momentum may give a jet its flavour [GeV].
_MIN_PARTON_PT: Final = 10.0
#: Number of events that Pythia may abort in a row.
_MAX_ABORTED: Final = 1000
_TOO_MANY_ABORTED: Final = (
    f"Pythia gives up {_MAX_ABORTED} events in a row. Correct the settings of the process; if it "
    "reads events from a file, these are too few."
)
#: Pythia's modes `Beams:frameType` in which hard processes come from a file.
_FILE_FRAME_TYPES: Final = (4, 5)


class HeavyQuarks(NamedTuple):
    """Charm and bottom quarks of a block of events, which give jets their flavour; all (n,)."""

    event: Integers
    """Index of the event of each quark in the block."""
    flavour: Integers
    """4 for a charm quark, 5 for a bottom quark."""
    eta: Floats
    phi: Floats

    def select_event(self, event: int) -> HeavyQuarks:
        """The quarks of one event, as event 0."""
        is_in_event = self.event == event
        flavour = self.flavour[is_in_event]
        eta = self.eta[is_in_event]
        phi = self.phi[is_in_event]
        first_event = np.zeros(len(flavour), np.int64)
        return HeavyQuarks(first_event, flavour, eta, phi)


class GeneratedBlock(NamedTuple):
    """Some events that pass the filter."""

    particles: StableParticles
    quarks: HeavyQuarks
    weights: Floats
    """(num_events,) weight of each event; a generated event that passes by itself counts 1."""

    @classmethod
    def concatenate(cls, blocks: Iterable[GeneratedBlock]) -> GeneratedBlock:
        """Several blocks as one, with their events one after the other; empty without any block."""
        # The empty block makes the joins below possible without any other.
        blocks = [_EMPTY, *blocks]
        num_events = [block.particles.num_events for block in blocks]
        # The index of the first event of each block in the result, by which quarks are shifted.
        first_events = offsets_from_counts(np.array(num_events))[:-1]
        shifted_quarks = []
        for block, first_event in zip(blocks, first_events, strict=True):
            event = block.quarks.event + first_event
            shifted_quarks.append(block.quarks._replace(event=event))
        quark_columns = [np.concatenate(arrays) for arrays in zip(*shifted_quarks, strict=True)]
        particles = StableParticles.concatenate([block.particles for block in blocks])
        weights = np.concatenate([block.weights for block in blocks])
        return cls(particles, HeavyQuarks(*quark_columns), weights)


class Tally(NamedTuple):
    """Sums over all events of a generator so far."""

    generated: int
    """Number of generated events, with those that the filter drops."""
    passed_weight: float
    """Sum of the weights of the events that pass."""
    passed_weight_squared: float
    """Sum of the squares of these weights."""
    cross_section_pb: float
    """Cross-section of the process before the filter [pb]."""
    cross_section_error_pb: float
    """Its standard deviation [pb]."""

    @property
    def filter_efficiency(self) -> float:
        """Share of the cross-section that passes the filter."""
        return self.passed_weight / self.generated if self.generated else 0.0


class Generator:
    """Pythia with the settings of a process, which generates events that pass the lepton filter.

    Args:
        lines: Settings of Pythia, one a line.
        energy_tev: Energy of the collisions in the centre of mass [TeV].
        seed: From 1 to `LAST_SEED`.
        lepton_filter: Thresholds of the filter; None for no filter.
        heavy_flavour: How events with heavy quarks are repeated; None for no enrichment.

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
        check_energy(lines, energy_tev)
        own_lines = [
            f"Beams:eCM = {energy_tev * 1000}",
            "Print:quiet = on",
            "Random:setSeed = on",
            f"Random:seed = {seed}",
            "Check:abortIfVeto = on",
        ]
        # Enriched events are hadronised by `resample_decays` instead.
        if heavy_flavour is not None:
            own_lines.append("HadronLevel:all = off")
        self._early_filter: Any = None
        if self._filter.min_pt > 0 and self._filter.thinning > 1:
            self._early_filter = _make_early_filter(self._filter, heavy_flavour, seed)
        self._pythia = start_pythia([*lines, *own_lines], self._early_filter)
        # A file of hard processes has beams of its own, so the energy is checked again.
        actual_energy = self._pythia.infoPython().eCM()
        check_energy([f"Beams:eCM = {actual_energy}"], energy_tev)

        self.num_generated = 0
        """Number of generated events so far, with vetoed ones, without those that Pythia aborts."""
        # Events that Pythia returned, sums over those that pass, and the order within batches.
        self._num_completed = 0
        self._num_aborted_in_a_row = 0
        self._weight = 0.0
        self._weight_squared = 0.0
        self._order_rng = np.random.default_rng([seed, 2])

    @property
    def reads_a_file(self) -> bool:
        """Whether the hard processes come from a file, each once and in its order."""
        return self._pythia.settings.mode("Beams:frameType") in _FILE_FRAME_TYPES

    def blocks(self) -> Iterator[GeneratedBlock]:
        """Blocks of events that pass the filter, without end; a block may be empty."""
        while True:
            enrichment = self._enrichment
            block = self._next_enriched(enrichment) if enrichment else self._next_batch()
            self._weight += float(block.weights.sum())
            self._weight_squared += float(np.square(block.weights).sum())
            yield block

    def tally(self) -> Tally:
        """Sums over the events so far; the cross-section becomes more precise with every event.

        With an early filter it generates one more event, which is in no block.
        """
        num_generated, num_completed = self.num_generated, self._num_completed
        if self._early_filter is not None:
            self._generate_without_veto()
            # This event counts in the cross-section only.
            num_generated += 1
            num_completed += 1
        num_completed = max(num_completed, 1)
        info = self._pythia.infoPython()
        # Pythia leaves vetoed events out of its cross-section and its error. The factor includes
        # them, and 1 / n with all events replaces the statistical part of the relative variance.
        cross_section = info.sigmaGen() * _MB_TO_PB * num_generated / num_completed
        relative_variance = 0.0
        if info.sigmaGen():
            relative_variance = (info.sigmaErr() / info.sigmaGen()) ** 2
        min_variance = 1 / max(num_generated, 1)
        relative_variance = relative_variance - 1 / num_completed + min_variance
        error = cross_section * max(relative_variance, min_variance) ** 0.5
        return Tally(self.num_generated, self._weight, self._weight_squared, cross_section, error)

    def _generate_without_veto(self) -> None:
        """Generate an event to its end, since Pythia updates the cross-section only then.

        The early filter is off meanwhile. Aborted events are tried again.

        Raises:
            GenerationError: Pythia aborts too many events in a row.
        """
        self._early_filter.is_on = False
        for _ in range(_MAX_ABORTED):
            if self._pythia.next():
                break
        else:
            raise GenerationError(_TOO_MANY_ABORTED)
        self._early_filter.is_on = True

    def _next_batch(self) -> GeneratedBlock:
        """Generate `_BATCH` events; the block has those that pass the filter.

        Thinned events, of which the early filter keeps one of many, are added as versions with
        drawn decays (`_resample_thinned`).
        """
        # Vetoed, thinned and aborted events are None.
        records = ak.drop_none(self._pythia.nextBatch(_BATCH, "none"), axis=0)
        events: list[GeneratedBlock] = []
        if len(records):
            check_weights(records.info.weights[:, 0].to_list())
            events = _passing_events(records, self._filter)
        thinned = [] if self._early_filter is None else self._early_filter.pop_thinned()
        self._count(_BATCH, len(records), len(thinned))
        if self._early_filter is not None:
            for partons in thinned:
                event = self._resample_thinned(partons)
                if len(event.weights):
                    events.append(event)
            # The last events of a file may be dropped, so the weighted ones must not come last.
            order = self._order_rng.permutation(len(events))
            events = [events[index] for index in order]
        return GeneratedBlock.concatenate(events)

    def _count(self, num_tried: int, num_completed: int, num_thinned: int = 0) -> None:
        """Count the events of a call of Pythia, with vetoed ones, without those that it aborts.

        Raises:
            GenerationError: Pythia aborted too many events in a row.
        """
        num_vetoed = 0 if self._early_filter is None else self._early_filter.pop_num_vetoed()
        num_generated = num_completed + num_thinned + num_vetoed
        self._num_completed += num_completed
        self.num_generated += num_generated
        self._num_aborted_in_a_row += num_tried
        if num_generated:
            self._num_aborted_in_a_row = 0
        if self._num_aborted_in_a_row >= _MAX_ABORTED:
            raise GenerationError(_TOO_MANY_ABORTED)

    def _resample_thinned(self, partons: Any) -> GeneratedBlock:
        """One event for a thinned one, which stands for `thinning` events.

        Its decays are drawn this number of times; its weight is the number of versions that pass.
        `partons` is its record before hadronisation.
        """
        versions = resample_decays(
            self._pythia,
            partons,
            hadronisations=1,
            decays=self._filter.thinning,
            lepton_filter=self._filter,
        )
        return _first_version(versions, partons, versions.num_passed)

    def _next_enriched(self, enrichment: HeavyFlavourSettings) -> GeneratedBlock:
        """Generate one event with enrichment: a block of one event, or none if no version passes.

        The weight is the share of versions that pass, times `thinning` for a thinned event.
        """
        pythia = self._pythia
        is_completed = pythia.next()
        self._count(1, int(is_completed))
        if not is_completed:
            return _EMPTY
        check_weights([pythia.infoPython().weight()])
        if not has_heavy_quark(pythia.event, enrichment.min_quark_pt):
            return _EMPTY
        # A copy of the record, since every version overwrites it.
        partons = type(pythia.event)(pythia.event)
        versions = resample_decays(
            pythia,
            partons,
            hadronisations=enrichment.hadronisations,
            decays=enrichment.decays,
            lepton_filter=self._filter,
        )
        num_versions = enrichment.hadronisations * enrichment.decays
        num_represented = 1
        if self._early_filter is not None and self._early_filter.is_thinned:
            num_represented = self._filter.thinning
        weight = num_represented * versions.num_passed / num_versions
        return _first_version(versions, partons, weight)


def _make_early_filter(
    settings: LeptonFilterSettings, heavy_flavour: HeavyFlavourSettings | None, seed: int
) -> Any:
    """The early filter of leptons, or with enrichment that of heavy quarks."""
    from hep_simulation import early_filter  # noqa: PLC0415 - needs the extra `simulate`

    rng = np.random.default_rng([seed, 1])
    if heavy_flavour is None:
        return early_filter.EarlyLeptonFilter(settings, rng)
    return early_filter.EarlyQuarkFilter(heavy_flavour, settings.thinning, rng)


def _first_version(versions: Versions, partons: Any, weight: float) -> GeneratedBlock:
    """A block of the first version that passes, with a weight for all; empty if none passes.

    The heavy quarks are those of `partons`, the record that all versions share.
    """
    if versions.first is None:
        return _EMPTY
    rows = [
        (parton.idAbs(), parton.eta(), parton.phi())
        for parton in partons
        if parton.idAbs() in HEAVY_QUARKS and parton.pT() > _MIN_PARTON_PT
    ]
    # The shape keeps three columns without any quark.
    table = np.array(rows).reshape(-1, 3)
    flavour, eta, phi = table.T
    event = np.zeros(len(rows), np.int64)
    quarks = HeavyQuarks(event, flavour.astype(np.int64), eta, phi)
    return GeneratedBlock(versions.first, quarks, np.array([weight]))


def _passing_events(records: ak.Array, lepton_filter: LeptonFilterSettings) -> list[GeneratedBlock]:
    """The events of a batch that pass the filter, one block each, all of weight 1.

    `records` are Pythia's event records as awkward arrays, one list of particles per event.
    """
    num_particles = ak.to_numpy(ak.num(records.prt, axis=1))
    event = np.repeat(np.arange(len(records)), num_particles)
    record_particles = ak.flatten(records.prt)
    stable = _stable_particles(record_particles, event, len(records))
    quarks = _heavy_quarks(record_particles, event)
    passing = np.flatnonzero(passes(stable, lepton_filter))
    blocks = []
    for index in passing.tolist():
        particles = stable.select_event(index)
        blocks.append(GeneratedBlock(particles, quarks.select_event(index), np.ones(1)))
    return blocks


def _stable_particles(
    record_particles: ak.Array, event: Integers, num_events: int
) -> StableParticles:
    """The stable particles among the particles of Pythia's records, (n,), with their events."""
    # Pythia gives particles that did not decay or branch a positive status.
    is_stable = ak.to_numpy(record_particles.status) > 0
    pid = ak.to_numpy(record_particles.id)
    columns = []
    for field in ("px", "py", "pz", "e"):
        momentum = ak.to_numpy(record_particles.p[field])
        columns.append(momentum[is_stable].astype(np.float64))
    # In these arrays the coordinates of vertices have the names of momenta.
    for field in ("px", "py", "pz"):
        coordinate = ak.to_numpy(ak.fill_none(record_particles.vProd[field], 0.0))
        columns.append(coordinate[is_stable])
    offsets = event_offsets(event[is_stable], num_events)
    return StableParticles(offsets, pid[is_stable].astype(np.int32), *columns)


def _heavy_quarks(record_particles: ak.Array, event: Integers) -> HeavyQuarks:
    """The hard charm and bottom quarks among the particles of Pythia's records, (n,)."""
    code = np.abs(ak.to_numpy(record_particles.id))
    px = ak.to_numpy(record_particles.p.px)
    py = ak.to_numpy(record_particles.p.py)
    pz = ak.to_numpy(record_particles.p.pz)
    is_hard = np.hypot(px, py) > _MIN_PARTON_PT
    is_quark = np.isin(code, HEAVY_QUARKS) & is_hard
    px = px[is_quark]
    py = py[is_quark]
    eta = pseudorapidity(px, py, pz[is_quark])
    return HeavyQuarks(event[is_quark], code[is_quark], eta, np.arctan2(py, px))


_NONE: Final = np.zeros(0)
_EMPTY: Final = GeneratedBlock(
    StableParticles(np.zeros(1, np.int64), np.zeros(0, np.int32), *([_NONE] * 7)),
    HeavyQuarks(np.zeros(0, np.int64), np.zeros(0, np.int64), _NONE, _NONE),
    _NONE,
)
