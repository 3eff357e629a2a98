"""What is true of the bundled sample was said of other files too."""

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

OWN = "00000000-0000-0000-0000-000000000000"
UUIDS = dict(zip(("qcd", "ttbar", "wjets"), list(BUNDLED)[::2], strict=True))
ILLUSTRATIVE = "are illustrative, of the right order of magnitude only."


def files_of(uuids: dict[str, str], **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "sample": name,
            "uuid": uuid,
            "path": f"/data/{name}.root",
            "missing_optional": [],
            **changes,
        }
        for name, uuid in uuids.items()
    ]


def config_of(
    folder: Path, sizes: tuple[float | None, ...] = (5000, 230, 18000), **changes: Any
) -> dict[str, Any]:
    """The config of the demo, as a copy with changes has it."""
    samples = [
        {"name": name, "label": label, "files": ["a"], "cross_section_pb": size}
        for label, (name, size) in enumerate(zip(UUIDS, sizes, strict=True))
    ]
    return load_config(
        write_config(folder, samples=samples, run_dir=str(folder / "run"), **changes)
    ).model_dump(mode="json")


def test_the_bundled_files_are_known_by_their_uuids_wherever_they_lie() -> None:
    actual = {str(uproot.open(path).file.uuid) for path in (ROOT / "samples").glob("*.root")}
    assert actual == set(BUNDLED)


def test_the_bundled_sample_is_a_technical_one_with_illustrative_cross_sections(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path)
    assert event_origin(config, files_of(UUIDS)) == (
        "Simulation, technical sample",
        13.0,
        f"Cross-sections {ILLUSTRATIVE}",
    )
    assert plot_labels(config, files_of(UUIDS)) == PlotLabels(
        "", "Simulation, technical sample", 13.0
    )


@pytest.mark.parametrize(
    ("uuids", "sizes", "note"),
    [
        (dict.fromkeys(UUIDS, OWN), (5000, 230, 18000), ""),
        (UUIDS, (4000, 200, 17000), ""),
        (UUIDS, (None, None, None), ""),
        (UUIDS, (5000, 200, 17000), f"Cross-sections of qcd {ILLUSTRATIVE}"),
        (UUIDS | {"qcd": OWN}, (5000, 230, 17000), f"Cross-sections of ttbar {ILLUSTRATIVE}"),
    ],
)
def test_cross_sections_of_ones_own_were_called_illustrative(
    tmp_path: Path, uuids: dict[str, str], sizes: tuple[float | None, ...], note: str
) -> None:
    actual = event_origin(config_of(tmp_path, sizes), files_of(uuids))
    assert actual.rates_note == note
    assert ("technical" in actual.sample_note) == (uuids is UUIDS)
    assert actual.energy_tev == (13.0 if uuids is UUIDS else None)


@pytest.mark.parametrize(
    ("tree", "missing", "note"),
    [
        ("", ["weight"], "Simulation"),
        ("Delphes", ["weight"], "Simulation"),
        ("Events", [], "Simulation"),
        ("Events", ["weight"], ""),
    ],
)
def test_events_without_weights_of_a_generator_were_called_simulation(
    tmp_path: Path, tree: str, missing: list[str], note: str
) -> None:
    files = files_of(dict.fromkeys(UUIDS, OWN), missing_optional=missing)
    assert event_origin(config_of(tmp_path, ingest={"tree": tree}), files) == (note, None, "")


def test_the_words_of_the_config_prevail(tmp_path: Path) -> None:
    output = {"sample_note": "collision data", "rates_note": "", "energy_tev": 5.02}
    assert event_origin(config_of(tmp_path, report=output), files_of(UUIDS)) == (
        "collision data",
        5.02,
        "",
    )


@pytest.mark.parametrize("own_value", [False, True])
def test_rates_of_simulated_events_have_the_threshold_of_their_generator(
    tmp_path: Path, own_value: bool
) -> None:
    sizes = {"qcd": 7.0, "ttbar": 8.0, "wjets": 9.0}
    counters = {
        "processes": {
            name: {"cross_section_pb": size, "cross_section_error_pb": 0.1}
            for name, size in sizes.items()
        }
    }
    version = publish(tmp_path / "run", "simulate", counters=counters)
    processes = [
        {"name": "qcd", "pythia": ["PhaseSpace:pTHatMin=30"]},
        {"name": "ttbar"},
        {"name": "wjets"},
    ]
    config = config_of(
        tmp_path,
        (1.0, 2.0, 3.0) if own_value else tuple(sizes.values()),
        simulate={"processes": processes, "energy_tev": 14},
    )
    files = [
        {**input_file, "path": f"{version.folder}/{input_file['sample']}/0.root"}
        for input_file in files_of(dict.fromkeys(UUIDS, OWN))
    ]
    actual = event_origin(config, files)
    assert actual[:2] == ("Simulation", 14.0)
    note = (
        "Cross-sections are those of Pythia in leading order, after the filter on leptons. qcd begins at pTHat = 30 "
        "GeV: its rate and its share of the background are lower limits, the purity is an upper limit."
    )
    assert actual.rates_note == ("" if own_value else note)
