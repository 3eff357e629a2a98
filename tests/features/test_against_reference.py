"""The fast kernels against a slow reference on random events; by hand: the tests beside it."""

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
        self._axes = rng.uniform([-2.5, -math.pi], [2.5, math.pi], (int(rng.integers(1, 5)), 2))
        if rng.random() < 0.7:
            self._axes[0, 1] = math.pi + rng.normal(0.0, 0.02)

    def draw(self, spread: float) -> tuple[float, float]:
        """Eta and phi at about `spread` from one of the axes; phi within [-pi, pi]."""
        eta, phi = (self._rng.choice(self._axes) + self._rng.normal(0.0, spread, 2)).tolist()
        return eta, math.remainder(phi, 2.0 * math.pi)


def random_event(rng: np.random.Generator, counts: Sequence[int], *, spread: float) -> Row:
    """A random event; leptons often have own tracks, some directions are shared.

    `counts` are the numbers of tracks, photons and neutral hadrons.
    """
    directions, (tracks, photons, neutral_hadrons) = Directions(rng), counts

    def pts(count: int, threshold: float, mean: float) -> list[float]:
        """Half of them are multiples of a quarter, so that ties occur, at the caps too."""
        pt = rng.exponential(mean, count)
        return (threshold + np.where(rng.random(count) < 0.5, np.ceil(4 * pt) / 4, pt)).tolist()

    def random_track(pt: float, eta: float, phi: float) -> Row:
        pid, charge = int(rng.choice([211, -211, 11, -11, 13, -13])), int(rng.choice([-1, 1]))
        return track(
            pt, eta, phi, charge=charge, pid=pid, vertex=tuple(rng.normal(0.0, 5.0, 3).tolist())
        )

    of_tracks = [random_track(pt, *directions.draw(spread)) for pt in pts(tracks, 0.5, 1.5)]
    of_photons = [tower(et, *directions.draw(spread)) for et in pts(photons, 1.0, 8.0)]
    of_neutrals = [tower(et, *directions.draw(spread)) for et in pts(neutral_hadrons, 1.0, 8.0)]
    for sources, targets in ((of_tracks, of_photons), (of_photons, of_neutrals)):
        for row in sources[: min(3, len(targets))]:
            target = targets[int(rng.integers(len(targets)))]
            target |= {"eta": row["eta"], "phi": row["phi"]}
    leptons: dict[str, list[Row]] = {"electrons": [], "muons": []}
    for of_kind in leptons.values():
        for _ in range(int(rng.integers(3))):
            pt = float(
                rng.choice([23.0, 30.0, 45.0]) if rng.random() < 0.2 else rng.uniform(15.0, 80.0)
            )
            eta, phi = directions.draw(0.3)
            of_kind.append(lepton(pt, eta, phi, charge=int(rng.choice([-1, 1]))))
            if rng.random() < 0.7 and tracks > 0:
                own_track = random_track(pt, eta + float(rng.normal(0.0, 2e-5)), phi)
                of_tracks[int(rng.integers(tracks))] = own_track
    jets = [
        jet(
            30.0 if rng.random() < 0.1 else float(rng.uniform(20.0, 120.0)),
            *directions.draw(0.5),
            btag=int(rng.choice([0, 0, 1, 2, 3, 4, 0x80000000])),
        )
        for _ in range(int(rng.integers(7)))
    ]
    return event_row(
        tracks=of_tracks,
        photons=of_photons,
        neutral_hadrons=of_neutrals,
        jets=jets,
        met=float(rng.exponential(50.0)),
        met_phi=float(rng.uniform(-math.pi, math.pi)),
        **leptons,
    )


#: Those that concern jets alone are tried without the large events, on which the reference takes
#: most of its time.
WITHOUT_LARGE = ("one b-tag bit", "jets not cleaned")


def random_events(*, with_large: bool) -> list[Row]:
    """Many small events, some without tracks or towers, and a few beyond each cap."""
    rng = np.random.default_rng(20240607)
    events = []
    for _ in range(400):
        counts = rng.integers(1, [40, 20, 20]) * (rng.random(3) < 0.85)
        events.append(
            random_event(rng, counts.tolist(), spread=float(rng.choice([0.05, 0.3, 1.0])))
        )
    for large in [(515, 8, 8), (8, 172, 8), (8, 8, 230), (515, 172, 230)] if with_large else []:
        event = random_event(rng, large, spread=1.2)
        event["muons"] = [*event["muons"], lepton(1e4, *Directions(rng).draw(0.2))]
        events.append(event)
    return [events[index] for index in rng.permutation(len(events))]


@pytest.fixture(scope="module")
def random_table() -> pa.Table:
    return events_table(random_events(with_large=True))


def assert_as_reference(table: pa.Table, choices: dict[str, Any]) -> FeatureBlock:
    """Compare every number of every event of a table."""
    settings = ReferenceSettings(**choices)
    expected = [reference_event(event, settings) for event in table.to_pylist()]
    block = build_features(table, FeatureSettings(**choices))
    selected = []
    expected_hlf = []
    expected_particles = []
    offsets = [0]
    for index, features in enumerate(expected):
        if features is not None:
            hlf, rows = features
            selected.append(index)
            expected_hlf.append(hlf)
            expected_particles += rows
            offsets.append(len(expected_particles))

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
    assert (actual.shape, actual.dtype) == ((len(expected), len(names)), np.float32)
    if not expected:
        return
    for name in expected[0]:
        reference = [row[name] for row in expected]
        np.testing.assert_allclose(
            actual[:, names.index(name)], reference, rtol=1e-6, atol=1e-6, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM_CHOICES)
def test_features_of_random_events_equal_the_reference(random_table: pa.Table, name: str) -> None:
    table = events_table(random_events(with_large=False)) if name in WITHOUT_LARGE else random_table
    block = assert_as_reference(table, RANDOM_CHOICES[name])
    # The sample is worth something only if leptons pass and fail, of both kinds, and the caps are
    # reached.
    assert 0.3 < block.selected.size / table.num_rows < 0.9
    assert 0.2 < block.hlf[:, hlf_names().index("lepton_is_electron")].mean() < 0.8
    if name not in WITHOUT_LARGE:
        assert np.diff(block.particle_offsets).max() == 1 + 450 + 150 + 200


def test_a_slice_of_a_table_is_read_from_its_own_start(random_table: pa.Table) -> None:
    assert_as_reference(random_table.slice(7, 30), {})


def test_a_table_of_many_chunks_is_read_to_its_end(random_table: pa.Table) -> None:
    chunks = [random_table.slice(0, 11), random_table.slice(0, 0), random_table.slice(50, 20)]
    assert_as_reference(pa.concat_tables(chunks), {})


@pytest.mark.parametrize("events", [[], [event_row()]], ids=["no event", "no lepton"])
def test_nothing_selected_gives_an_empty_block(events: list[Row]) -> None:
    block = assert_as_reference(events_table(events), {})
    assert block.particle_offsets.tolist() == [0]


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = FeatureSettings()
    reference = dataclasses.asdict(ReferenceSettings())
    assert settings.jet_cleaning == reference.pop("jet_lepton_cleaning_dr")
    assert {name: getattr(settings, name) for name in reference} == reference
    assert FeatureSettings(convention="sparkdltrigger", ordering="file").jet_cleaning == 0.0
