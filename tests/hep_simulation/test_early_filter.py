"""Events are given up early: fewer are followed, and all weighted sums stay."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from hep_simulation.generator import (
    GeneratedBlock,
    GenerationError,
    Generator,
    Tally,
    _pythia,
    joined,
)
from hep_simulation.particles import passes
from hep_simulation.production import SimulatedFile, make_file
from hep_simulation.repeated_decays import _particles, resample_decays
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


def from_a_file(folder: Path, weight: str = "1.0") -> list[str]:
    """Settings that read one muon pair, of some weight, from a file."""
    (folder / "one.lhe").write_text(ONE_PROCESS.replace("4 1 1.0 91.0", f"4 1 {weight} 91.0"))
    return ["Beams:frameType = 4", f"Beams:LHEF = {folder / 'one.lhe'}", "PartonLevel:MPI = off"]


def generated(
    lines: list[str],
    index: int,
    *,
    thinning: int,
    seed: int,
    heavy_flavour: HeavyFlavourSettings | None = None,
) -> tuple[GeneratedBlock, Tally]:
    """What is made of at least this number of generated events."""
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
        if generator.num_generated >= index:
            break
    return joined(blocks), generator.tally()


def test_giving_events_up_early_leaves_the_share_that_passes_and_the_cross_section() -> None:
    lines = list(PRESETS["ttbar"])
    (all_of_them, state_before), (few, state_after) = (
        generated(lines, index, thinning=thinning, seed=11)
        for thinning, index in ((1, 150), (5, 400))
    )
    assert set(all_of_them.weights) == {1.0}
    # Most pass by a lepton of the hard process, and stand for themselves.
    assert np.mean(few.weights == 1) > 0.9
    shares, errors = zip(
        *((t.filter_efficiency, np.sqrt(np.square(b.weights).sum()) / t.generated) for b, t in
          ((all_of_them, state_before), (few, state_after))), strict=True
    )  # fmt: skip
    assert abs(shares[0] - shares[1]) < 4 * np.hypot(*errors)
    assert state_after.cross_section_pb == pytest.approx(
        state_before.cross_section_pb,
        abs=4 * np.hypot(state_before.cross_section_error_pb, state_after.cross_section_error_pb),
    )


def test_decays_of_a_followed_event_are_drawn_for_those_given_up() -> None:
    block, tally = generated(TO_TAUS, 700, thinning=5, seed=4)
    # About one in 25 passes; each event kept stands for the versions of its decays that pass.
    assert 0.01 < tally.filter_efficiency < 0.09
    assert len(block.weights) > 0
    assert set(block.weights) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert tally.passed_weight == block.weights.sum()
    assert not np.isin(np.abs(block.particles.pid), 15).any()
    lepton = np.isin(np.abs(block.particles.pid), (11, 13)) & (block.particles.pt > 23)
    assert set(block.particles.event[lepton]) == set(range(block.particles.num_events))
    # W bosons to one kind of leptons in leading order: about 17 nb.
    assert 1.2e4 < tally.cross_section_pb < 2.4e4


def test_enriched_events_without_a_hard_quark_stand_for_those_given_up() -> None:
    enrichment = HeavyFlavourSettings(hadronisations=2, decays=10)
    lines = [*PRESETS["qcd"], "PhaseSpace:pTHatMin = 60"]
    (_, state_before), (_, state_after) = (
        generated(lines, 150, thinning=thinning, seed=9, heavy_flavour=enrichment)
        for thinning in (1, 5)
    )
    assert state_after.generated >= 150
    assert state_after.cross_section_pb == pytest.approx(
        state_before.cross_section_pb,
        abs=4 * np.hypot(state_before.cross_section_error_pb, state_after.cross_section_error_pb),
    )


def test_taus_of_one_boson_decay_together() -> None:
    """Pythia drew the decay of a hard tau anew as soon as the soft tau of the same boson decayed."""
    lines = [
        "WeakSingleBoson:ffbar2gmZ = on",
        "23:onMode = off",
        "23:onIfAny = 15",
        "PhaseSpace:mHatMin = 60",
    ]
    own_value = [
        "PartonLevel:MPI = off",
        "HadronLevel:all = off",
        "Random:setSeed = on",
        "Random:seed = 5",
        "Print:quiet = on",
    ]
    pythia = _pythia([*lines, *own_value], None)
    settings = LeptonFilterSettings(min_pt=15)
    often = plain = 0
    for _ in range(600):
        pythia.next()
        taus = sorted(
            particle.pT()
            for particle in pythia.event
            if particle.idAbs() == 15 and particle.isFinal()
        )
        if not (len(taus) == 2 and taus[0] < 15 and taus[1] > 30):
            continue
        partons = type(pythia.event)(pythia.event)
        actual = resample_decays(
            pythia, partons, hadronisations=1, decays=20, lepton_filter=settings
        )
        often += actual.passed
        for _ in range(20):
            pythia.event = partons
            pythia.forceHadronLevel()
            final = [
                position
                for position in range(1, pythia.event.size())
                if pythia.event[position].isFinal()
            ]
            plain += int(passes(_particles(pythia.event, final), settings)[0])
    assert plain > 50
    assert abs(often - plain) < 4 * np.sqrt(often + plain)


def test_weighted_events_do_not_come_last() -> None:
    """The last events of a file may be left out, which took mostly weighted ones."""
    generator = Generator(
        list(PRESETS["ttbar"]),
        energy_tev=13.0,
        seed=3,
        lepton_filter=LeptonFilterSettings(thinning=2),
    )
    (places,) = np.nonzero(
        next(block for block in generator.blocks() if set(block.weights) > {1.0}).weights != 1
    )
    block = next(block for block in generator.blocks() if set(block.weights) > {1.0})
    assert places.min() < len(block.weights) - len(places)


def test_a_file_with_too_few_hard_processes_was_waited_for_without_end(tmp_path: Path) -> None:
    blocks = Generator(from_a_file(tmp_path), energy_tev=13.0, seed=1).blocks()
    assert len(next(blocks).weights) == 1
    with pytest.raises(GenerationError, match="if it reads events from a file, these are too few"):
        list(islice(blocks, 20))


BIASED = ["HardQCD:all = on", "PhaseSpace:pTHatMin = 100", "PhaseSpace:bias2Selection = on"]


@pytest.mark.parametrize("enrichment", [None, HeavyFlavourSettings()])
def test_weights_of_pythia_were_lost(enrichment: HeavyFlavourSettings | None) -> None:
    """Of 300 events with a sum of weights of 43, each counted as one: the spectrum was that of the bias."""
    blocks = Generator(BIASED, energy_tev=13.0, seed=3, heavy_flavour=enrichment).blocks()
    with pytest.raises(
        GenerationError, match=r"weight .*; only events of weight 1.*bias2Selection"
    ):
        next(blocks)


def test_negative_weights_of_a_file_counted_as_one(tmp_path: Path) -> None:
    lines = from_a_file(tmp_path, "-1.0")
    path = tmp_path / "one.lhe"
    path.write_text(path.read_text().replace("10042 10042 3 1", "10042 10042 -3 1"))
    with pytest.raises(GenerationError, match="the weight -1; only events of weight 1"):
        next(Generator(lines, energy_tev=13.0, seed=1).blocks())


def test_each_file_of_events_began_with_the_same_hard_process(tmp_path: Path) -> None:
    """Two showers of one hard process have two identities, so they crossed the splits."""
    (tmp_path / "mine").mkdir()
    process = ProcessSettings(name="mine", events=2, pythia=from_a_file(tmp_path))
    for size, index, fails in ((1, 0, True), (1, 1, True), (2, 0, False)):
        settings = SimulateSettings(
            processes=[process], events_per_file=size, pile_up=PileUpSettings(mean=0)
        )
        expected = "these are too few" if not fails else r"Raise simulate\.events_per_file to 2"
        with pytest.raises(GenerationError, match=expected):
            make_file(SimulatedFile("mine", index, size), settings, tmp_path)


def test_collisions_of_another_energy_than_that_of_the_config_are_refused(tmp_path: Path) -> None:
    """That of the process was ignored; a file of hard processes ignored that of the config, unlike its pile-up."""
    for line in ("Beams:eCM = 14000.", "beams:ecm 1.4e4 ! of a card"):
        with pytest.raises(GenerationError, match=r"14000 GeV, simulate\.energy_tev is 13"):
            Generator([*TO_TAUS, line], energy_tev=13.0, seed=1)
    with pytest.raises(GenerationError, match=r"13000 GeV, simulate\.energy_tev is 14"):
        Generator(from_a_file(tmp_path), energy_tev=14.0, seed=1)
    Generator([*TO_TAUS, "Beams:eCM = 13000"], energy_tev=13.0, seed=1)


def test_without_a_threshold_all_events_are_kept() -> None:
    generator = Generator(
        TO_TAUS, energy_tev=13.0, seed=2, lepton_filter=LeptonFilterSettings(min_pt=0, thinning=5)
    )
    block = next(generator.blocks())
    assert len(block.weights) == generator.num_generated
    assert set(block.weights) == {1.0}


def test_the_cross_section_does_not_depend_on_when_it_is_asked_for() -> None:
    """It was that of the last event that was not given up, times all events given up since."""
    generator = Generator(
        TO_TAUS, energy_tev=13.0, seed=6, lepton_filter=LeptonFilterSettings(thinning=1000)
    )
    next(generator.blocks())
    tally = generator.tally()
    assert tally.generated == generator.num_generated
    assert 1.2e4 < tally.cross_section_pb < 2.4e4
    assert 0 < tally.cross_section_error_pb < 0.5 * tally.cross_section_pb
