"""What pages and figures say about the origin of the events; it follows from their files, unless the config says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ingestion.known_layouts import LAYOUTS, BranchLayout
from models.evaluation.style import PlotLabels
from pipeline.configuration.simulate_section import PRESETS
from pipeline.runs.store import StageStore

#: The files of `samples/` by UUID, with the cross-sections of the demo [pb].
BUNDLED: Final = {
    "b30c6469-5c92-49e1-9ddd-da82edf0fa11": 5000.0,
    "86169505-fd35-4e96-855d-b67c8e4ee8a5": 5000.0,
    "4320b7b3-c85c-463c-b2cf-109a77da02a4": 230.0,
    "3abf023b-f110-435f-9998-f3e6171b3aaf": 230.0,
    "5e4c6d27-3e2e-47ee-9ded-c7ec6d46d93a": 18000.0,
    "0b3ff546-2ded-472f-a6c7-a2cb1e30c104": 18000.0,
}
_OF_BUNDLED: Final = "illustrative, of the right order of magnitude only"
_OF_PYTHIA: Final = "those of Pythia in leading order, after the filter on leptons"
_THRESHOLD: Final = re.compile(r"PhaseSpace:pTHatMin\s*=?\s*(\S+)", re.IGNORECASE)
Files = Sequence[Mapping[str, Any]]


class Origin(NamedTuple):
    """What is known of the events."""

    sample_note: str
    """Their kind; empty if it is unknown."""
    energy_tev: float | None
    """Centre-of-mass energy; None if it is unknown."""
    rates_note: str
    """Remark on the cross-sections; empty if there is none."""


def origin_of(config: Mapping[str, Any], files: Files) -> Origin:
    """What a config and the input files say about the events; the section `report` prevails.

    Events with weights of a generator, and those of Delphes, are simulated.
    """
    report = config["report"]
    is_bundled = bool(files) and all(file["uuid"] in BUNDLED for file in files)
    is_made = bool(files) and all(_process(config, file) for file in files)
    has_generator = files and not any("weight" in file["missing_optional"] for file in files)
    layout = LAYOUTS[BranchLayout(config["ingest"].get("layout", BranchLayout.DELPHES))]
    trees = {
        sample["tree"] or config["ingest"]["tree"] or layout.tree for sample in config["samples"]
    }
    note = "Simulation" if has_generator or trees == {"Delphes"} else ""
    if is_bundled:
        note = "Simulation, technical sample"
    energy = 13.0 if is_bundled else config["simulate"]["energy_tev"] if is_made else None
    return Origin(
        note if report["sample_note"] is None else report["sample_note"],
        energy if report["energy_tev"] is None else report["energy_tev"],
        _about_cross_sections(config, files)
        if report["rates_note"] is None
        else report["rates_note"],
    )


def plot_labels(config: Mapping[str, Any], files: Files) -> PlotLabels:
    """The words on every plot of some events; arguments as `origin_of`."""
    origin = origin_of(config, files)
    return PlotLabels(config["report"]["experiment"], origin.sample_note, origin.energy_tev)


def _process(config: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """The process of a file that the stage `simulate` of the run folder made; empty for other files."""
    made = (
        Path(file["path"]).absolute().is_relative_to(Path(config["run_dir"], "simulate").absolute())
    )
    return Path(file["path"]).parent.name if made else ""


def _about_cross_sections(config: Mapping[str, Any], files: Files) -> str:
    """A remark on the samples with the cross-sections of the demo, or of the generator."""
    version = StageStore(Path(config["run_dir"]), "simulate").current()
    processes = version.manifest["counters"]["processes"] if version else {}
    made = {name: each["cross_section_pb"] for name, each in processes.items()}
    names: dict[str, list[str]] = {}
    notes = []
    for sample in config["samples"]:
        own = [file for file in files if file["sample"] == sample["name"]]
        known = {BUNDLED.get(file["uuid"], made.get(_process(config, file))) for file in own}
        if known != {sample["cross_section_pb"]} or None in known:
            continue
        process = _process(config, own[0])
        names.setdefault(_OF_PYTHIA if process else _OF_BUNDLED, []).append(sample["name"])
        notes += [
            f"{sample['name']} begins at pTHat = {each} GeV: its rate and its share of the background are lower "
            f"limits, the purity is an upper limit."
            for each in _thresholds(config, process)
        ]
    for words, given in names.items():
        of = "" if len(given) == len(config["samples"]) else f" of {', '.join(given)}"
        notes.insert(0, f"Cross-sections{of} are {words}.")
    return " ".join(notes)


def _thresholds(config: Mapping[str, Any], process: str) -> list[str]:
    """The least pTHat of a process [GeV], if it has one; the last setting prevails."""
    own = [
        line
        for each in config["simulate"]["processes"]
        if each["name"] == process
        for line in each["pythia"]
    ]
    return [
        found[1] for line in (*PRESETS.get(process, ()), *own) if (found := _THRESHOLD.match(line))
    ][-1:]
