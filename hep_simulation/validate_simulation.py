"""`validate-simulation`: compare the simulated events with those of a full simulation, class by class."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    from ingestion.settings import SampleSettings
    from models.evaluation.sample_comparison import WeightedEvents

_SEED: Final = 1
_KINDS: Final = {
    "tracks": ("pt", "eta", "z"),
    "photons": ("et", "eta"),
    "neutral_hadrons": ("et", "eta"),
    "jets": ("pt", "eta", "btag"),
}
_MOST_CANDIDATES: Final = 200_000


def validate_simulation(run_folder: RunFolder, reference: Sequence[str], out: Path) -> list[str]:
    """Compare the samples of the config with reference files; returns lines for the terminal.

    Writes `validation.json` and, for each sample, `<sample>-features.png` and `<sample>-candidates.png`.

    `reference` is `SAMPLE=GLOB` each; the bundled files for samples that are not named.
    """
    from ingestion.settings import SampleSettings
    from models.evaluation.curves import cumulative_distance
    from models.evaluation.sample_comparison import plot_comparison, separation, transfer
    from models.evaluation.style import PlotLabels, save_figure

    config = run_folder.config
    folder = folder_of_option(out, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    named = _named(reference, config)
    ours: list[WeightedEvents] = []
    theirs: list[WeightedEvents] = []
    found: dict[str, Any] = {}
    lines: list[str] = []
    with Bar(run_folder.console, "validate-simulation", "samples") as bar:
        for place, sample in enumerate(config.samples):
            bar(place, len(config.samples), sample.name)
            other = SampleSettings(
                name=sample.name,
                label=0,
                files=named.get(
                    sample.name, [str(bundled_events() / f"{sample.name}_13TeV_PU20_*.root")]
                ),
            )
            (one, *its), (two, *others) = (
                _read(each, config, run_folder.say) for each in (sample, other)
            )
            ours.append(one)
            theirs.append(two)
            area = separation(one, two, seed=_SEED)
            columns, candidates = (
                {name: (first[name], second[name]) for name in first}
                for first, second in zip(its, others, strict=True)
            )
            labels = PlotLabels("", "Simulation", config.simulate.energy_tev, sample.name)
            for words, quantities in (("features", columns), ("candidates", candidates)):
                figure = plot_comparison(quantities, ("this simulation", "reference"), labels)
                save_figure(figure, folder / f"{sample.name}-{words}")
            apart = {
                name: round(cumulative_distance(*one, *two), 4)
                for name, (one, two) in (columns | candidates).items()
            }
            found[sample.name] = {
                "events": len(one.features), "reference_events": len(two.features),
                "auc": area._asdict(), "distances": apart,
            }  # fmt: skip
            lines.append(
                f"{sample.name}: {len(one.features)} against {len(two.features)} events; boosted trees tell them apart "
                f"with AUC {with_error(area.value, area.error, ' +- ')}"
            )
        moved = {
            "reference": transfer(theirs, ours, seed=_SEED),
            "simulation": transfer(ours, theirs, seed=_SEED),
        }
    transferred = {
        name: {key: value._asdict() for key, value in each.items()} for name, each in moved.items()
    }
    content = {"samples": found, "transfer": transferred}
    (folder / "validation.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return [*lines, *map(_about_transfer, moved, moved.values()), f"figures and numbers: {folder}"]


def _about_transfer(tested: str, moved: dict[str, Any]) -> str:
    own_text, other_text, loss_text = (
        with_error(each.value, each.error, " +- ") for each in moved.values()
    )
    return (
        f"tested on the {tested}: a network trained on it reaches {own_text}, one trained on the other {other_text}; "
        f"loss {loss_text}"
    )


def _named(reference: Sequence[str], config: Config) -> dict[str, list[str]]:
    names = [sample.name for sample in config.samples]
    found: dict[str, list[str]] = {}
    for each in reference:
        name, is_named, pattern = each.partition("=")
        if not is_named or name not in names:
            raise ConfigError(
                f"--reference {each}: give SAMPLE=GLOB with a sample of the config.{nearest(name, names)}"
            )
        found.setdefault(name, []).append(expand_path(pattern))
    return found


def _read(
    sample: SampleSettings, config: Config, say: Callable[[str], None]
) -> tuple[WeightedEvents, dict[str, Any], dict[str, Any]]:
    """The selected events; their high-level features and numbers of their candidates by name, with weights."""
    from features.columns import hlf_names
    from ingestion.files import find_input_files
    from models.evaluation.sample_comparison import WeightedEvents
    from pipeline.scoring import read_blocks

    hlf, weights, tables = [], [], []
    found = find_input_files([sample], config.ingest, say, strict=True)
    for bad in found.bad:
        say(f"skipped: {bad.message}")
    for _, kept, block in read_blocks(found.infos, config.ingest, config.features):
        hlf.append(block.hlf)
        chosen = kept.table.take(pa.array(block.selected))
        weights.append(chosen["weight"].to_numpy())
        tables.append(chosen.select(list(_KINDS)))
    events = WeightedEvents(np.concatenate(hlf).astype(np.float64), np.concatenate(weights))
    features = {
        name: (events.features[:, place], events.weights) for place, name in enumerate(hlf_names())
    }
    return events, features, _candidates(pa.concat_tables(tables), events.weights)


def _candidates(table: pa.Table, weights: Any) -> dict[str, Any]:
    """Multiplicities, and values of all candidates of some kinds, each with weights."""
    found: dict[str, Any] = {}
    for kind, fields in _KINDS.items():
        lists = table[kind].combine_chunks()
        counts = np.diff(lists.offsets.to_numpy())
        found[f"number of {kind.replace('_', ' ')}"] = (counts.astype(np.float64), weights)
        flat, of_each = lists.flatten(), np.repeat(weights, counts)
        step = max(1, len(flat) // _MOST_CANDIDATES)
        for field in fields:
            values = flat.field(field).to_numpy().astype(np.float64)[::step]
            name = f"{kind.replace('_', ' ')} {field}"
            if field in {"pt", "et"}:
                values, name = np.log10(values), f"log10 {name}"
            found[name] = (values, of_each[::step])
    return found
