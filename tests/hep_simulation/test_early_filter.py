"""Early vetoes: fewer events are followed, and all weighted sums stay."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from hep_simulation.generator import (
    GeneratedBlock,
    Generator,
    Tally,
)
from hep_simulation.particles import passes
from hep_simulation.production import SimulatedFile, make_file
from hep_simulation.pythia_records import select_particles
from hep_simulation.pythia_setup import GenerationError, start_pythia
from hep_simulation.repeated_decays import resample_decays
from pipeline.configuration.simulate_section import (
    PRESETS,
    HeavyFlavourSettings,
    LeptonFilterSettings,
    PileUpSettings,
    ProcessSettings,
    SimulateSettings,
)

pytest.importorskip("pythia8mc", reason="the extra `simulate` is not installed")
pytestmark = pytest.mark.slow

#: W bosons that decay to taus, so that no event has an electron or muon of the hard process.
TO_TAUS = ["WeakSingleBoson:ffbar2W = on", "24:onMode = off", "24:onIfAny = 15"]
ONE_PROCESS = """<LesHouchesEvents version="1.0">
<init>
2212 2212 6500 6500 0 0 10042 10042 3 1
1.0 0.1 1.0 1
</init>
<event>
4 1 1.0 91.0 0.0078 0.118
2 -1 0 0 501 0 0 0 45.5 45.5 0 0 9
-2 -1 0 0 0 501 0 0 -45.5 45.5 0 0 9
13 1 1 2 0 0 45.5 0 0 45.5 0 0 9
-13 1 1 2 0 0 -45.5 0 0 45.5 0 0 9
</event>
</LesHouchesEvents>
"""


def lhe_lines(folder: Path, weight: str = "1.0") -> list[str]:
    """Settings that read one muon pair, of some weight, from a file."""
    path = folder / "one.lhe"
    path.write_text(ONE_PROCESS.replace("4 1 1.0 91.0", f"4 1 {weight} 91.0"))
    return ["Beams:frameType = 4", f"Beams:LHEF = {path}", "PartonLevel:MPI = off"]


def generate(
    lines: list[str],
    min_events: int,
    *,
    thinning: int,
    seed: int,
    heavy_flavour: HeavyFlavourSettings | None = None,
) -> tuple[GeneratedBlock, Tally]:
    """The events that pass of at least `min_events` generated ones, and the tally."""
    generator = Generator(
        lines,
        energy_tev=13.0,
        seed=seed,
        lepton_filter=LeptonFilterSettings(thinning=thinning),
        heavy_flavour=heavy_flavour,
    )
    blocks = []
    for block in generator.blocks():
        blocks.append(block)
        if generator.num_generated >= min_events:
            break
    return GeneratedBlock.concatenate(blocks), generator.tally()


def efficiency_error(block: GeneratedBlock, tally: Tally) -> float:
    """Statistical error of the filter efficiency."""
    sum_of_squares = np.square(block.weights).sum()
    return float(np.sqrt(sum_of_squares) / tally.generated)


def assert_same_cross_section(first: Tally, second: Tally) -> None:
    """Compare two cross-sections within four standard deviations."""
    error = np.hypot(first.cross_section_error_pb, second.cross_section_error_pb)
    assert first.cross_section_pb == pytest.approx(second.cross_section_pb, abs=4 * error)


def test_early_vetoes_keep_the_filter_efficiency_and_the_cross_section() -> None:
    lines = list(PRESETS["ttbar"])

    unthinned, unthinned_tally = generate(lines, 150, thinning=1, seed=11)
    thinned, thinned_tally = generate(lines, 400, thinning=5, seed=11)

    assert set(unthinned.weights) == {1.0}
    # Most pass by a lepton of the hard process, and stand for themselves.
    assert np.mean(thinned.weights == 1) > 0.9
    unthinned_error = efficiency_error(unthinned, unthinned_tally)
    thinned_error = efficiency_error(thinned, thinned_tally)
    error = np.hypot(unthinned_error, thinned_error)
    expected_efficiency = pytest.approx(thinned_tally.filter_efficiency, abs=4 * error)
    assert unthinned_tally.filter_efficiency == expected_efficiency
    assert_same_cross_section(thinned_tally, unthinned_tally)


def test_a_thinned_event_has_the_number_of_passing_versions_as_weight() -> None:
    block, tally = generate(TO_TAUS, 700, thinning=5, seed=4)

    particles = block.particles
    # About one in 25 passes.
    assert 0.01 < tally.filter_efficiency < 0.09
    assert len(block.weights) > 0
    assert set(block.weights) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert tally.passed_weight == block.weights.sum()
    assert not np.isin(np.abs(particles.pid), 15).any()
    # An electron or a muon above the limit of the filter.
    is_lepton = np.isin(np.abs(particles.pid), (11, 13))
    is_hard_lepton = is_lepton & (particles.pt > 23)
    assert set(particles.event[is_hard_lepton]) == set(range(particles.num_events))
    # W bosons to one kind of leptons in leading order: about 17 nb.
    assert 1.2e4 < tally.cross_section_pb < 2.4e4


def test_enriched_events_keep_the_cross_section_when_thinned() -> None:
    enrichment = HeavyFlavourSettings(hadronisations=2, decays=10)
    lines = list(PRESETS["qcd"])

    _, unthinned_tally = generate(lines, 150, thinning=1, seed=9, heavy_flavour=enrichment)
    _, thinned_tally = generate(lines, 150, thinning=5, seed=9, heavy_flavour=enrichment)

    assert thinned_tally.generated >= 150
    assert_same_cross_section(thinned_tally, unthinned_tally)


def test_taus_of_one_boson_decay_together() -> None:
    """Pythia draws the decay of a hard tau again when the soft tau of the same boson decays."""
    lines = [
        "WeakSingleBoson:ffbar2gmZ = on",
        "23:onMode = off",
        "23:onIfAny = 15",
        "PhaseSpace:mHatMin = 60",
        "PartonLevel:MPI = off",
        "HadronLevel:all = off",
        "Random:setSeed = on",
        "Random:seed = 5",
        "Print:quiet = on",
    ]
    pythia = start_pythia(lines, None)
    settings = LeptonFilterSettings(min_pt=15)
    num_resampled = num_hadronised = 0
    for _ in range(600):
        pythia.next()
        taus = [particle for particle in pythia.event if particle.idAbs() == 15]
        tau_pts = sorted(tau.pT() for tau in taus if tau.isFinal())
        if len(tau_pts) != 2:
            continue
        softer_pt, harder_pt = tau_pts
        if softer_pt >= 15 or harder_pt <= 30:
            continue
        partons = type(pythia.event)(pythia.event)
        versions = resample_decays(
            pythia, partons, hadronisations=1, decays=20, lepton_filter=settings
        )
        num_resampled += versions.num_passed
        for _ in range(20):
            pythia.event = partons
            pythia.forceHadronLevel()
            event = pythia.event
            indices = range(1, event.size())
            final = [index for index in indices if event[index].isFinal()]
            (is_passed,) = passes(select_particles(event, final), settings)
            num_hadronised += int(is_passed)

    assert num_hadronised > 50
    error = np.sqrt(num_resampled + num_hadronised)
    assert abs(num_resampled - num_hadronised) < 4 * error


def test_weighted_events_are_spread_over_a_block() -> None:
    """The last events of a file may be dropped: they must not be the weighted ones."""
    lepton_filter = LeptonFilterSettings(thinning=2)
    lines = list(PRESETS["ttbar"])
    generator = Generator(lines, energy_tev=13.0, seed=3, lepton_filter=lepton_filter)
    blocks_with_weights = (block for block in generator.blocks() if set(block.weights) > {1.0})

    is_weighted = next(blocks_with_weights).weights != 1

    first_weighted = np.flatnonzero(is_weighted)[0]
    # Where the first weighted event would be if all of them were the last events.
    first_if_at_end = np.count_nonzero(~is_weighted)
    assert first_weighted < first_if_at_end


def test_a_file_with_too_few_hard_processes_is_an_error(tmp_path: Path) -> None:
    blocks = Generator(lhe_lines(tmp_path), energy_tev=13.0, seed=1).blocks()

    assert len(next(blocks).weights) == 1
    with pytest.raises(GenerationError, match="if it reads events from a file, these are too few"):
        list(islice(blocks, 20))


BIASED = ["HardQCD:all = on", "PhaseSpace:pTHatMin = 100", "PhaseSpace:bias2Selection = on"]


@pytest.mark.parametrize("enrichment", [None, HeavyFlavourSettings()])
def test_weights_of_pythia_are_refused(enrichment: HeavyFlavourSettings | None) -> None:
    """Each event would count as one, so the spectrum would be that of the bias."""
    blocks = Generator(BIASED, energy_tev=13.0, seed=3, heavy_flavour=enrichment).blocks()

    with pytest.raises(
        GenerationError, match=r"weight .*; only events of weight 1.*bias2Selection"
    ):
        next(blocks)


def test_negative_weights_of_a_file_are_refused(tmp_path: Path) -> None:
    lines = lhe_lines(tmp_path, "-1.0")
    path = tmp_path / "one.lhe"
    path.write_text(path.read_text().replace("10042 10042 3 1", "10042 10042 -3 1"))

    with pytest.raises(GenerationError, match="the weight -1; only events of weight 1"):
        next(Generator(lines, energy_tev=13.0, seed=1).blocks())


@pytest.mark.parametrize(
    ("events_per_file", "message"),
    [(1, r"Raise simulate\.events_per_file to 2"), (2, "these are too few")],
)
def test_a_file_of_hard_processes_gives_one_file_of_events(
    tmp_path: Path, events_per_file: int, message: str
) -> None:
    """Showers of one hard process, with two identities, would cross the splits."""
    (tmp_path / "mine").mkdir()
    process = ProcessSettings(name="mine", events=2, pythia=lhe_lines(tmp_path))
    settings = SimulateSettings(
        processes=[process], events_per_file=events_per_file, pile_up=PileUpSettings(mean=0)
    )

    with pytest.raises(GenerationError, match=message):
        make_file(SimulatedFile("mine", 0, events_per_file), settings, tmp_path)


def test_collisions_of_another_energy_than_that_of_the_config_are_refused(tmp_path: Path) -> None:
    for line in ("Beams:eCM = 14000.", "beams:ecm 1.4e4 ! of a card"):
        with pytest.raises(GenerationError, match=r"14000 GeV, simulate\.energy_tev is 13"):
            Generator([*TO_TAUS, line], energy_tev=13.0, seed=1)
    with pytest.raises(GenerationError, match=r"13000 GeV, simulate\.energy_tev is 14"):
        Generator(lhe_lines(tmp_path), energy_tev=14.0, seed=1)
    Generator([*TO_TAUS, "Beams:eCM = 13000"], energy_tev=13.0, seed=1)


def test_without_a_threshold_all_events_are_kept() -> None:
    settings = LeptonFilterSettings(min_pt=0, thinning=5)
    generator = Generator(TO_TAUS, energy_tev=13.0, seed=2, lepton_filter=settings)

    block = next(generator.blocks())

    assert len(block.weights) == generator.num_generated
    assert set(block.weights) == {1.0}


def test_the_cross_section_does_not_depend_on_when_it_is_read() -> None:
    settings = LeptonFilterSettings(thinning=1000)
    generator = Generator(TO_TAUS, energy_tev=13.0, seed=6, lepton_filter=settings)
    next(generator.blocks())

    tally = generator.tally()

    assert tally.generated == generator.num_generated
    assert 1.2e4 < tally.cross_section_pb < 2.4e4
    assert 0 < tally.cross_section_error_pb < 0.5 * tally.cross_section_pb
