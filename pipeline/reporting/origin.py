"""What pages and figures say about the origin of the events.

It follows from their files, unless the config says it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ingestion.known_layouts import LAYOUTS, BranchLayout
from models.evaluation.style import PlotLabels
from pipeline.configuration.simulate_section import PRESETS
from pipeline.runs.counters import SimulateCounters
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
#: Remark on the cross-sections of the demo.
_ILLUSTRATIVE: Final = "illustrative, of the right order of magnitude only"
#: Remark on the cross-sections that the stage `simulate` computed.
_LEADING_ORDER: Final = "those of Pythia in leading order, after the filter on leptons"
#: Pythia's setting of the least transverse momentum in the hard process, with its value.
_MIN_PTHAT: Final = re.compile(r"PhaseSpace:pTHatMin\s*=?\s*(\S+)", re.IGNORECASE)
#: Energy of the bundled files [TeV].
_BUNDLED_ENERGY: Final = 13.0
#: Input files as the manifest of `ingest` holds them, each with its `path`, `uuid` and `sample`.
Files = Sequence[Mapping[str, Any]]


class Origin(NamedTuple):
    """What is known of the events."""

    sample_note: str
    """Their kind; empty if it is unknown."""
    energy_tev: float | None
    """Centre-of-mass energy [TeV]; None if it is unknown."""
    rates_note: str
    """Remark on the cross-sections; empty if there is none."""


def event_origin(config: Mapping[str, Any], files: Files) -> Origin:
    """Return what is known of the origin of the events, for pages and plots.

    What the section `report` of the config sets prevails; each null is replaced by what the input
    files say. `config` is JSON content.
    """
    report = config["report"]
    sample_note, energy_tev = report["sample_note"], report["energy_tev"]
    rates_note = report["rates_note"]
    if sample_note is None:
        sample_note = _sample_note(config, files)
    if energy_tev is None:
        energy_tev = _energy_tev(config, files)
    if rates_note is None:
        rates_note = _rates_note(config, files)
    return Origin(sample_note, energy_tev, rates_note)


def plot_labels(config: Mapping[str, Any], files: Files) -> PlotLabels:
    """Return the words on every plot of some events; arguments as `event_origin`."""
    origin = event_origin(config, files)
    return PlotLabels(config["report"]["experiment"], origin.sample_note, origin.energy_tev)


def _are_bundled(files: Files) -> bool:
    """Return whether there are files, and all come with the software."""
    return bool(files) and all(file["uuid"] in BUNDLED for file in files)


def _sample_note(config: Mapping[str, Any], files: Files) -> str:
    """Return the kind of the events: `Simulation`, or an empty text if it does not follow.

    Events are simulated if they come from Delphes, a detector simulation, by the name of the tree,
    or if all files have weights of a generator.
    """
    if _are_bundled(files):
        return "Simulation, technical sample"
    default_tree = config["ingest"]["tree"]
    if not default_tree:
        layout = BranchLayout(config["ingest"].get("layout", BranchLayout.DELPHES))
        default_tree = LAYOUTS[layout].tree
    # Names of the trees in the files: of a sample, else of all, else of the layout of the files.
    trees = {sample["tree"] or default_tree for sample in config["samples"]}
    lacks_weights = any("weight" in file["missing_optional"] for file in files)
    if trees == {"Delphes"} or (files and not lacks_weights):
        return "Simulation"
    return ""


def _energy_tev(config: Mapping[str, Any], files: Files) -> float | None:
    """Return the centre-of-mass energy [TeV]; None unless it is known for all files."""
    if _are_bundled(files):
        return _BUNDLED_ENERGY
    if files and all(_simulated_process(config, file) for file in files):
        energy: float = config["simulate"]["energy_tev"]
        return energy
    return None


def _simulated_process(config: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """Return the process of a file that the stage `simulate` of this run folder made; else empty.

    Such a file lies in a folder with the name of its process, below `<run_dir>/simulate`.
    """
    path = Path(file["path"])
    output = Path(config["run_dir"], "simulate").absolute()
    return path.parent.name if path.absolute().is_relative_to(output) else ""


def _rates_note(config: Mapping[str, Any], files: Files) -> str:
    """Return a remark on the samples with the cross-sections of the demo, or of the generator.

    A sample counts if all its files have one known cross-section, and the config sets this value. A
    lower limit on pTHat, the momentum in the hard process, is named, since it leaves out part of
    the process.
    """
    simulated = _simulated_cross_sections(Path(config["run_dir"]))
    samples_by_source: dict[str, list[str]] = {}
    threshold_notes = []
    for sample in config["samples"]:
        sample_files = [file for file in files if file["sample"] == sample["name"]]
        # Cross-section that belongs to each file [pb]; None if there is none.
        known_values = set()
        for file in sample_files:
            process = _simulated_process(config, file)
            known_values.add(BUNDLED.get(file["uuid"], simulated.get(process)))
        # Other files, or another value in the config: nothing is known of this sample.
        if None in known_values or known_values != {sample["cross_section_pb"]}:
            continue
        process = _simulated_process(config, sample_files[0])
        # Files of the stage `simulate` have a process, those of the demo have none.
        source = _LEADING_ORDER if process else _ILLUSTRATIVE
        samples_by_source.setdefault(source, []).append(sample["name"])
        if min_pthat := _min_pthat(config, process):
            threshold_notes.append(
                f"{sample['name']} begins at pTHat = {min_pthat} GeV: its rate and its share of "
                "the background are lower limits, the purity is an upper limit."
            )
    # One sentence for each source of cross-sections.
    source_notes = []
    for source, names in samples_by_source.items():
        # A remark that holds for all samples names none.
        is_common = len(names) == len(config["samples"])
        samples = "" if is_common else f" of {', '.join(names)}"
        source_notes.append(f"Cross-sections{samples} are {source}.")
    return " ".join([*reversed(source_notes), *threshold_notes])


def _simulated_cross_sections(run_dir: Path) -> dict[str, float]:
    """Return the cross-section [pb] of each process that the stage `simulate` made."""
    version = StageStore(run_dir, "simulate").current()
    if version is None:
        return {}
    processes = version.counters(SimulateCounters).processes
    return {name: process.cross_section_pb for name, process in processes.items()}


def _min_pthat(config: Mapping[str, Any], process_name: str) -> str | None:
    """Return the least pTHat of a process [GeV]: its last setting; None if none sets it."""
    settings = list(PRESETS.get(process_name, ()))
    for process in config["simulate"]["processes"]:
        if process["name"] == process_name:
            settings += process["pythia"]
    for setting in reversed(settings):
        if match := _MIN_PTHAT.match(setting):
            return match[1]
    return None
