"""Content that looks wrong is named in a note: units, charges, b-tags, swapped angles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delphes_files import select, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track

from ingestion.notes import unusual_content
from ingestion.schema import COLLECTIONS


def notes_on_content(path: Path, events: list[Row]) -> list[str]:
    """What is noted on the content of a file of these events."""
    counts = select(write_delphes(path, events)).tally().counts
    return list(unusual_content({"made": counts}))


def test_a_rejected_event_names_the_branch(tmp_path: Path) -> None:
    good = event_row(electrons=[lepton(40, 0, 0)])
    infinite_eta = {**good, "tracks": [track(9.0, np.inf, 0)]}
    undefined = {**good, "tracks": [track(np.nan, np.nan, 0)]}
    path = write_delphes(tmp_path / "a.root", [good, infinite_eta, undefined])

    counts = select(path).tally().counts

    assert (counts["rejected_nonfinite"], counts["events"]) == (2, 1)
    (message,) = unusual_content({"made": counts})
    assert message.startswith(
        "2 events of made rejected: EFlowTrack.PT of 1, EFlowTrack.Eta of 2 not finite."
    )


def event_with(index: int, change: Mapping[str, Any]) -> Row:
    """An event with leptons, jets and particles.

    `change` replaces the MET, charges and b-tags. A collection in it has a factor of its momenta;
    `scale` is a factor for electrons and jets.
    """
    scale = change.get("scale", 1.0)
    btags = change.get("btags", [1, 0])
    electron = lepton((30.0 + index) * scale, 0, 0, charge=change.get("charge", -1))
    event = event_row(
        met=change.get("met", 50.0),
        electrons=[electron],
        jets=[jet(25.0 * scale, 0.1, phi, btag=btag) for phi, btag in enumerate(btags)],
        tracks=[track(9.0, 0, 0, charge=change.get("track_charge", 1))],
        photons=[tower(0.6, 0, 0)] * 3,
        neutral_hadrons=[tower(1.1, 0, 0)] * 2,
    )
    # Only some of the events have muons.
    if index % 3 == 0:
        event["muons"] = [lepton(40.0, 0.4, 0.3)]
    for name in COLLECTIONS.keys() & change.keys():
        momentum = "et" if "et" in COLLECTIONS[name] else "pt"
        event[name] = [row | {momentum: row[momentum] * change[name]} for row in event[name]]
    return event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 1000.0}, "are they in MeV?"),
        ({"met": 45_000.0}, "Momenta of MET of made are very large: are they in MeV?"),
        *(
            ({name: 1000.0}, f"Momenta of {name} of made are very large: are they in MeV?")
            for name in ("electrons", "muons", "jets", "tracks", "photons", "neutral_hadrons")
        ),
        ({"btags": [0, 0]}, "No jet of made has a b-tag"),
        ({"btags": [1, 3]}, "Each jet of made has a b-tag"),
        *(({"charge": charge}, "charges other than -1 and 1") for charge in (255, 0, 3)),
        ({"track_charge": 255}, "charges other than -1 and 1"),
    ],
)
def test_units_charges_and_tags_that_look_wrong_are_named(
    tmp_path: Path, change: Mapping[str, Any], message: str
) -> None:
    events = [event_with(index, change) for index in range(50)]

    (note,) = notes_on_content(tmp_path / "a.root", events)

    assert message in note


@pytest.mark.parametrize("change", [{}, {"btags": []}], ids=["ordinary", "no jets"])
def test_ordinary_content_has_no_note(tmp_path: Path, change: Mapping[str, Any]) -> None:
    events = [event_with(index, change) for index in range(50)]

    assert notes_on_content(tmp_path / "a.root", events) == []


@pytest.mark.parametrize(
    ("lowest_eta", "highest_eta", "looks_swapped"),
    [
        (-2.5, 2.5, False),
        (-np.pi, np.pi, True),
        (-np.pi, 0.0, True),
        (0.0, np.pi, True),
        # Wide detectors.
        (-4.0, 3.1, False),
        (-3.1, 4.0, False),
    ],
)
def test_swapped_eta_and_phi_are_named(
    tmp_path: Path, lowest_eta: float, highest_eta: float, looks_swapped: bool
) -> None:
    rng = np.random.default_rng(2)
    angles = rng.uniform([lowest_eta, -np.pi], [highest_eta, np.pi], (400, 2))
    events = []
    for index, (eta, phi) in enumerate(angles):
        electron = lepton(40.0 + index, eta, phi)
        leading_jet = jet(50.0, eta, phi, btag=index % 2)
        events.append(event_row(electrons=[electron], jets=[leading_jet], met=float(index)))

    sentences = notes_on_content(tmp_path / "a.root", events)

    assert len(sentences) == int(looks_swapped)
    for sentence in sentences:
        assert sentence.startswith("No eta of electrons, jets of made is beyond pi")
