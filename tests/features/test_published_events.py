"""The convention `sparkdltrigger` on random and real events, against a slow reference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from extracted_features import particles_of
from made_events import Row, events_table, jet, lepton, made_event, tower, track
from numpy.typing import NDArray
from published_reference import Published, published_event

from features.columns import HLF_NAMES, NUM_HLF, NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES
from features.kernels import OUTCOMES, FeatureBlock, build_features
from features.settings import FeatureSettings
from ingestion.files import SourceFile, inventory
from ingestion.reader import read_events, select_events
from ingestion.settings import IngestSettings

PUBLISHED = FeatureSettings(convention="sparkdltrigger", ordering="file")

OrderName = Literal["increasing", "decreasing", "file"]

RTOL = 1e-5
ATOL = 1e-5
#: The largest float32 below pi: the seam is approached to this.
LARGEST_PHI = float(np.nextafter(np.float32(math.pi), np.float32(0)))


def random_phi(rng: np.random.Generator, centre: float, spread: float) -> float:
    phi = math.remainder(centre + float(rng.normal(0.0, spread)), 2.0 * math.pi)
    return min(max(phi, -LARGEST_PHI), LARGEST_PHI)


def random_direction(rng: np.random.Generator, axes: list[tuple[float, float]], spread: float) -> tuple[float, float]:
    eta, phi = axes[int(rng.integers(len(axes)))]
    return eta + float(rng.normal(0.0, spread)), random_phi(rng, phi, spread)


def random_track(rng: np.random.Generator, pt: float, eta: float, phi: float) -> Row:
    """A track whose charge disagrees with the sign of its PID if, and only if, it is a lepton's."""
    pid = int(rng.choice([211, -211, 321, 2212, 11, -11, 13, -13]))
    charge = (1 if pid > 0 else -1) * (-1 if abs(pid) in {11, 13} else 1)
    x, y, z = (float(value) for value in rng.normal(0.0, 5.0, 3))
    return track(pt, eta, phi, charge=charge, pid=pid, vertex=(x, y, z))


def random_event(rng: np.random.Generator, tracks: int, photons: int, neutral_hadrons: int) -> Row:
    """An event with a number of candidates crowded around a few axes, one of them often on the seam of phi."""
    axes = [(float(rng.uniform(-2.5, 2.5)), float(rng.uniform(-math.pi, math.pi))) for _ in range(3)]
    if rng.random() < 0.6:
        axes[0] = (axes[0][0], math.pi)
    spread = float(rng.choice([0.1, 0.2, 0.6]))
    track_rows = [
        random_track(rng, 0.5 + float(rng.exponential(1.5)), *random_direction(rng, axes, spread))
        for _ in range(tracks)
    ]
    photon_rows, neutral_rows = (
        [tower(1.0 + float(rng.exponential(7.0)), *random_direction(rng, axes, spread)) for _ in range(count)]
        for count in (photons, neutral_hadrons)
    )
    leptons: dict[str, list[Row]] = {"electrons": [], "muons": []}
    for rows in leptons.values():
        for _ in range(int(rng.choice([0, 1, 1, 2]))):
            pt = float(rng.uniform(18.0, 80.0))
            eta, phi = random_direction(rng, axes, 0.3)
            rows.append(lepton(pt, eta, phi, charge=int(rng.choice([-1, 1]))))
            if rng.random() < 0.7 and tracks > 0:
                own_phi = random_phi(rng, phi, 2e-5)
                own = random_track(rng, pt * float(rng.uniform(0.98, 1.02)), eta + float(rng.normal(0, 2e-5)), own_phi)
                track_rows[int(rng.integers(tracks))] = own
    jets = [
        jet(float(rng.uniform(20.0, 90.0)), *random_direction(rng, axes, 1.0), btag=int(rng.choice([0, 0, 1, 2, 7])))
        for _ in range(int(rng.integers(7)))
    ]
    return made_event(
        tracks=track_rows,
        photons=photon_rows,
        neutral_hadrons=neutral_rows,
        jets=jets,
        met=float(rng.exponential(50.0)),
        met_phi=random_phi(rng, 0.0, 3.0),
        **leptons,
    )


def random_events() -> list[Row]:
    """Many small events, a few of them without some kind, and a few beyond the cap of each kind."""
    rng = np.random.default_rng(20250314)
    events = []
    for _ in range(300):
        tracks, photons, neutral_hadrons = (
            int(count) * int(rng.random() < 0.96) for count in rng.integers(1, [40, 20, 20])
        )
        events.append(random_event(rng, tracks, photons, neutral_hadrons))
    for tracks, photons, neutral_hadrons in [(480, 8, 8), (8, 180, 8), (8, 8, 230), (480, 180, 230)]:
        event = random_event(rng, tracks, photons, neutral_hadrons)
        # Hard enough to be isolated in any crowd, and the first of its kind.
        event["muons"] = [lepton(1e4, 0.5, 3.0), *event["muons"]]
        event["electrons"] = []
        events.append(event)
    order = rng.permutation(len(events))
    return [events[index] for index in order]


@pytest.fixture(scope="module")
def random_table() -> pa.Table:
    return events_table(random_events())


@pytest.fixture
def real_table(ttbar_source: SourceFile) -> pa.Table:
    """The first 40 events with a lepton above threshold of a bundled file."""
    settings = IngestSettings()
    info = inventory([ttbar_source], settings).infos[0]
    tables = [
        select_events(raw, info, settings).table for raw in read_events(info, settings, start=0, stop=info.entries)
    ]
    table = pa.concat_tables(tables).slice(0, 40)
    assert table.num_rows == 40
    return table


def assert_as_published(table: pa.Table) -> tuple[FeatureBlock, list[Published]]:
    """Compares every number of every event of a table with the reference."""
    block = build_features(table, PUBLISHED)
    expected = [published_event(event) for event in table.to_pylist()]
    selected = [found for found in expected if found.outcome == "selected"]

    assert [OUTCOMES[code] for code in block.outcome.tolist()] == [found.outcome for found in expected]
    assert block.selected.tolist() == [index for index, found in enumerate(expected) if found.outcome == "selected"]
    lengths = [len(found.rows) for found in selected]
    assert block.particle_offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    assert block.hlf.shape == (len(selected), NUM_HLF)
    assert particles_of(block).shape == (sum(lengths), NUM_PARTICLE_FEATURES)
    assert block.hlf.dtype == np.float32
    assert particles_of(block).dtype == np.float32

    bounds = zip(block.particle_offsets[:-1], block.particle_offsets[1:], strict=True)
    for index, hlf, (start, stop), found in zip(block.selected, block.hlf, bounds, selected, strict=True):
        assert_close(hlf[None], [found.hlf], HLF_NAMES, f"event {index}")
        assert_close(particles_of(block)[start:stop], found.rows, PARTICLE_FEATURE_NAMES, f"particles of event {index}")
    return block, expected


def assert_close(
    actual: NDArray[np.float32], expected: list[dict[str, float]], names: Sequence[str], what: str
) -> None:
    """Rows of numbers, columns of these names, against the features that the reference knows."""
    for name in expected[0]:
        found, wanted = actual[:, names.index(name)], [row[name] for row in expected]
        np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=ATOL, err_msg=f"{name} of {what}")


@pytest.mark.slow
def test_random_events_are_as_published(random_table: pa.Table) -> None:
    block, expected = assert_as_published(random_table)
    # The sample is worth something only if every outcome occurs, leptons are of both kinds, and the caps are reached.
    outcomes = Counter(found.outcome for found in expected)
    assert outcomes["rejected_lacks_a_kind"] > 10
    assert outcomes["rejected_no_isolated_lepton"] + outcomes["rejected_no_lepton_in_acceptance"] > 30
    assert outcomes["selected"] > 100
    assert 0.2 < block.hlf[:, HLF_NAMES.index("lepton_is_electron")].mean() < 0.8
    assert np.diff(block.particle_offsets).max() == 1 + 450 + 150 + 200


def test_random_events_tell_the_conventions_apart(random_table: pa.Table) -> None:
    """Without this, a convention that changes nothing on the random events could pass as the published one."""
    published = build_features(random_table, PUBLISHED)
    correct = build_features(random_table, FeatureSettings(ordering="file"))
    only_published = set(published.selected.tolist()) - set(correct.selected.tolist())
    only_correct = set(correct.selected.tolist()) - set(published.selected.tolist())
    assert len(only_published) > 10
    assert len(only_correct) > 10
    _, in_published, in_correct = np.intersect1d(published.selected, correct.selected, return_indices=True)
    lepton_pt = HLF_NAMES.index("lepton_pt")
    other_lepton = published.hlf[in_published, lepton_pt] != correct.hlf[in_correct, lepton_pt]
    assert other_lepton.sum() > 10


@pytest.mark.slow
def test_real_events_are_as_published(real_table: pa.Table) -> None:
    _, expected = assert_as_published(real_table)
    assert sum(found.outcome == "selected" for found in expected) >= 10
