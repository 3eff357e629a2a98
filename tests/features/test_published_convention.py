"""The convention `sparkdltrigger`: each of its mistakes by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import pytest
from event_rows import Row, event_row, events_table, lepton, tower, track
from extracted_features import column, extract, near

from features.kernels import OUTCOMES, build_features
from features.settings import FeatureSettings

PUBLISHED = FeatureSettings(convention="sparkdltrigger", ordering="file")


class Extracted(NamedTuple):
    """Features of one selected event, with names."""

    hlf: dict[str, float]
    rows: list[dict[str, float]]

    def column(self, name: str) -> list[float]:
        return column(self.rows, name)


def extract_one(event: Row, **choices: Any) -> Extracted | None:
    """The features of an event, particles in file order; None if it is rejected."""
    selected, hlf, particles = extract(event, ordering="file", **choices)
    return Extracted(hlf[0], particles[0]) if selected else None


def extract_published(event: Row) -> Extracted | None:
    return extract_one(event, convention="sparkdltrigger")


#: No electron of these has an own track, unless the event gives one.
ELECTRON = lepton(40.0, 0.0, 0.0)
#: One of each kind, which the published selection demands; far from each other and from everything
#: else.
FAR_TRACK = track(1.0, -2.0, -2.0)
FAR_PHOTON = tower(2.0, -2.0, 0.0)
FAR_NEUTRAL = tower(2.0, -2.0, 2.0)
FAR = {"tracks": [FAR_TRACK], "photons": [FAR_PHOTON], "neutral_hadrons": [FAR_NEUTRAL]}


def extract_both(**fields: Any) -> tuple[Extracted, Extracted]:
    """The published and the correct features of an event that both conventions select."""
    event = event_row(**(FAR | fields))
    published, correct = extract_published(event), extract_one(event)
    assert published is not None
    assert correct is not None
    return published, correct


# Isolation


def test_published_isolation_loses_neighbours_across_the_seam() -> None:
    tracks = [track(4.0, 1.0, 3.1), track(2.0, 1.0, -3.1), track(1.0, 1.0, 3.0)]
    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)
    # Its own pT is in the sum and one is taken off: what is left is the neighbour on the same side
    # of the seam.
    assert published.column("iso_charged")[1:4] == near((4 + 1) / 4 - 1, 2 / 2 - 1, (1 + 4) / 1 - 1)
    assert correct.column("iso_charged")[1:4] == near((2 + 1) / 4, (4 + 1) / 2, (4 + 2) / 1)


@pytest.mark.parametrize("collection", ["photons", "neutral_hadrons"])
def test_published_lepton_is_isolated_from_candidates_across_the_seam(collection: str) -> None:
    own_value = track(40.0, 0.0, 3.1)
    event = event_row(
        **(
            FAR
            | {
                "muons": [lepton(40.0, 0.0, 3.1)],
                "tracks": [own_value],
                collection: [tower(30.0, 0.0, -3.1)],
            }
        )
    )
    published = extract_published(event)
    assert published is not None
    isolations = [published.hlf[f"lepton_iso_{name}"] for name in ("charged", "photon", "neutral")]
    assert isolations == near(0.0, 0.0, 0.0)
    assert extract_one(event) is None  # 30 / 40 = 0.75 is not isolated


def test_published_subtracts_one_from_the_charged_isolation_of_every_row() -> None:
    published, correct = extract_both(electrons=[ELECTRON])
    # Lepton, track, photon, neutral hadron, all alone: the track makes up for it, as it counts
    # itself.
    assert published.column("iso_charged") == near(-1.0, 1 / 1 - 1, -1.0, -1.0)
    assert correct.column("iso_charged") == near(0.0, 0.0, 0.0, 0.0)
    assert published.hlf["lepton_iso_charged"] == -1.0
    assert correct.hlf["lepton_iso_charged"] == 0.0


def test_published_lepton_without_own_track_passes_in_a_crowd() -> None:
    event = event_row(**(FAR | {"electrons": [ELECTRON], "photons": [tower(50.0, 0.1, 0.0)]}))
    published = extract_published(event)
    assert published is not None  # -1 + 50 / 40 = 0.25 is isolated
    assert published.hlf["lepton_iso_charged"] + published.hlf[
        "lepton_iso_photon"
    ] == pytest.approx(0.25)
    assert extract_one(event) is None  # 1.25 is not


def test_published_lepton_counts_its_own_track() -> None:
    tracks = [track(44.0, 0.0, 0.0), track(8.0, 0.1, 0.0)]
    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)
    assert published.hlf["lepton_iso_charged"] == pytest.approx((44 + 8) / 40 - 1)
    assert correct.hlf["lepton_iso_charged"] == pytest.approx(8 / 40)


def test_published_photon_counts_itself() -> None:
    photons = [tower(5.0, 1.0, 1.0), tower(10.0, 1.0, 1.1), FAR_PHOTON]
    tracks = [track(3.0, 1.1, 1.0)]
    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks, photons=photons)
    # The lepton, the track, the photons, the neutral hadron.
    assert published.column("iso_photon") == near(0, 15 / 3, 15 / 5, 15 / 10, 2 / 2, 0)
    assert correct.column("iso_photon") == near(0, 15 / 3, 10 / 5, 5 / 10, 0, 0)


# Selection


@pytest.mark.parametrize("collection", ["electrons", "muons"])
def test_published_selects_the_first_lepton_in_file_order(collection: str) -> None:
    leptons = [lepton(22.0, 0.5, -1.0), lepton(25.0, 0.0, 0.0), lepton(60.0, 1.0, 1.0)]
    published, correct = extract_both(**{collection: leptons})
    assert published.hlf["lepton_pt"] == 25.0
    assert correct.hlf["lepton_pt"] == 60.0


@pytest.mark.parametrize(
    ("electron", "muon", "electron_as_published"),
    [
        ((60.0, -1.0), (30.0, 0.5), False),
        ((30.0, 0.5), (60.0, -1.0), True),
        ((30.0, 0.5), (60.0, -2.0), True),  # eta counts with its sign
        ((60.0, 0.0), (30.0, 0.0), False),  # of equals the muon
    ],
)
def test_published_selects_the_lepton_of_larger_eta(
    electron: tuple[float, float], muon: tuple[float, float], electron_as_published: bool
) -> None:
    leptons = {"electrons": [lepton(*electron, 1.0)], "muons": [lepton(*muon, -1.0)]}
    published, correct = extract_both(**leptons)
    assert published.hlf["lepton_is_electron"] == float(electron_as_published)
    assert correct.hlf["lepton_is_electron"] == float(electron[0] > muon[0])
    assert published.column("is_electron")[0] == float(electron_as_published)
    assert published.column("is_muon")[0] == float(not electron_as_published)


@pytest.mark.parametrize("lacking", ["tracks", "photons", "neutral_hadrons"])
def test_published_events_lacking_a_kind_are_rejected(lacking: str) -> None:
    events = [
        event_row(electrons=[ELECTRON], **(FAR | {lacking: []})),
        event_row(electrons=[ELECTRON], **FAR),
        event_row(**(FAR | {lacking: []})),  # for this reason also if there is no lepton either
        event_row(**FAR),
    ]
    published = build_features(events_table(events), PUBLISHED)
    assert published.selected.tolist() == [1]
    assert [OUTCOMES[code] for code in published.outcome] == [
        "rejected_lacks_a_kind",
        "selected",
        "rejected_lacks_a_kind",
        "rejected_no_lepton_in_acceptance",
    ]
    correct = build_features(events_table(events), FeatureSettings(ordering="file"))
    assert correct.selected.tolist() == [0, 1]
    assert [OUTCOMES[code] for code in correct.outcome] == [
        "selected",
        "selected",
        "rejected_no_lepton_in_acceptance",
        "rejected_no_lepton_in_acceptance",
    ]


# High-level features


@pytest.mark.parametrize(
    ("phi", "met_phi", "published_mt", "correct_mt"),
    [
        (0.0, 2.0, 3398.752408, 58.298820),  # 2 * 40 * 30 * (1 + 0.4161468) and its root
        (1.5, -0.5, 3398.752408, 58.298820),
        (3.0, -3.0, 95.591312, 9.777081),  # across the seam: 2400 * (1 - 0.9601703)
        (0.5, 0.5, 0.0, 0.0),
    ],
)
def test_published_mt_is_squared(
    phi: float, met_phi: float, published_mt: float, correct_mt: float
) -> None:
    published, correct = extract_both(electrons=[lepton(40.0, 0.0, phi)], met=30.0, met_phi=met_phi)
    assert published.hlf["mt"] == pytest.approx(published_mt, rel=1e-6, abs=1e-6)
    assert correct.hlf["mt"] == pytest.approx(correct_mt, rel=1e-6, abs=1e-6)


# Particle rows


def test_published_track_charge_is_the_sign_of_its_pid() -> None:
    pids = [211, -211, 11, -11, 13, -13, 0]
    charges = [1, -1, -1, 1, -1, 1, 1]
    tracks = [
        track(1.0 + index, 1.0, 1.0, pid=pid, charge=charge)
        for index, (pid, charge) in enumerate(zip(pids, charges, strict=True))
    ]
    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)
    # The lepton, whose charge is read from the file, the tracks, and two neutral ones.
    assert published.column("charge") == [-1, 1, -1, 1, -1, 1, -1, 0, 0, 0]
    assert correct.column("charge") == [-1, 1, -1, -1, 1, -1, 1, 1, 0, 0]


def test_published_keeps_the_first_450_tracks() -> None:
    own_value = track(40.0, 0.0, 0.0)
    tracks = [
        own_value,
        *[track(1.0, -2.0, -2.0) for _ in range(448)],
        *[track(pt, 1.0, 1.0) for pt in (2, 3, 5, 6)],
    ]
    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)
    # The own track is no row and takes no place.
    assert Counter(published.column("pt")[1:451]) == {1.0: 448, 2.0: 1, 3.0: 1}
    assert Counter(correct.column("pt")[1:451]) == {1.0: 446, 2.0: 1, 3.0: 1, 5.0: 1, 6.0: 1}
    assert len(published.rows) == len(correct.rows) == 1 + 450 + 1 + 1


@pytest.mark.parametrize(
    ("collection", "flag", "cap"),
    [("photons", "is_photon", 150), ("neutral_hadrons", "is_neutral_hadron", 200)],
)
def test_published_keeps_the_first_photons_and_neutral_hadrons(
    collection: str, flag: str, cap: int
) -> None:
    towers = [
        *[tower(2.0, -2.0, 1.0) for _ in range(cap - 1)],
        *[tower(et, 1.0, 1.0) for et in (3.0, 5.0, 4.0)],
    ]
    published, correct = extract_both(electrons=[ELECTRON], **{collection: towers})
    published_pts = Counter(row["pt"] for row in published.rows if row[flag])
    correct_pts = Counter(row["pt"] for row in correct.rows if row[flag])
    assert published_pts == {2.0: cap - 1, 3.0: 1}
    assert correct_pts == {2.0: cap - 3, 3.0: 1, 5.0: 1, 4.0: 1}


def test_published_rows_number_by_number() -> None:
    published, _ = extract_both(
        muons=[lepton(50.0, 0.0, 0.0, charge=1)],
        tracks=[
            track(50.0, 0.0, 0.0),
            track(4.0, 0.0, math.pi / 2, pid=-13, charge=1, vertex=(1.0, -2.0, 3.0)),
        ],
        photons=[tower(2.0, math.asinh(0.75), -math.pi / 2)],
        neutral_hadrons=[tower(8.0, 0.0, math.pi / 2)],
    )
    quarter = math.pi / 2
    expected = [
        # energy, momentum, pT, eta, phi, vertex, isolation, flags, charge
        [50, 50, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        [4, 0, 4, 0, 4, 0, quarter, 1, -2, 3, 0, 0, 2, 1, 0, 0, 0, 0, -1],
        [2.5, 0, -2, 1.5, 2, math.log(2), -quarter, 0, 0, 0, -1, 1, 0, 0, 0, 1, 0, 0, 0],
        [8, 0, 8, 0, 8, 0, quarter, 0, 0, 0, -0.5, 0, 1, 0, 1, 0, 0, 0, 0],
    ]
    assert [list(row.values()) for row in published.rows] == [
        pytest.approx(row, abs=1e-5) for row in expected
    ]


# Settings


@pytest.mark.parametrize("choices", [{}, {"ordering": "increasing"}, {"ordering": "decreasing"}])
def test_published_convention_needs_file_order(choices: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="ordering: file"):
        FeatureSettings(convention="sparkdltrigger", **choices)
    FeatureSettings(convention="correct", **choices)
