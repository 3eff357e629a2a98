"""Notes about the origin of events: of the bundled sample, of simulated events, of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import uproot
from minimal_configs import write_config
from published_by_hand import publish

from models.evaluation.style import PlotLabels
from pipeline.config import load_config
from pipeline.reporting.origin import BUNDLED, event_origin, plot_labels
from pipeline.runs.code_meaning import ROOT

OWN_UUID = "00000000-0000-0000-0000-000000000000"
BUNDLED_UUIDS = dict(zip(("qcd", "ttbar", "wjets"), list(BUNDLED)[::2], strict=True))
OWN_UUIDS = dict.fromkeys(BUNDLED_UUIDS, OWN_UUID)
ILLUSTRATIVE = "are illustrative, of the right order of magnitude only."


def input_files(
    uuids: dict[str, str], folder: str = "/data", **changes: Any
) -> list[dict[str, Any]]:
    """An input file for each sample, as a manifest holds them."""
    return [
        {
            "sample": sample,
            "uuid": uuid,
            "path": f"{folder}/{sample}/0.root",
            "missing_optional": [],
            **changes,
        }
        for sample, uuid in uuids.items()
    ]


def demo_config(
    folder: Path, cross_sections: tuple[float | None, ...] = (5000, 230, 18000), **changes: Any
) -> dict[str, Any]:
    """A copy of the config of the demo with changes."""
    samples = []
    for label, name in enumerate(BUNDLED_UUIDS):
        cross_section = cross_sections[label]
        samples.append(
            {"name": name, "label": label, "files": ["a"], "cross_section_pb": cross_section}
        )
    path = write_config(folder, samples=samples, run_dir=str(folder / "run"), **changes)
    return load_config(path).model_dump(mode="json")


def test_the_bundled_files_are_known_by_their_uuids_wherever_they_lie() -> None:
    uuids = {str(uproot.open(path).file.uuid) for path in (ROOT / "samples").glob("*.root")}

    assert uuids == set(BUNDLED)


def test_the_bundled_sample_is_a_technical_one_with_illustrative_cross_sections(
    tmp_path: Path,
) -> None:
    config, files = demo_config(tmp_path), input_files(BUNDLED_UUIDS)

    sample_note = "Simulation, technical sample"
    rates_note = f"Cross-sections {ILLUSTRATIVE}"
    assert event_origin(config, files) == (sample_note, 13.0, rates_note)
    assert plot_labels(config, files) == PlotLabels("", sample_note, 13.0)


@pytest.mark.parametrize(
    ("uuids", "cross_sections", "note"),
    [
        (OWN_UUIDS, (5000, 230, 18000), ""),
        (BUNDLED_UUIDS, (4000, 200, 17000), ""),
        (BUNDLED_UUIDS, (None, None, None), ""),
        (BUNDLED_UUIDS, (5000, 200, 17000), f"Cross-sections of qcd {ILLUSTRATIVE}"),
        (
            BUNDLED_UUIDS | {"qcd": OWN_UUID},
            (5000, 230, 17000),
            f"Cross-sections of ttbar {ILLUSTRATIVE}",
        ),
    ],
)
def test_only_cross_sections_of_bundled_files_are_called_illustrative(
    tmp_path: Path, uuids: dict[str, str], cross_sections: tuple[float | None, ...], note: str
) -> None:
    origin = event_origin(demo_config(tmp_path, cross_sections), input_files(uuids))

    are_bundled = uuids is BUNDLED_UUIDS
    assert origin.rates_note == note
    assert ("technical" in origin.sample_note) == are_bundled
    assert origin.energy_tev == (13.0 if are_bundled else None)


@pytest.mark.parametrize(
    ("tree", "missing", "note"),
    [
        ("", ["weight"], "Simulation"),
        ("Delphes", ["weight"], "Simulation"),
        ("Events", [], "Simulation"),
        ("Events", ["weight"], ""),
    ],
)
def test_events_of_delphes_or_with_weights_are_called_simulation(
    tmp_path: Path, tree: str, missing: list[str], note: str
) -> None:
    config = demo_config(tmp_path, ingest={"tree": tree})
    files = input_files(OWN_UUIDS, missing_optional=missing)

    assert event_origin(config, files) == (note, None, "")


def test_the_notes_of_the_config_prevail(tmp_path: Path) -> None:
    report = {"sample_note": "collision data", "rates_note": "", "energy_tev": 5.02}

    origin = event_origin(demo_config(tmp_path, report=report), input_files(BUNDLED_UUIDS))

    assert origin == ("collision data", 5.02, "")


@pytest.mark.parametrize("states_cross_sections", [False, True])
def test_rates_of_simulated_events_have_the_threshold_of_their_generator(
    tmp_path: Path, states_cross_sections: bool
) -> None:
    simulated = {"qcd": 7.0, "ttbar": 8.0, "wjets": 9.0}
    process_counters = {
        name: {"cross_section_pb": cross_section, "cross_section_error_pb": 0.1}
        for name, cross_section in simulated.items()
    }
    version = publish(tmp_path / "run", "simulate", counters={"processes": process_counters})
    processes = [
        {"name": "qcd", "pythia": ["PhaseSpace:pTHatMin=30"]},
        {"name": "ttbar"},
        {"name": "wjets"},
    ]
    config = demo_config(
        tmp_path,
        (1.0, 2.0, 3.0) if states_cross_sections else tuple(simulated.values()),
        simulate={"processes": processes, "energy_tev": 14},
    )

    origin = event_origin(config, input_files(OWN_UUIDS, folder=str(version.folder)))

    note = (
        "Cross-sections are those of Pythia in leading order, after the filter on leptons. qcd "
        "begins at pTHat = 30 GeV: its rate and its share of the background are lower limits, the "
        "purity is an upper limit."
    )
    assert origin == ("Simulation", 14.0, "" if states_cross_sections else note)
