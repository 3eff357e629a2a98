"""`validate-simulation`: compares simulated events with those of a full simulation, by class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from hep_core.paths import expand_path
from models.evaluation.rounding import with_error
from pipeline.config import Config
from pipeline.configuration.paths import bundled_events, folder_of_option
from pipeline.errors import ConfigError, nearest
from pipeline.run_folder import RunFolder
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ingestion.settings import SampleSettings
    from models.evaluation.sample_comparison import WeightedEvents

    #: Numbers and their weights.
    Weighted = tuple[NDArray[np.float64], NDArray[np.float64]]

#: Seed of the boosted trees and networks.
_SEED: Final = 1
#: Fields of candidates that are compared, by collection.
_CANDIDATE_FIELDS: Final = {
    "tracks": ("pt", "eta", "z"),
    "photons": ("et", "eta"),
    "neutral_hadrons": ("et", "eta"),
    "jets": ("pt", "eta", "btag"),
}
#: Of a collection with more candidates about this number is compared, evenly chosen.
_MAX_CANDIDATES: Final = 200_000


class _Sample(NamedTuple):
    """The selected events of a sample, and quantities to compare, with weights, by name."""

    events: WeightedEvents
    features: dict[str, Weighted]
    candidates: dict[str, Weighted]


def validate_simulation(run_folder: RunFolder, reference: Sequence[str], out: Path) -> list[str]:
    """Compare the samples of the config with reference files; returns lines for the terminal.

    For each sample it trains boosted trees to tell simulated from reference events, and measures
    the distance of each quantity. Networks trained on one kind of events are then tested on the
    other. It writes `validation.json` and, for each sample, `<sample>-features.png` and
    `<sample>-candidates.png` to the folder `out`.

    Each `reference` is `SAMPLE=GLOB`; samples that are not named have the bundled files.
    """
    from ingestion.settings import SampleSettings
    from models.evaluation.sample_comparison import separation, transfer

    config = run_folder.config
    folder = folder_of_option(out, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    patterns = _reference_patterns(reference, config)
    simulated_classes: list[WeightedEvents] = []
    reference_classes: list[WeightedEvents] = []
    results: dict[str, Any] = {}
    lines: list[str] = []
    with Bar(run_folder.console, "validate-simulation", "samples") as bar:
        for sample_index, sample in enumerate(config.samples):
            bar(sample_index, len(config.samples), sample.name)
            # The label has no meaning here, since samples are compared one by one.
            bundled = str(bundled_events() / f"{sample.name}_13TeV_PU20_*.root")
            files = patterns.get(sample.name, [bundled])
            reference_settings = SampleSettings(name=sample.name, label=0, files=files)
            simulated_sample = _read(sample, config, run_folder.say)
            reference_sample = _read(reference_settings, config, run_folder.say)
            simulated_classes.append(simulated_sample.events)
            reference_classes.append(reference_sample.events)

            area = separation(simulated_sample.events, reference_sample.events, seed=_SEED)
            num_events = len(simulated_sample.events.features)
            num_reference_events = len(reference_sample.events.features)
            results[sample.name] = {
                "events": num_events,
                "reference_events": num_reference_events,
                "auc": area._asdict(),
                "distances": _distances(simulated_sample, reference_sample),
            }
            _plot(simulated_sample, reference_sample, config, folder / sample.name)
            area_text = with_error(area.value, area.error, " +- ")
            lines.append(
                f"{sample.name}: {num_events} against {num_reference_events} events; boosted trees "
                f"tell them apart with AUC {area_text}"
            )
        # Each network is trained on one kind of events, with the samples as classes.
        transfers = {
            "reference": transfer(reference_classes, simulated_classes, seed=_SEED),
            "simulation": transfer(simulated_classes, reference_classes, seed=_SEED),
        }
    transfer_results: dict[str, Any] = {}
    for tested, estimates in transfers.items():
        transfer_results[tested] = {name: value._asdict() for name, value in estimates.items()}
        lines.append(_transfer_line(tested, estimates))
    validation = {"samples": results, "transfer": transfer_results}
    text = json.dumps(validation, indent=1)
    (folder / "validation.json").write_text(text, encoding="utf-8")
    return [*lines, f"figures and numbers: {folder}"]


def _reference_patterns(reference: Sequence[str], config: Config) -> dict[str, list[str]]:
    """Patterns of files by sample, from options `SAMPLE=GLOB`; a sample may have several."""
    names = [sample.name for sample in config.samples]
    patterns: dict[str, list[str]] = {}
    for option in reference:
        name, equals_sign, pattern = option.partition("=")
        if not equals_sign or name not in names:
            raise ConfigError(
                f"--reference {option}: give SAMPLE=GLOB with a sample of the config."
                f"{nearest(name, names)}"
            )
        patterns.setdefault(name, []).append(expand_path(pattern))
    return patterns


def _distances(simulated: _Sample, reference: _Sample) -> dict[str, float]:
    """Distance of the cumulative distributions of each quantity, between simulation and reference.

    The result is by the name of the quantity, rounded to four decimals.
    """
    from models.evaluation.curves import cumulative_distance

    simulated_quantities = simulated.features | simulated.candidates
    reference_quantities = reference.features | reference.candidates
    distances = {}
    for name, weighted in simulated_quantities.items():
        distance = cumulative_distance(*weighted, *reference_quantities[name])
        distances[name] = round(distance, 4)
    return distances


def _plot(simulated: _Sample, reference: _Sample, config: Config, path: Path) -> None:
    """Draw the features and the candidates of a sample; writes `<path>-features`, `-candidates`."""
    from models.evaluation.sample_comparison import plot_comparison
    from models.evaluation.style import PlotLabels, save_figure

    labels = PlotLabels("", "Simulation", config.simulate.energy_tev, path.name)
    names = ("this simulation", "reference")
    features = _pairs(simulated.features, reference.features)
    save_figure(plot_comparison(features, names, labels), Path(f"{path}-features"))
    candidates = _pairs(simulated.candidates, reference.candidates)
    save_figure(plot_comparison(candidates, names, labels), Path(f"{path}-candidates"))


def _pairs(
    simulated: Mapping[str, Weighted], reference: Mapping[str, Weighted]
) -> dict[str, tuple[Weighted, Weighted]]:
    """Simulated and reference numbers of each quantity, by name."""
    return {name: (weighted, reference[name]) for name, weighted in simulated.items()}


def _transfer_line(tested: str, estimates: Mapping[str, Any]) -> str:
    """The line about networks that are tested on one kind of events, `tested`."""
    texts = {}
    for name, estimate in estimates.items():
        texts[name] = with_error(estimate.value, estimate.error, " +- ")
    return (
        f"tested on the {tested}: a network trained on it reaches {texts['own']}, "
        f"one trained on the other {texts['other']}; loss {texts['loss']}"
    )


def _read(sample: SampleSettings, config: Config, print_note: Callable[[str], None]) -> _Sample:
    """Read and select the events of a sample, and compute their features.

    `print_note` gets a line about each skipped file.
    """
    from features.columns import hlf_names
    from ingestion.files import find_input_files
    from models.evaluation.sample_comparison import WeightedEvents
    from pipeline.scoring import read_blocks

    hlf_blocks = []
    tables = []
    files = find_input_files([sample], config.ingest, print_note, strict=True)
    for bad_file in files.bad:
        print_note(f"skipped: {bad_file.message}")
    columns = [*_CANDIDATE_FIELDS, "weight"]
    for _, selection, block in read_blocks(files.infos, config.ingest, config.features):
        hlf_blocks.append(block.hlf)
        selected = selection.table.take(pa.array(block.selected))
        tables.append(selected.select(columns))
    table = pa.concat_tables(tables)
    weights = table["weight"].to_numpy()
    hlf = np.concatenate(hlf_blocks).astype(np.float64)
    features = {name: (hlf[:, column], weights) for column, name in enumerate(hlf_names())}
    candidates = _candidate_quantities(table, weights)
    return _Sample(WeightedEvents(hlf, weights), features, candidates)


def _candidate_quantities(
    table: pa.Table, event_weights: NDArray[np.float64]
) -> dict[str, Weighted]:
    """Numbers of candidates of each event, and fields of all candidates, by name, with weights.

    A candidate has the weight of its event, (num_events,). Momenta are compared as logarithms.
    """
    quantities: dict[str, Weighted] = {}
    for collection, fields in _CANDIDATE_FIELDS.items():
        title = collection.replace("_", " ")
        lists = table[collection].combine_chunks()
        counts = np.diff(lists.offsets.to_numpy())
        quantities[f"number of {title}"] = (counts.astype(np.float64), event_weights)
        candidates = lists.flatten()
        # Every `step`-th candidate is compared.
        step = max(1, len(candidates) // _MAX_CANDIDATES)
        weights = np.repeat(event_weights, counts)[::step]
        for field in fields:
            all_numbers = candidates.field(field).to_numpy()
            numbers = all_numbers.astype(np.float64)[::step]
            if field in {"pt", "et"}:
                quantities[f"log10 {title} {field}"] = (np.log10(numbers), weights)
            else:
                quantities[f"{title} {field}"] = (numbers, weights)
    return quantities
