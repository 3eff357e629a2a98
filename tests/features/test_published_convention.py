"""The convention `sparkdltrigger`: each of its mistakes by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import pytest
from event_rows import event_row, events_table, lepton, tower, track
from extracted_features import column, extract, hlf_of, near, particle_rows

from features.kernels import OUTCOMES, build_features
from features.settings import FeatureSettings

CORRECT = {"ordering": "file"}
PUBLISHED = {"convention": "sparkdltrigger", "ordering": "file"}

#: No electron of these has an own track, unless the event gives one.
ELECTRON = lepton(40.0, 0.0, 0.0)
#: A candidate of each kind, which the published selection demands; far from each other and from
#: everything else.
FAR_TRACK = track(1.0, -2.0, -2.0)
FAR_PHOTON = tower(2.0, -2.0, 0.0)
FAR_NEUTRAL = tower(2.0, -2.0, 2.0)
FAR = {"tracks": [FAR_TRACK], "photons": [FAR_PHOTON], "neutral_hadrons": [FAR_NEUTRAL]}


class Extracted(NamedTuple):
    """Features of one selected event, with names; particles are in file order."""

    hlf: dict[str, float]
    particles: list[dict[str, float]]

    def column(self, name: str) -> list[float]:
        return column(self.particles, name)


def extract_both(**fields: Any) -> tuple[Extracted, Extracted]:
    """The published and the correct features of an event that both conventions select."""
    event = event_row(**(FAR | fields))
    published = Extracted(hlf_of(event, **PUBLISHED), particle_rows(event, **PUBLISHED))
    correct = Extracted(hlf_of(event, **CORRECT), particle_rows(event, **CORRECT))
    return published, correct


# Isolation


def test_published_isolation_loses_neighbours_across_the_seam() -> None:
    tracks = [track(4.0, 1.0, 3.1), track(2.0, 1.0, -3.1), track(1.0, 1.0, 3.0)]

    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)

    # The sum holds the track itself, and 1 is subtracted for it: only the neighbour on the same
    # side of the seam counts.
    expected_published = near((4 + 1) / 4 - 1, 2 / 2 - 1, (1 + 4) / 1 - 1)
    expected_correct = near((2 + 1) / 4, (4 + 1) / 2, (4 + 2) / 1)
    assert published.column("iso_charged")[1:4] == expected_published
    assert correct.column("iso_charged")[1:4] == expected_correct


@pytest.mark.parametrize("collection", ["photons", "neutral_hadrons"])
def test_published_lepton_is_isolated_from_candidates_across_the_seam(collection: str) -> None:
    near_seam = {
        "muons": [lepton(40.0, 0.0, 3.1)],
        "tracks": [track(40.0, 0.0, 3.1)],
        collection: [tower(30.0, 0.0, -3.1)],
    }
    event = event_row(**(FAR | near_seam))

    hlf = hlf_of(event, **PUBLISHED)

    isolations = [hlf[f"lepton_iso_{species}"] for species in ("charged", "photon", "neutral")]
    assert isolations == near(0.0, 0.0, 0.0)
    # 30 / 40 = 0.75 is not isolated.
    assert extract(event, **CORRECT).selected == []


def test_published_subtracts_one_from_the_charged_isolation_of_every_row() -> None:
    published, correct = extract_both(electrons=[ELECTRON])

    # Lepton, track, photon, neutral hadron, all alone; only the track counts itself.
    assert published.column("iso_charged") == near(-1.0, 1 / 1 - 1, -1.0, -1.0)
    assert correct.column("iso_charged") == near(0.0, 0.0, 0.0, 0.0)
    assert published.hlf["lepton_iso_charged"] == -1.0
    assert correct.hlf["lepton_iso_charged"] == 0.0


def test_published_lepton_without_own_track_passes_in_a_crowd() -> None:
    close_photon = tower(50.0, 0.1, 0.0)
    event = event_row(**(FAR | {"electrons": [ELECTRON], "photons": [close_photon]}))

    hlf = hlf_of(event, **PUBLISHED)

    # -1 + 50 / 40 = 0.25 is isolated, and 1.25 is not.
    isolation = hlf["lepton_iso_charged"] + hlf["lepton_iso_photon"]
    assert isolation == pytest.approx(0.25)
    assert extract(event, **CORRECT).selected == []


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
    ("electron_eta", "muon_eta", "flavour"),
    [
        (0.5, -1.0, "electron"),
        (-1.0, 0.5, "muon"),
        (0.5, -2.0, "electron"),  # eta counts with its sign
        (0.0, 0.0, "muon"),
    ],
)
def test_published_selects_the_lepton_of_larger_eta(
    electron_eta: float, muon_eta: float, flavour: str
) -> None:
    electron = lepton(30.0, electron_eta, 1.0)
    muon = lepton(60.0, muon_eta, -1.0)

    published, correct = extract_both(electrons=[electron], muons=[muon])

    is_electron = float(flavour == "electron")
    assert published.hlf["lepton_is_electron"] == is_electron
    assert published.column("is_electron")[0] == is_electron
    assert published.column("is_muon")[0] == 1 - is_electron
    assert correct.hlf["lepton_is_electron"] == 0.0


@pytest.mark.parametrize("collection", ["tracks", "photons", "neutral_hadrons"])
def test_published_events_without_a_kind_of_candidates_are_rejected(collection: str) -> None:
    without_kind = FAR | {collection: []}
    events = [
        event_row(electrons=[ELECTRON], **without_kind),
        event_row(electrons=[ELECTRON], **FAR),
        event_row(**without_kind),
        event_row(**FAR),
    ]

    outcomes = {}
    for name, settings in (("published", PUBLISHED), ("correct", CORRECT)):
        block = build_features(events_table(events), FeatureSettings(**settings))
        outcomes[name] = [OUTCOMES[code] for code in block.outcome]

    # The kind comes first: an event that has no lepton either is rejected for the kind.
    lacks_kind = "rejected_lacks_a_kind"
    no_lepton = "rejected_no_lepton_in_acceptance"
    assert outcomes["published"] == [lacks_kind, "selected", lacks_kind, no_lepton]
    assert outcomes["correct"] == ["selected", "selected", no_lepton, no_lepton]


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
    electron = lepton(40.0, 0.0, phi)

    published, correct = extract_both(electrons=[electron], met=30.0, met_phi=met_phi)

    assert published.hlf["mt"] == pytest.approx(published_mt, rel=1e-6, abs=1e-6)
    assert correct.hlf["mt"] == pytest.approx(correct_mt, rel=1e-6, abs=1e-6)


# Particle rows


def test_published_track_charge_is_the_sign_of_its_pid() -> None:
    pids = [211, -211, 11, -11, 13, -13, 0]
    charges = [1, -1, -1, 1, -1, 1, 1]
    signs_of_pid = [1, -1, 1, -1, 1, -1, 0]
    tracks = []
    for pid, charge in zip(pids, charges, strict=True):
        pt = 1.0 + len(tracks)
        tracks.append(track(pt, 1.0, 1.0, pid=pid, charge=charge))

    published, correct = extract_both(electrons=[ELECTRON], tracks=tracks)

    # The lepton, whose charge is read from the file, the tracks, and two neutral candidates.
    assert published.column("charge") == [-1, *signs_of_pid, 0, 0]
    assert correct.column("charge") == [-1, *charges, 0, 0]


def test_published_rows_are_the_first_450_tracks() -> None:
    own_track = track(40.0, 0.0, 0.0)
    soft = [track(1.0, -2.0, -2.0)] * 448
    hard = [track(pt, 1.0, 1.0) for pt in (2, 3, 5, 6)]

    published, correct = extract_both(electrons=[ELECTRON], tracks=[own_track, *soft, *hard])

    # The own track is no row and does not count towards the 450.
    published_pts = Counter(published.column("pt")[1:451])
    correct_pts = Counter(correct.column("pt")[1:451])
    assert published_pts == {1.0: 448, 2.0: 1, 3.0: 1}
    assert correct_pts == {1.0: 446, 2.0: 1, 3.0: 1, 5.0: 1, 6.0: 1}
    # The lepton, the tracks, a photon and a neutral hadron.
    num_rows = 1 + 450 + 1 + 1
    assert len(published.particles) == num_rows
    assert len(correct.particles) == num_rows


@pytest.mark.parametrize(
    ("collection", "flag", "cap"),
    [("photons", "is_photon", 150), ("neutral_hadrons", "is_neutral_hadron", 200)],
)
def test_published_rows_are_the_first_photons_and_neutral_hadrons(
    collection: str, flag: str, cap: int
) -> None:
    soft = [tower(2.0, -2.0, 1.0)] * (cap - 1)
    hard = [tower(et, 1.0, 1.0) for et in (3.0, 5.0, 4.0)]

    published, correct = extract_both(electrons=[ELECTRON], **{collection: soft + hard})

    published_pts = Counter(row["pt"] for row in published.particles if row[flag])
    correct_pts = Counter(row["pt"] for row in correct.particles if row[flag])
    assert published_pts == {2.0: cap - 1, 3.0: 1}
    assert correct_pts == {2.0: cap - 3, 3.0: 1, 5.0: 1, 4.0: 1}


def test_published_rows_number_by_number() -> None:
    quarter = math.pi / 2
    muon = lepton(50.0, 0.0, 0.0, charge=1)
    own_track = track(50.0, 0.0, 0.0)
    displaced = track(4.0, 0.0, quarter, pid=-13, charge=1, vertex=(1.0, -2.0, 3.0))
    # pz = 0.75 pT, E = 1.25 pT.
    photon = tower(2.0, math.asinh(0.75), -quarter)
    neutral_hadron = tower(8.0, 0.0, quarter)

    published, _ = extract_both(
        muons=[muon],
        tracks=[own_track, displaced],
        photons=[photon],
        neutral_hadrons=[neutral_hadron],
    )

    expected_rows = [
        # energy, momentum, pT, eta, phi, vertex, isolation, flags, charge
        [50, 50, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        [4, 0, 4, 0, 4, 0, quarter, 1, -2, 3, 0, 0, 2, 1, 0, 0, 0, 0, -1],
        [2.5, 0, -2, 1.5, 2, math.log(2), -quarter, 0, 0, 0, -1, 1, 0, 0, 0, 1, 0, 0, 0],
        [8, 0, 8, 0, 8, 0, quarter, 0, 0, 0, -0.5, 0, 1, 0, 1, 0, 0, 0, 0],
    ]
    for row, expected in zip(published.particles, expected_rows, strict=True):
        assert list(row.values()) == pytest.approx(expected, abs=1e-5)


# Settings


@pytest.mark.parametrize("choices", [{}, {"ordering": "increasing"}, {"ordering": "decreasing"}])
def test_published_convention_needs_file_order(choices: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="ordering: file"):
        FeatureSettings(convention="sparkdltrigger", **choices)
    FeatureSettings(convention="correct", **choices)
