"""The fast kernels against a slow reference on random events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from event_rows import Row, event_row, events_table, jet, lepton, tower, track
from extracted_features import particles_of
from reference_features import ReferenceSettings, reference_event

from features.columns import NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import FeatureBlock, build_features
from features.settings import FeatureSettings

#: The reference has no features that were added since.
NUM_PUBLISHED_HLF = 14
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
    """Random directions of an event around a few axes, one of them often on the seam of phi."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        num_axes = int(rng.integers(1, 5))
        self._axes = rng.uniform([-2.5, -math.pi], [2.5, math.pi], (num_axes, 2))
        if rng.random() < 0.7:
            self._axes[0, 1] = math.pi + rng.normal(0.0, 0.02)

    def draw(self, spread: float) -> tuple[float, float]:
        """Eta and phi at about `spread` from one of the axes; phi within [-pi, pi]."""
        axis = self._rng.choice(self._axes)
        eta, phi = (axis + self._rng.normal(0.0, spread, 2)).tolist()
        return eta, math.remainder(phi, 2.0 * math.pi)


def random_pts(rng: np.random.Generator, count: int, threshold: float, mean: float) -> list[float]:
    """Exponential pT above a threshold; half are multiples of a quarter, so that ties occur."""
    pts = rng.exponential(mean, count)
    is_rounded = rng.random(count) < 0.5
    rounded_pts = np.ceil(4 * pts) / 4
    return (threshold + np.where(is_rounded, rounded_pts, pts)).tolist()


def random_track(rng: np.random.Generator, pt: float, eta: float, phi: float) -> Row:
    pid = int(rng.choice([211, -211, 11, -11, 13, -13]))
    charge = int(rng.choice([-1, 1]))
    x, y, z = rng.normal(0.0, 5.0, 3).tolist()
    return track(pt, eta, phi, charge=charge, pid=pid, vertex=(x, y, z))


def random_lepton(rng: np.random.Generator, directions: Directions) -> Row:
    """A lepton whose pT is at a threshold of some settings now and then."""
    is_at_threshold = rng.random() < 0.2
    pt = rng.choice([23.0, 30.0, 45.0]) if is_at_threshold else rng.uniform(15.0, 80.0)
    eta, phi = directions.draw(0.3)
    return lepton(float(pt), eta, phi, charge=int(rng.choice([-1, 1])))


def random_jet(rng: np.random.Generator, directions: Directions) -> Row:
    pt = 30.0 if rng.random() < 0.1 else float(rng.uniform(20.0, 120.0))
    btag = int(rng.choice([0, 0, 1, 2, 3, 4, 0x80000000]))
    return jet(pt, *directions.draw(0.5), btag=btag)


def share_directions(rng: np.random.Generator, sources: list[Row], targets: list[Row]) -> None:
    """Move some candidates to the directions of others."""
    for row in sources[: min(3, len(targets))]:
        target = targets[int(rng.integers(len(targets)))]
        target |= {"eta": row["eta"], "phi": row["phi"]}


def random_event(rng: np.random.Generator, counts: Sequence[int], *, spread: float) -> Row:
    """A random event; leptons often have own tracks, some directions are shared.

    `counts` are the numbers of tracks, photons and neutral hadrons.
    """
    directions = Directions(rng)
    num_tracks, num_photons, num_neutrals = counts
    track_pts = random_pts(rng, num_tracks, 0.5, 1.5)
    tracks = [random_track(rng, pt, *directions.draw(spread)) for pt in track_pts]
    photon_pts = random_pts(rng, num_photons, 1.0, 8.0)
    photons = [tower(et, *directions.draw(spread)) for et in photon_pts]
    neutral_pts = random_pts(rng, num_neutrals, 1.0, 8.0)
    neutral_hadrons = [tower(et, *directions.draw(spread)) for et in neutral_pts]
    share_directions(rng, tracks, photons)
    share_directions(rng, photons, neutral_hadrons)

    leptons: dict[str, list[Row]] = {}
    for collection in ("electrons", "muons"):
        leptons[collection] = [random_lepton(rng, directions) for _ in range(rng.integers(3))]
        for row in leptons[collection]:
            if rng.random() < 0.7 and num_tracks > 0:
                eta = row["eta"] + float(rng.normal(0.0, 2e-5))
                own_track = random_track(rng, row["pt"], eta, row["phi"])
                tracks[int(rng.integers(num_tracks))] = own_track
    num_jets = rng.integers(7)
    jets = [random_jet(rng, directions) for _ in range(num_jets)]
    met = float(rng.exponential(50.0))
    met_phi = float(rng.uniform(-math.pi, math.pi))
    return event_row(
        tracks=tracks,
        photons=photons,
        neutral_hadrons=neutral_hadrons,
        jets=jets,
        met=met,
        met_phi=met_phi,
        **leptons,
    )


#: Settings of jets alone are tried without the large events, on which the reference takes most of
#: its time.
WITHOUT_LARGE = ("one b-tag bit", "jets not cleaned")
#: Numbers of tracks, photons and neutral hadrons of events beyond the caps.
LARGE_COUNTS = [(515, 8, 8), (8, 172, 8), (8, 8, 230), (515, 172, 230)]


def random_events(*, with_large: bool) -> list[Row]:
    """Many small events, some without tracks or towers, and a few beyond each cap."""
    rng = np.random.default_rng(20240607)
    events = []
    for _ in range(400):
        counts = rng.integers(1, [40, 20, 20]) * (rng.random(3) < 0.85)
        spread = float(rng.choice([0.05, 0.3, 1.0]))
        events.append(random_event(rng, counts.tolist(), spread=spread))
    if with_large:
        for counts in LARGE_COUNTS:
            event = random_event(rng, counts, spread=1.2)
            eta, phi = Directions(rng).draw(0.2)
            event["muons"] = [*event["muons"], lepton(1e4, eta, phi)]
            events.append(event)
    return [events[index] for index in rng.permutation(len(events))]


@pytest.fixture(scope="module")
def random_table() -> pa.Table:
    return events_table(random_events(with_large=True))


def assert_as_reference(table: pa.Table, choices: dict[str, Any]) -> FeatureBlock:
    """Compare every number of every event of a table."""
    settings = ReferenceSettings(**choices)
    selected = []
    expected_hlf = []
    expected_particles = []
    offsets = [0]
    for index, event in enumerate(table.to_pylist()):
        features = reference_event(event, settings)
        if features is not None:
            hlf, rows = features
            selected.append(index)
            expected_hlf.append(hlf)
            expected_particles += rows
            offsets.append(len(expected_particles))

    block = build_features(table, FeatureSettings(**choices))

    assert block.selected.tolist() == selected
    assert block.particle_offsets.tolist() == offsets
    assert all(len(hlf) == NUM_PUBLISHED_HLF for hlf in expected_hlf)
    assert all(len(row) == NUM_PARTICLE_FEATURES for row in expected_particles)
    assert_close(block.hlf, expected_hlf, hlf_names())
    assert_close(particles_of(block), expected_particles, PARTICLE_FEATURE_NAMES)
    return block


def assert_close(
    actual: np.ndarray, expected: list[dict[str, float]], names: Sequence[str]
) -> None:
    """Compare rows, with columns of these names, with the features of the reference."""
    assert actual.shape == (len(expected), len(names))
    assert actual.dtype == np.float32
    if not expected:
        return
    for name in expected[0]:
        values = actual[:, names.index(name)]
        reference = [row[name] for row in expected]
        np.testing.assert_allclose(values, reference, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM_CHOICES)
def test_features_of_random_events_equal_the_reference(random_table: pa.Table, name: str) -> None:
    table = random_table
    if name in WITHOUT_LARGE:
        table = events_table(random_events(with_large=False))

    block = assert_as_reference(table, RANDOM_CHOICES[name])

    # Leptons of both flavours pass and fail, and the caps are reached.
    selected_share = block.selected.size / table.num_rows
    is_electron = block.hlf[:, hlf_names().index("lepton_is_electron")]
    assert 0.3 < selected_share < 0.9
    assert 0.2 < is_electron.mean() < 0.8
    if name not in WITHOUT_LARGE:
        assert np.diff(block.particle_offsets).max() == 1 + 450 + 150 + 200


def test_a_slice_of_a_table_is_read_from_its_own_start(random_table: pa.Table) -> None:
    assert_as_reference(random_table.slice(7, 30), {})


def test_a_table_of_many_chunks_is_read_to_its_end(random_table: pa.Table) -> None:
    empty_chunk = random_table.slice(0, 0)
    chunks = [random_table.slice(0, 11), empty_chunk, random_table.slice(50, 20)]

    assert_as_reference(pa.concat_tables(chunks), {})


@pytest.mark.parametrize("events", [[], [event_row()]], ids=["no event", "no lepton"])
def test_nothing_selected_gives_an_empty_block(events: list[Row]) -> None:
    block = assert_as_reference(events_table(events), {})

    assert block.particle_offsets.tolist() == [0]


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = FeatureSettings()
    reference = dataclasses.asdict(ReferenceSettings())

    assert settings.jet_cleaning == reference.pop("jet_lepton_cleaning_dr")
    for name, default in reference.items():
        assert getattr(settings, name) == default
    published = FeatureSettings(convention="sparkdltrigger", ordering="file")
    assert published.jet_cleaning == 0.0
