"""Fills the HTML template from the manifests of a run. All text from inputs is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from models.evaluation.intervals import Efficiency
from models.evaluation.own_figures import OWN_FIGURES
from models.evaluation.rounding import inverse_with_interval, with_error
from pipeline.configuration.shell_sections import USUAL_LUMINOSITY
from pipeline.configuration.yaml_text import write_yaml
from pipeline.reporting import summary
from pipeline.reporting.card import CAPTIONS
from pipeline.reporting.cutflow import (
    applied_cuts,
    cutflow,
    labels_by_sample,
    selection,
    shows_weights,
)
from pipeline.reporting.page_warnings import warnings
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.manifest import StageManifest
from pipeline.runs.version import Version

_HERE: Final = Path(__file__).parent
#: Captions of figures that show all models together, by the name of the file.
_SIDE_BY_SIDE: Final = {
    "background_efficiency": (
        "ROC curves on the test split: how much background passes (down is better) when a share of "
        "the signal is kept, by the score that is best against the background of the panel. Bars "
        "at the measurable working points, and bands of the ratios, are intervals of one standard "
        "deviation from the bootstrap; the ratios' errors are paired. Where no background event "
        "passes there is no line, and at a working point an arrow begins at the limit. Grey: not "
        "measurable, since effectively fewer than 10 signal events fail."
    ),
    "rejection": "The same as background rejection, 1 / background efficiency (up is better).",
    "importance": (
        "Permutation importance: area under the signal's ROC curve that is lost when the values of "
        "one feature are shuffled among the test events; bars are errors of the events and of five "
        "shuffles."
    ),
}
#: Captions of figures of one model, by the name of the file.
_OF_MODEL: Final = {
    "learning_curve": (
        "Loss of the training and validation splits; the model of the lowest validation loss is "
        "kept."
    ),
    "confusion": "Confusion matrix on the test split, as shares of the true class and as events.",
    "scores": (
        "Outputs by true class, training split (lines) and test split (points); p is of a "
        "Kolmogorov-Smirnov test of the two."
    ),
    "discriminant": (
        "Events, those of the luminosity where rates are known, against log10 of s / b, on which "
        "working points cut; the outer bins hold all beyond. Below: significance of all events "
        "above each cut, where effectively 10 or more background events of the test split are "
        "left. Band: statistics of the test events."
    ),
    "data_score": (
        "Data on the stacked simulation of the test split, against the score; blinded above "
        "`evaluate.blind_above`, unless `evaluate.unblind` is set. Outer bins hold all beyond; the "
        "chi-square has the statistical errors of both."
    ),
    "data_inputs": (
        "High-level features of data and simulation; if scores are blinded, of the events below "
        "the cuts of all models."
    ),
    "calibration": (
        "Calibration: share of true events of a class among those that were given a probability, "
        "classes counting alike. Beside the mean distance stands what a perfect model with these "
        "predictions shows on average, and the probability p that it shows at least the observed "
        "distance."
    ),
    "efficiencies": (
        "Efficiency of each class at the first measurable working point against kinematics; the "
        "first and last bin hold what lies beyond."
    ),
    "independence": (
        "Efficiency of the working points within a class against the columns of "
        "`train.decorrelate`, in bins of nearly equal numbers of events; the last bin holds all "
        "beyond. p is of a chi-square test of a flat efficiency. dCorr² is the squared distance "
        "correlation of score and column, of at most 2,000 events."
    ),
}
#: Captions of figures of the grid search, by the name of the file.
_GRIDSEARCH: Final = {
    "pareto": (
        "Cross-validated accuracy against the number of parameters and the time of one event, and "
        "what is ahead of all cheaper settings beyond noise. Bars: errors of the time, and of the "
        "difference to the best."
    ),
    "speed_up": (
        "Speed-up of the search on several task slots: expected from the times of the trainings, "
        "and measured."
    ),
}
#: Sections of the config that each stage uses.
_SECTIONS_OF_STAGES: Final = {
    "ingest": ("samples", "ingest"),
    "features": ("classes", "features"),
    "train": ("model", "train", "train_by_network"),
    "evaluate": ("evaluate",),
    "gridsearch": ("gridsearch",),
}


def render(
    versions: Mapping[str, Version],
    report: dict[str, Any],
    card: Path,
    *,
    comparisons: Mapping[str, Any] | None = None,
) -> str:
    """Return the report as one HTML page, with all figures inside.

    The template `report.html` gets numbers from the manifests, the records that each stage writes
    about its version, and figures from the folders of the versions.

    Args:
        versions: The versions in use of all stages that have run.
        report: The section `report` of the config, with what the files say in the place of null.
        card: Folder of the figures of the dataset card.
        comparisons: Tables of the comparisons of optimisers, by study.
    """
    # Points of the ROC curves by background and model, for the script of the page.
    curves = json.loads((versions["evaluate"].folder / "curves.json").read_text(encoding="utf-8"))
    return _template().render(
        **_content(versions, report),
        **_figures(versions),
        card=_embedded_figures(card, CAPTIONS),
        comparisons=comparisons or {},
        curves=curves,
    )


def _template() -> Template:
    """Load the template of the page with its filters, the functions that it formats numbers with.

    A name that the template uses and nobody gives is an error.
    """
    # Every file is escaped: names of samples and paths come from users and files.
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_keep_units_with_numbers,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    environment.filters |= {
        "estimate": summary.estimate,
        "event_count": summary.event_count,
        "microseconds": _microseconds,
        "powers": summary.powers,
        "rate": summary.rate,
        "rejection": inverse_with_interval,
        "share": _share,
        "independence_rows": summary.independence_rows,
        "shifts": summary.shifts,
        "spread": summary.spread,
        "thousands": "{:,}".format,
        "with_error": with_error,
        "with_powers": summary.with_powers,
    }
    return environment.get_template("report.html")


def _keep_units_with_numbers(output: Any) -> Any:
    """Return an output of the template in which no line ends between number and unit."""
    # Markup, and text that is escaped already, stay as they are.
    if isinstance(output, str) and not isinstance(output, Markup):
        return summary.tight(output)
    return output


def _microseconds(time: float) -> str:
    """Return a time, given in microseconds, with its unit."""
    return f"{time:,.0f} µs" if time >= 1000 else f"{time:.3g} µs"


def _share(interval: Any) -> str:
    """Return an efficiency or purity in per cent; the interval is an `Efficiency` or its JSON."""
    return summary.share(interval._asdict() if isinstance(interval, Efficiency) else interval)


def _content(versions: Mapping[str, Version], report: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of the template, except figures.

    The settings of `features` and `report`, and the counters of three stages, become variables
    under their own names. Later entries replace earlier ones of the same name.
    """
    manifests = {stage: version.manifest for stage, version in versions.items()}
    counters = {stage: manifest.counters for stage, manifest in manifests.items()}
    metrics = counters["evaluate"]
    runs = metrics["runs"]
    config = {**_used_config(manifests), "report": report}
    # The cutflow shows the cuts that were applied, not those that the files did not allow.
    cuts = applied_cuts(config["features"], manifests["ingest"].inputs)
    config_of_cuts = config | {"features": cuts}
    class_by_sample = {
        sample: config["classes"][label]
        for sample, label in labels_by_sample(config["samples"]).items()
    }
    ingested = versions["ingest"].counters(IngestCounters)
    steps = cutflow(ingested, versions["features"].counters(FeaturesCounters), config_of_cuts)
    # A dictionary keeps the kinds of all models in their order, without repetition.
    particle_kinds: dict[str, None] = {}
    for run in runs.values():
        particle_kinds |= dict.fromkeys(run.get("importance_of_kinds", {}))
    return {
        **report,
        **config["features"],
        **counters["features"],
        **counters["train"],
        **metrics,
        "selection": selection(config_of_cuts),
        "warnings": warnings(versions),
        "samples": list(class_by_sample),
        "classes": config["classes"],
        "labels": class_by_sample,
        "cutflow": steps,
        "weighted": shows_weights(steps),
        "bad_files": counters["ingest"]["bad_files"],
        "gridsearch": counters.get("gridsearch"),
        "luminosity": config["evaluate"]["luminosity"] or USUAL_LUMINOSITY,
        "metrics_luminosity": metrics.get("luminosity"),
        "events_before": metrics.get("events_before"),
        "uncertainty": config["evaluate"].get("background_uncertainty", 0.0),
        "about_data": summary.about_data(metrics),
        "answer": summary.answer(metrics),
        "shown_point": summary.point_to_show(runs),
        "kinds": list(particle_kinds),
        "unmeasurable": summary.unmeasurable(metrics),
        # Highest signal efficiency that can be measured, by the first model.
        "measurable_to": next(iter(runs.values()))["measurable_to"],
        "export": counters["export"]["networks"] if "export" in counters else {},
        "files": manifests["ingest"].inputs,
        "config_yaml": write_yaml(config),
        "versions": versions,
        # Date and code of the evaluation.
        "made": manifests["evaluate"],
    }


def _used_config(manifests: Mapping[str, StageManifest]) -> dict[str, Any]:
    """Return the sections of the config, each from the manifest of the stage that used it.

    Later commands may have used another config.
    """
    config = {}
    for stage, sections in _SECTIONS_OF_STAGES.items():
        if stage in manifests:
            for section in sections:
                config[section] = manifests[stage].config[section]
    return config


def _figures(versions: Mapping[str, Version]) -> dict[str, Any]:
    """Return the figures of the evaluation, of each model, and of the grid search if any.

    `plots` holds those that show all models, by name, None where one does not exist. `run_plots`
    holds a list for each model.
    """
    evaluated = versions["evaluate"]
    comparisons = _embedded_figures(evaluated.folder / "plots", _SIDE_BY_SIDE)
    captions = _OF_MODEL | {name: figure.caption for name, figure in OWN_FIGURES.items()}
    figures_of_runs = {}
    for model in evaluated.manifest.counters["runs"]:
        figures = _embedded_figures(evaluated.folder / model / "plots", captions)
        figures_of_runs[model] = list(figures.values())
    all_figures: dict[str, Any] = {
        "plots": dict.fromkeys(_SIDE_BY_SIDE) | comparisons,
        "run_plots": figures_of_runs,
    }
    if "gridsearch" in versions:
        folder = versions["gridsearch"].folder / "plots"
        all_figures["gridsearch_plots"] = _embedded_figures(folder, _GRIDSEARCH)
    return all_figures


def _embedded_figures(folder: Path, captions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the existing figures of a folder by name, each with its caption and its PNG.

    The PNG is a data URL, which holds the whole image as text; so the page needs no other files.
    """
    figures = {}
    for name, caption in captions.items():
        path = folder / f"{name}.png"
        if path.exists():
            png = base64.b64encode(path.read_bytes()).decode()
            figures[name] = {"caption": caption, "png": f"data:image/png;base64,{png}"}
    return figures
