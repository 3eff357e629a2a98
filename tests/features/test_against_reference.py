"""The fast kernels against the slow reference on random events, and both against numbers found by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from made_events import Row, events_table, jet, lepton, made_event, tower, track
from reference_features import ReferenceSettings, reference_event

from features.columns import HLF_NAMES, NUM_HLF, NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES
from features.kernels import FeatureBlock, build_features
from features.settings import FeatureSettings

RTOL = 1e-6
ATOL = 1e-6

RANDOM_CHOICES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "decreasing": {"ordering": "decreasing"},
    "file order": {"ordering": "file"},
    "one b-tag bit": {"btag_mask": 2},
    "jets not cleaned": {"jet_lepton_cleaning_dr": 0.0},
    "other numbers": {
        "isolation_cone": 0.5,
        "max_lepton_isolation": 0.8,
        "min_lepton_pt": 30.0,
        "own_track_dr": 0.02,
        "min_jet_pt": 40.0,
        "max_jet_abs_eta": 1.5,
    },
}


# Random events


class Directions:
    """Random directions of one event, crowded around a few axes, one of them often on the phi = +-pi seam."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        count = int(rng.integers(1, 5))
        self._etas = rng.uniform(-2.5, 2.5, count)
        self._phis = rng.uniform(-math.pi, math.pi, count)
        if rng.random() < 0.7:
            self._phis[0] = math.pi + rng.normal(0.0, 0.02)

    def draw(self, spread: float) -> tuple[float, float]:
        """Eta and phi at about `spread` from one of the axes; phi within [-pi, pi]."""
        axis = int(self._rng.integers(self._etas.size))
        eta = self._etas[axis] + self._rng.normal(0.0, spread)
        return float(eta), wrapped(float(self._phis[axis] + self._rng.normal(0.0, spread)))


def wrapped(phi: float) -> float:
    return math.remainder(phi, 2.0 * math.pi)


def random_candidates(
    rng: np.random.Generator, directions: Directions, count: int, spread: float, threshold: float
) -> list[Row]:
    """Towers of which many share their ET exactly, so that ties occur, at the caps too."""
    towers = []
    for _ in range(count):
        pt = threshold + float(rng.exponential(1.5))
        if rng.random() < 0.5:
            pt = threshold + 0.25 * math.ceil((pt - threshold) / 0.25)
        towers.append(tower(pt, *directions.draw(spread)))
    return towers


def random_track(rng: np.random.Generator, pt: float, eta: float, phi: float) -> Row:
    pid = int(rng.choice([211, -211, 11, -11, 13, -13]))
    x, y, z = (float(value) for value in rng.normal(0.0, 5.0, 3))
    return track(pt, eta, phi, charge=int(rng.choice([-1, 1])), pid=pid, vertex=(x, y, z))


def random_event(rng: np.random.Generator, *, tracks: int, photons: int, neutral_hadrons: int, spread: float) -> Row:
    """An event with a number of candidates; leptons often have own tracks, and some directions are shared."""
    directions = Directions(rng)
    track_rows = [
        random_track(rng, row["et"], row["eta"], row["phi"])
        for row in random_candidates(rng, directions, tracks, spread, 0.5)
    ]
    photon_rows = random_candidates(rng, directions, photons, spread, 1.0)
    neutral_rows = random_candidates(rng, directions, neutral_hadrons, spread, 1.0)
    for row in track_rows[: min(3, photons)]:
        photon_rows[int(rng.integers(photons))] |= {"eta": row["eta"], "phi": row["phi"]}
    for row in photon_rows[: min(3, neutral_hadrons)]:
        neutral_rows[int(rng.integers(neutral_hadrons))] |= {"eta": row["eta"], "phi": row["phi"]}

    leptons: dict[str, list[Row]] = {"electrons": [], "muons": []}
    for name, most in (("electrons", 3), ("muons", 3)):
        for _ in range(int(rng.integers(most))):
            pt = float(rng.uniform(15.0, 150.0))
            if rng.random() < 0.2:
                pt = float(rng.choice([23.0, 30.0, 45.0]))
            eta, phi = directions.draw(0.6)
            leptons[name].append(lepton(pt, eta, phi, charge=int(rng.choice([-1, 1]))))
            if rng.random() < 0.7 and tracks > 0:
                own = random_track(rng, pt, eta + float(rng.normal(0.0, 2e-5)), wrapped(phi))
                track_rows[int(rng.integers(tracks))] = own

    jets = []
    for _ in range(int(rng.integers(7))):
        pt = 30.0 if rng.random() < 0.1 else float(rng.uniform(20.0, 120.0))
        jets.append(jet(pt, *directions.draw(0.5), btag=int(rng.choice([0, 0, 1, 2, 3, 4, 0x80000000]))))
    return made_event(
        tracks=track_rows,
        photons=photon_rows,
        neutral_hadrons=neutral_rows,
        jets=jets,
        met=float(rng.exponential(50.0)),
        met_phi=float(rng.uniform(-math.pi, math.pi)),
        **leptons,
    )


#: Those that concern jets alone are tried without the large events, on which the reference takes most of its time.
WITHOUT_LARGE = ("one b-tag bit", "jets not cleaned")


def random_events(*, with_large: bool) -> list[Row]:
    """Many small events, some without any candidate of some kinds, and a few beyond the cap of each kind."""
    rng = np.random.default_rng(20240607)
    events = []
    for _ in range(400):
        tracks, photons, neutral_hadrons = (
            int(count) * int(rng.random() < 0.85) for count in rng.integers(1, [40, 20, 20])
        )
        events.append(
            random_event(
                rng,
                tracks=tracks,
                photons=photons,
                neutral_hadrons=neutral_hadrons,
                spread=float(rng.choice([0.05, 0.3, 1.0])),
            )
        )
    large = [(515, 8, 8), (8, 172, 8), (8, 8, 230), (515, 172, 230)] if with_large else []
    for tracks, photons, neutral_hadrons in large:
        event = random_event(rng, tracks=tracks, photons=photons, neutral_hadrons=neutral_hadrons, spread=1.2)
        event["muons"] = [*event["muons"], lepton(1e4, *Directions(rng).draw(0.2))]
        events.append(event)
    order = rng.permutation(len(events))
    return [events[index] for index in order]


@pytest.fixture(scope="module")
def random_table() -> pa.Table:
    return events_table(random_events(with_large=True))


def assert_as_reference(table: pa.Table, choices: dict[str, Any]) -> FeatureBlock:
    """Compares every number of every event of a table with the reference."""
    block = build_features(table, FeatureSettings(**choices))
    settings = ReferenceSettings(**choices)
    expected = [reference_event(event, settings) for event in table.to_pylist()]

    assert block.selected.tolist() == [index for index, found in enumerate(expected) if found is not None]
    found_all = [found for found in expected if found is not None]
    lengths = [len(rows) for _, rows in found_all]
    assert block.particle_offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    assert block.hlf.shape == (len(found_all), NUM_HLF)
    assert block.particles.shape == (sum(lengths), NUM_PARTICLE_FEATURES)

    assert_close(block.hlf, [high_level for high_level, _ in found_all], HLF_NAMES, "events")
    assert_close(block.particles, [row for _, rows in found_all for row in rows], PARTICLE_FEATURE_NAMES, "particles")
    return block


def assert_close(actual: np.ndarray, expected: list[dict[str, float]], names: Sequence[str], what: str) -> None:
    """Rows of numbers, columns of these names, against the features that the reference knows."""
    for name in expected[0] if expected else ():
        found, wanted = actual[:, names.index(name)], [row[name] for row in expected]
        np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=ATOL, err_msg=f"{name} of {what}")


@pytest.mark.parametrize("name", RANDOM_CHOICES)
def test_random_events_are_as_the_reference_says(random_table: pa.Table, name: str) -> None:
    table = events_table(random_events(with_large=False)) if name in WITHOUT_LARGE else random_table
    block = assert_as_reference(table, RANDOM_CHOICES[name])
    # The sample is worth something only if leptons pass and fail, of both kinds, and the caps are reached.
    assert 0.3 < block.selected.size / table.num_rows < 0.9
    assert 0.2 < block.hlf[:, HLF_NAMES.index("lepton_is_electron")].mean() < 0.8
    if name not in WITHOUT_LARGE:
        assert np.diff(block.particle_offsets).max() == 1 + 450 + 150 + 200


def test_the_block_has_the_types_it_promises(random_table: pa.Table) -> None:
    block = build_features(random_table.slice(0, 20), FeatureSettings())
    assert block.selected.dtype == np.int64
    assert block.hlf.dtype == np.float32
    assert block.particle_offsets.dtype == np.int64
    assert block.particles.dtype == np.float32


def test_a_slice_of_a_table_is_read_from_its_own_start(random_table: pa.Table) -> None:
    assert_as_reference(random_table.slice(7, 30), {})


def test_a_table_of_many_chunks_is_read_to_its_end(random_table: pa.Table) -> None:
    chunks = [random_table.slice(0, 11), random_table.slice(0, 0), random_table.slice(50, 20)]
    assert_as_reference(pa.concat_tables(chunks), {})


@pytest.mark.parametrize("events", [[], [made_event()]], ids=["no event", "no lepton"])
def test_nothing_selected_gives_an_empty_block(events: list[Row]) -> None:
    block = assert_as_reference(events_table(events), {})
    assert block.particle_offsets.tolist() == [0]


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = FeatureSettings()
    for name, value in dataclasses.asdict(ReferenceSettings()).items():
        assert getattr(settings, "jet_cleaning" if name == "jet_lepton_cleaning_dr" else name) == value, name
    assert FeatureSettings(convention="sparkdltrigger", ordering="file").jet_cleaning == 0.0


# Numbers worked out by hand: the kernels and the reference must both give them.


class Extracted(NamedTuple):
    """Features with names: one entry per selected event."""

    selected: list[int]
    hlf: list[dict[str, float]]
    particles: list[list[dict[str, float]]]


Extract = Callable[..., Extracted]


def named(rows: np.ndarray, names: Sequence[str]) -> list[dict[str, float]]:
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def extract_with_kernels(*events: Row, **choices: Any) -> Extracted:
    block = build_features(events_table(list(events)), FeatureSettings(**choices))
    bounds = zip(block.particle_offsets[:-1], block.particle_offsets[1:], strict=True)
    return Extracted(
        block.selected.tolist(),
        named(block.hlf, HLF_NAMES),
        [named(block.particles[start:stop], PARTICLE_FEATURE_NAMES) for start, stop in bounds],
    )


def extract_with_reference(*events: Row, **choices: Any) -> Extracted:
    extracted = Extracted([], [], [])
    for index, event in enumerate(events_table(list(events)).to_pylist()):
        found = reference_event(event, ReferenceSettings(**choices))
        if found is not None:
            extracted.selected.append(index)
            extracted.hlf.append(found[0])
            extracted.particles.append(found[1])
    return extracted


@pytest.fixture(params=[extract_with_kernels, extract_with_reference], ids=["kernels", "reference"])
def extract(request: pytest.FixtureRequest) -> Extract:
    function: Extract = request.param
    return function


#: Isolated, far from the candidates of most events below: pT 40 at eta = phi = 0.
ELECTRON = lepton(40.0, 0.0, 0.0)


def column(rows: list[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows]


def near(*values: float) -> Any:
    return pytest.approx(list(values), rel=1e-6, abs=1e-6)


def near_pair(first: float, second: float) -> Any:
    return pytest.approx((first, second), rel=1e-6, abs=1e-6)


# Isolation


def test_tracks_on_both_sides_of_the_phi_seam_are_neighbours(extract: Extract) -> None:
    tracks = [track(4.0, 1.0, 3.1), track(2.0, 1.0, -3.1)]
    (rows,) = extract(made_event(electrons=[ELECTRON], tracks=tracks), ordering="file").particles
    assert column(rows, "iso_charged") == near(0.0, 2.0 / 4.0, 4.0 / 2.0)


def test_lepton_sees_its_neighbours_across_the_phi_seam(extract: Extract) -> None:
    event = made_event(muons=[lepton(40.0, 0.0, 3.1)], photons=[tower(4.0, 0.0, -3.1)])
    (hlf,) = extract(event).hlf
    assert hlf["lepton_iso_photon"] == pytest.approx(0.1)


def test_each_kind_is_summed_by_itself_and_a_candidate_leaves_itself_out(extract: Extract) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[track(2.0, 1.0, 1.0), track(4.0, 1.1, 1.0)],
        photons=[tower(5.0, 1.0, 1.1), tower(10.0, 0.9, 1.0)],
        neutral_hadrons=[tower(8.0, 1.0, 0.9)],
    )
    (rows,) = extract(event, ordering="file").particles
    assert column(rows, "iso_charged") == near(0.0, 4 / 2, 2 / 4, 6 / 5, 6 / 10, 6 / 8)
    assert column(rows, "iso_photon") == near(0.0, 15 / 2, 15 / 4, 10 / 5, 5 / 10, 15 / 8)
    assert column(rows, "iso_neutral") == near(0.0, 8 / 2, 8 / 4, 8 / 5, 8 / 10, 0.0)


def test_candidates_of_the_very_same_direction_count_in_each_other(extract: Extract) -> None:
    tracks = [track(2.0, 1.0, 1.0), track(2.0, 1.0, 1.0)]
    (rows,) = extract(made_event(electrons=[ELECTRON], tracks=tracks)).particles
    assert column(rows, "iso_charged") == near(0.0, 1.0, 1.0)


def test_isolation_cone_is_open(extract: Extract) -> None:
    photons = [tower(2.0, 1.0, 1.0), tower(2.0, 1.25, 1.0), tower(2.0, 1.0, 1.1875)]
    event = made_event(electrons=[ELECTRON], photons=photons)
    (rows,) = extract(event, ordering="file", isolation_cone=0.25).particles
    assert column(rows, "iso_photon") == near(0.0, 1.0, 0.0, 1.0)


def test_a_candidate_beyond_the_cap_is_no_row_but_counts_in_isolation(extract: Extract) -> None:
    tracks = [track(1.0, 2.0, 1.0)] + [track(5.0, -2.0, 2.0) for _ in range(450)]
    event = made_event(electrons=[ELECTRON], tracks=tracks, photons=[tower(4.0, 2.0, 1.1)])
    (rows,) = extract(event, ordering="file").particles
    assert len(rows) == 1 + 450 + 1
    assert set(column(rows[1:451], "pt")) == {5.0}
    assert rows[-1]["iso_charged"] == pytest.approx(1.0 / 4.0)


# The lepton and its own track


def test_own_track_is_no_row_and_counts_only_for_others(extract: Extract) -> None:
    event = made_event(
        electrons=[lepton(40.0, 0.5, 1.0)],
        tracks=[track(39.0, 0.5, 1.00005)],
        photons=[tower(3.0, 0.5, 1.2)],
    )
    (hlf,), (rows,) = extract(event)[1:]
    assert (hlf["lepton_iso_charged"], hlf["lepton_iso_photon"]) == near_pair(0.0, 3.0 / 40.0)
    assert column(rows, "is_electron") == [1.0, 0.0]
    assert column(rows, "is_photon") == [0.0, 1.0]
    assert column(rows, "iso_charged") == near(0.0, 39.0 / 3.0)


def test_a_track_just_beyond_the_own_track_distance_is_a_row_and_counts(extract: Extract) -> None:
    event = made_event(electrons=[lepton(40.0, 0.5, 1.0)], tracks=[track(10.0, 0.5, 1.00015)])
    (hlf,), (rows,) = extract(event)[1:]
    assert hlf["lepton_iso_charged"] == pytest.approx(0.25)
    assert len(rows) == 2


def test_own_track_is_found_across_the_phi_seam(extract: Extract) -> None:
    event = made_event(muons=[lepton(40.0, 0.5, 3.14159)], tracks=[track(40.0, 0.5, -3.14159)])
    assert [len(rows) for rows in extract(event).particles] == [1]


def test_every_track_within_the_own_track_distance_is_own(extract: Extract) -> None:
    event = made_event(electrons=[ELECTRON], tracks=[track(38.0, 0.0, 0.0), track(30.0, 5e-5, 0.0)])
    (hlf,), (rows,) = extract(event)[1:]
    assert hlf["lepton_iso_charged"] == 0.0
    assert len(rows) == 1


def test_own_track_of_a_lepton_not_selected_is_a_row(extract: Extract) -> None:
    event = made_event(electrons=[ELECTRON], muons=[lepton(30.0, 1.0, 1.0)], tracks=[track(30.0, 1.0, 1.0)])
    (rows,) = extract(event).particles
    assert column(rows, "pt") == [40.0, 30.0]
    assert column(rows, "is_charged_hadron") == [0.0, 1.0]
    assert column(rows, "is_muon") == [0.0, 0.0]


def test_own_track_takes_no_place_among_the_450(extract: Extract) -> None:
    others = [track(2.0, -2.0, 2.0) for _ in range(450)]
    event = made_event(electrons=[ELECTRON], tracks=[track(40.0, 0.0, 0.0), *others])
    assert [len(rows) for rows in extract(event).particles] == [1 + 450]


# Selection of the lepton


def test_highest_pt_lepton_wins_over_larger_eta(extract: Extract) -> None:
    event = made_event(electrons=[lepton(30.0, 2.0, 0.0)], muons=[lepton(50.0, 0.125, 1.0, charge=1)])
    (hlf,), (rows,) = extract(event)[1:]
    assert hlf["lepton_pt"] == 50.0
    assert hlf["lepton_eta"] == 0.125
    assert hlf["lepton_phi"] == 1.0
    assert hlf["lepton_charge"] == 1.0
    assert hlf["lepton_is_electron"] == 0.0
    assert (rows[0]["is_electron"], rows[0]["is_muon"], rows[0]["charge"]) == (0.0, 1.0, 1.0)


def test_highest_pt_electron_wins_wherever_it_stands_in_the_file(extract: Extract) -> None:
    electrons = [lepton(30.0, 0.0, 0.0), lepton(60.0, 1.0, 1.0), lepton(45.0, 2.0, 2.0)]
    (hlf,) = extract(made_event(electrons=electrons)).hlf
    assert hlf["lepton_pt"] == 60.0


def test_harder_muon_that_is_not_isolated_loses_to_an_isolated_electron(extract: Extract) -> None:
    event = made_event(electrons=[ELECTRON], muons=[lepton(60.0, 1.0, 1.0)], photons=[tower(30.0, 1.0, 1.1)])
    (hlf,) = extract(event).hlf
    assert hlf["lepton_pt"] == 40.0
    assert hlf["lepton_is_electron"] == 1.0


def test_isolation_of_the_three_kinds_is_summed_for_the_selection(extract: Extract) -> None:
    around = {
        "tracks": [track(8.0, 0.1, 0.0)],
        "photons": [tower(8.0, 0.0, 0.1)],
        "neutral_hadrons": [tower(8.0, 0.0, -0.1)],
    }
    assert extract(made_event(electrons=[ELECTRON], **around)).selected == []
    around["neutral_hadrons"] = []
    (hlf,) = extract(made_event(electrons=[ELECTRON], **around)).hlf
    isolations = [hlf["lepton_iso_charged"], hlf["lepton_iso_photon"], hlf["lepton_iso_neutral"]]
    assert isolations == near(0.2, 0.2, 0.0)


def test_electron_wins_a_tie_in_pt(extract: Extract) -> None:
    event = made_event(electrons=[ELECTRON], muons=[lepton(40.0, 1.0, 1.0)])
    assert extract(event).hlf[0]["lepton_is_electron"] == 1.0


def test_first_in_the_file_wins_a_tie_in_pt(extract: Extract) -> None:
    event = made_event(muons=[lepton(40.0, -1.0, 1.0), lepton(40.0, 1.0, 1.0), lepton(40.0, -2.0, 1.0)])
    assert extract(event).hlf[0]["lepton_eta"] == -1.0


def test_lepton_thresholds_are_strict(extract: Extract) -> None:
    events = [
        made_event(electrons=[lepton(23.0, 0.0, 0.0)]),
        made_event(electrons=[lepton(23.000002, 0.0, 0.0)]),
        made_event(electrons=[ELECTRON], photons=[tower(10.0, 0.1, 0.0)]),
        made_event(electrons=[ELECTRON], photons=[tower(9.999, 0.1, 0.0)]),
    ]
    assert extract(*events, max_lepton_isolation=0.25).selected == [1, 3]


def test_event_without_a_passing_lepton_is_absent(extract: Extract) -> None:
    events = [
        made_event(),
        made_event(electrons=[ELECTRON]),
        made_event(muons=[lepton(10.0, 0.0, 0.0)]),
        made_event(muons=[lepton(25.0, 0.0, 0.0)]),
    ]
    extracted = extract(*events)
    assert extracted.selected == [1, 3]
    assert column(extracted.hlf, "lepton_pt") == [40.0, 25.0]
    assert [len(rows) for rows in extracted.particles] == [1, 1]


# High-level features


@pytest.mark.parametrize(
    ("met", "phi", "met_phi", "expected"),
    [
        (30.0, 0.0, 2.0, 58.298820),  # sqrt(2 * 40 * 30 * (1 + 0.4161468))
        (30.0, 1.5, -0.5, 58.298820),
        (40.0, 0.0, math.pi, 80.0),  # back to back: sqrt(2 * 40 * 40 * 2)
        (30.0, 0.5, 0.5, 0.0),
        (30.0, 3.0, -3.0, 9.777081),  # across the seam: sqrt(2400 * (1 - 0.9601703))
    ],
)
def test_mt_has_the_square_root(extract: Extract, met: float, phi: float, met_phi: float, expected: float) -> None:
    event = made_event(electrons=[lepton(40.0, 0.0, phi)], met=met, met_phi=met_phi)
    (hlf,) = extract(event).hlf
    assert hlf["mt"] == pytest.approx(expected, rel=1e-6)
    assert (hlf["met"], hlf["met_phi"]) == near_pair(met, met_phi)


def test_ht_and_jet_counts_leave_out_jets_at_the_thresholds(extract: Extract) -> None:
    jets = [
        jet(30.0, 0.0, 1.0, btag=1),
        jet(30.5, 0.0, 1.0, btag=1),
        jet(50.0, 2.5, 1.0),
        jet(60.0, 2.6000001, 1.0, btag=1),  # the first float32 above 2.6; 2.6 itself is no float32
        jet(70.0, -2.6000001, 1.0),
        jet(80.0, -2.59, 1.0),
    ]
    (hlf,) = extract(made_event(electrons=[ELECTRON], jets=jets)).hlf
    assert hlf["ht"] == 30.5 + 50.0 + 80.0
    assert (hlf["num_jets"], hlf["num_bjets"]) == (3.0, 1.0)


def test_jet_at_exactly_the_largest_eta_does_not_count(extract: Extract) -> None:
    jets = [jet(40.0, 2.5, 1.0), jet(50.0, -2.5, 1.0), jet(60.0, 2.25, 1.0)]
    (hlf,) = extract(made_event(electrons=[ELECTRON], jets=jets), max_jet_abs_eta=2.5).hlf
    assert (hlf["ht"], hlf["num_jets"]) == (60.0, 1.0)


@pytest.mark.parametrize(("mask", "expected"), [(0xFFFFFFFF, 4.0), (1, 2.0), (2, 2.0), (4, 0.0), (0x80000000, 1.0)])
def test_b_jets_are_counted_by_the_mask(extract: Extract, mask: int, expected: float) -> None:
    jets = [jet(40.0, 0.0, 1.0, btag=btag) for btag in (0, 1, 2, 3, 0x80000000)]
    (hlf,) = extract(made_event(electrons=[ELECTRON], jets=jets), btag_mask=mask).hlf
    assert (hlf["num_jets"], hlf["num_bjets"]) == (5.0, expected)


def test_jets_on_the_lepton_count_unless_cleaning_is_on(extract: Extract) -> None:
    jets = [jet(40.0, 0.0, 0.0, btag=1), jet(50.0, 0.0, -0.375, btag=1), jet(60.0, 0.5, 0.0, btag=1)]
    event = made_event(electrons=[ELECTRON], jets=jets)
    (off,) = extract(event, jet_lepton_cleaning_dr=0.0).hlf
    assert (off["ht"], off["num_jets"], off["num_bjets"]) == (150.0, 3.0, 3.0)
    (on,) = extract(event, jet_lepton_cleaning_dr=0.5).hlf
    assert (on["ht"], on["num_jets"], on["num_bjets"]) == (60.0, 1.0, 1.0)


# Particle rows


def test_lepton_row_is_massless_at_vertex_zero(extract: Extract) -> None:
    eta = math.asinh(0.75)  # pz = 0.75 pT, E = 1.25 pT
    (rows,) = extract(made_event(electrons=[lepton(40.0, eta, 0.0, charge=-1)])).particles
    expected = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    expected |= {"energy": 50.0, "px": 40.0, "pz": 30.0, "pt": 40.0, "eta": eta}
    expected |= {"is_electron": 1.0, "charge": -1.0}
    assert rows == [pytest.approx(expected, rel=1e-6)]


def test_track_row_is_massless_with_its_vertex_and_charge(extract: Extract) -> None:
    eta, phi = -math.asinh(0.75), math.asin(0.6)  # pz = -0.75 pT, E = 1.25 pT, px = 0.8 pT, py = 0.6 pT
    tracks = [track(20.0, eta, phi, charge=-1, vertex=(1.5, -2.5, 3.5))]
    event = made_event(electrons=[ELECTRON], tracks=tracks)
    (rows,) = extract(event).particles
    expected = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    expected |= {"energy": 25.0, "px": 16.0, "py": 12.0, "pz": -15.0, "pt": 20.0, "eta": eta, "phi": phi}
    expected |= {"vertex_x": 1.5, "vertex_y": -2.5, "vertex_z": 3.5, "is_charged_hadron": 1.0, "charge": -1.0}
    assert rows[1] == pytest.approx(expected, rel=1e-6)


def test_photons_and_neutral_hadrons_have_no_charge_and_vertex_zero(extract: Extract) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[track(2.0, -1.0, -1.0, vertex=(1.0, 2.0, 3.0))],
        photons=[tower(20.0, math.asinh(0.75), 0.0)],
        neutral_hadrons=[tower(40.0, 0.0, math.pi / 2)],
    )
    (rows,) = extract(event, ordering="file").particles
    photon = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    photon |= {"energy": 25.0, "px": 20.0, "pz": 15.0, "pt": 20.0, "eta": math.asinh(0.75), "is_photon": 1.0}
    hadron = dict.fromkeys(PARTICLE_FEATURE_NAMES, 0.0)
    hadron |= {"energy": 40.0, "py": 40.0, "pt": 40.0, "phi": math.pi / 2, "is_neutral_hadron": 1.0}
    assert rows[2] == pytest.approx(photon, rel=1e-6, abs=1e-5)
    assert rows[3] == pytest.approx(hadron, rel=1e-6, abs=1e-5)


def test_charge_of_a_track_is_not_the_sign_of_its_pid(extract: Extract) -> None:
    tracks = [
        track(2.0, -1.0, -1.0, pid=11, charge=-1),
        track(2.0, -1.0, -1.0, pid=-13, charge=1),
        track(2.0, -1.0, -1.0, pid=211, charge=1),
        track(2.0, -1.0, -1.0, pid=-211, charge=-1),
    ]
    (rows,) = extract(made_event(electrons=[ELECTRON], tracks=tracks), ordering="file").particles
    assert column(rows, "charge") == [-1.0, -1.0, 1.0, 1.0, -1.0]
    assert column(rows, "is_charged_hadron") == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert column(rows, "is_electron") == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert column(rows, "is_muon") == [0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ("increasing", [40.0, 5.0, 4.0, 3.0, 2.0]),
        ("decreasing", [40.0, 2.0, 3.0, 4.0, 5.0]),
        ("file", [40.0, 2.0, 4.0, 3.0, 5.0]),
    ],
)
def test_rows_after_the_lepton_are_in_the_order_asked_for(
    extract: Extract, ordering: str, expected: list[float]
) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[track(2.0, 2.0, 0.0), track(4.0, 0.0, -1.0)],
        photons=[tower(3.0, 0.0, 1.5)],
        neutral_hadrons=[tower(5.0, 0.5, 0.0)],
    )
    (rows,) = extract(event, ordering=ordering).particles
    assert column(rows, "pt") == expected


def test_distance_from_the_lepton_is_taken_across_the_phi_seam(extract: Extract) -> None:
    event = made_event(muons=[lepton(40.0, 0.0, 3.0)], photons=[tower(2.0, 0.0, 2.0), tower(3.0, 0.0, -3.0)])
    assert column(extract(event).particles[0], "pt") == [40.0, 3.0, 2.0]


@pytest.mark.parametrize("ordering", ["increasing", "decreasing"])
def test_equal_distances_go_by_kind_then_pt_then_eta_then_phi(extract: Extract, ordering: str) -> None:
    event = made_event(
        electrons=[ELECTRON],
        tracks=[
            track(2.0, 1.0, 0.0),
            track(2.0, 0.0, 1.0),
            track(2.0, 0.0, -1.0),
            track(2.0, -1.0, 0.0),
            track(3.0, 1.0, 0.0),
        ],
        photons=[tower(4.0, -1.0, 0.0), tower(5.0, 1.0, 0.0)],
        neutral_hadrons=[tower(6.0, -1.0, 0.0)],
    )
    (rows,) = extract(event, ordering=ordering).particles
    assert [(row["pt"], row["eta"], row["phi"]) for row in rows[1:]] == [
        (3.0, 1.0, 0.0),
        (2.0, -1.0, 0.0),
        (2.0, 0.0, -1.0),
        (2.0, 0.0, 1.0),
        (2.0, 1.0, 0.0),
        (5.0, 1.0, 0.0),
        (4.0, -1.0, 0.0),
        (6.0, -1.0, 0.0),
    ]


@pytest.mark.parametrize(("kind", "cap"), [("tracks", 450), ("photons", 150), ("neutral_hadrons", 200)])
def test_highest_pt_of_each_kind_are_kept_in_file_order(extract: Extract, kind: str, cap: int) -> None:
    make = track if kind == "tracks" else tower
    # 11 shares no factor with cap + 3: every pT occurs once.
    pts = [2.0 + 0.25 * ((11 * index) % (cap + 3)) for index in range(cap + 3)]
    event = made_event(electrons=[ELECTRON], **{kind: [make(pt, 2.0, 2.0) for pt in pts]})
    (rows,) = extract(event, ordering="file").particles
    assert column(rows[1:], "pt") == [pt for pt in pts if pt > 2.5]


@pytest.mark.parametrize(("places", "expected"), [(2, [(1.0, 1.5), (1.0, 1.0)]), (1, [(1.0, 1.0)])], ids=["eta", "phi"])
def test_equal_pt_at_the_cap_is_decided_by_smaller_eta_then_smaller_phi(
    extract: Extract, places: int, expected: list[tuple[float, float]]
) -> None:
    photons = [tower(2.0, 1.0, 1.5), tower(2.0, 1.5, 0.5), tower(2.0, 1.0, 1.0)]
    hard = [tower(3.0, 2.0, 2.0) for _ in range(150 - places)]
    event = made_event(electrons=[ELECTRON], photons=[*photons, *hard])
    (rows,) = extract(event, ordering="file").particles
    assert [(row["eta"], row["phi"]) for row in rows if row["pt"] == 2.0] == expected


def test_a_photon_exactly_on_the_lepton_is_no_track_of_its_own_and_counts() -> None:
    event = made_event(electrons=[lepton(50.0, 0.5, 1.0)], photons=[tower(10.0, 0.5, 1.0)])
    block = build_features(events_table([event]), FeatureSettings())
    assert block.hlf[0, HLF_NAMES.index("lepton_iso_photon")] == pytest.approx(0.2)
