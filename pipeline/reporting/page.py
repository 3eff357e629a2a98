"""Fills the HTML template from the manifests of a run. All text from inputs is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ingestion.notes import notes
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
    uncertain_mixtures,
)
from pipeline.reporting.origin import BUNDLED
from pipeline.runs.store import Version

_HERE: Final = Path(__file__).parent
#: With fewer test events than this, the report warns.
_FEW_EVENTS: Final = 1000
#: Probability below which the report says that two samples differ.
_DIFFERENT: Final = 0.01
_SIDE_BY_SIDE: Final = {
    "background_efficiency": "ROC curves on the test split: how much background passes (down is better) when a share "
    "of the signal is kept, by the score that is best against the background of the panel. Bars at the measurable "
    "working points, and bands of the ratios, are intervals of one standard deviation from the bootstrap; "
    "the ratios' errors are paired. Where no background event passes there is no line, and at a working point an "
    "arrow begins at the limit. Grey: not measurable, since "
    "effectively fewer than 10 signal events fail.",
    "rejection": "The same as background rejection, 1 / background efficiency (up is better).",
    "importance": "Permutation importance: area under the signal's ROC curve that is lost when the values of one "
    "feature are shuffled among the test events; bars are errors of the events and of five shuffles.",
}
_OF_MODEL: Final = {
    "learning_curve": "Loss of the training and validation splits; the model of the lowest validation loss is kept.",
    "confusion": "Confusion matrix on the test split, as shares of the true class and as events.",
    "scores": "Outputs by true class, training split (lines) and test split (points); p is of a Kolmogorov-Smirnov "
    "test of the two.",
    "discriminant": "Events, those of the luminosity where rates are known, against log10 of s / b, on which working "
    "points cut; the outer bins hold all beyond. Below: significance of all events above each cut, where effectively "
    "10 or more background events of the test split are left. Band: statistics of the test events.",
    "data_score": "Data on the stacked simulation of the test split, against the score; blinded above "
    "`evaluate.blind_above`, unless `evaluate.unblind` is set. Outer bins hold all beyond; the chi-square has the "
    "statistical errors of both.",
    "data_inputs": "High-level features of data and simulation; if scores are blinded, of the events below "
    "the cuts of all models.",
    "calibration": "Calibration: share of true events of a class among those that were given a probability, classes "
    "counting alike. Beside the mean distance stands what a perfect model with these predictions shows on average, and "
    "the probability p that it shows at least the observed distance.",
    "efficiencies": "Efficiency of each class at the first measurable working point against kinematics; the first and "
    "last bin hold what lies beyond.",
}
_GRIDSEARCH: Final = {
    "pareto": "Cross-validated accuracy against the number of parameters and the time of one event, and what is "
    "ahead of all cheaper settings beyond noise. Bars: errors of the time, and of the difference to the best.",
    "speed_up": "Speed-up of the search on several task slots: expected from the times of the trainings, and measured.",
}


def render(
    versions: Mapping[str, Version],
    report: dict[str, Any],
    card: Path,
    *,
    comparisons: Mapping[str, Any] | None = None,
) -> str:
    """The report as HTML."""
    # Every file is escaped: names of samples and paths come from users and files.
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, finalize=_tight
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    plain = (
        summary.estimate,
        summary.number,
        summary.powers,
        summary.rate,
        summary.shifts,
        summary.spread,
        summary.with_powers,
    )
    environment.filters |= {each.__name__: each for each in plain}
    environment.filters |= {"rejection": inverse_with_interval, "with_error": with_error}
    environment.filters["share"] = lambda each: summary.share(
        each._asdict() if isinstance(each, Efficiency) else each
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["microseconds"] = lambda each: (
        f"{each:,.0f} µs" if each >= 1000 else f"{each:.3g} µs"
    )
    # By background and model, for the script of the page.
    curves = json.loads((versions["evaluate"].folder / "curves.json").read_text(encoding="utf-8"))
    return environment.get_template("report.html").render(
        **_content(versions, report),
        **_pictures(versions),
        card=_plots(card, CAPTIONS),
        comparisons=comparisons or {},
        curves=curves,
    )


def _tight(each: Any) -> Any:
    """Text of the page with numbers beside their units; markup, and what is escaped already, stay as they are."""
    return summary.tight(each) if isinstance(each, str) and not isinstance(each, Markup) else each


#: The stages that use a section of the config.
_SECTIONS: Final = {
    "ingest": ("samples", "ingest"),
    "features": ("classes", "features"),
    "train": ("model", "train", "train_by_network"),
    "evaluate": ("evaluate",),
    "gridsearch": ("gridsearch",),
}


def _content(versions: Mapping[str, Version], report: dict[str, Any]) -> dict[str, Any]:
    """The content of the page without pictures."""
    made = {name: version.manifest for name, version in versions.items()}
    counters = {name: each.get("counters", {}) for name, each in made.items()}
    # Each section of the config comes from the stage that used it: later commands may have used another config.
    used = {
        key: made[name]["config"][key]
        for name, keys in _SECTIONS.items()
        if name in made
        for key in keys
    }
    config = {**used, "report": report}
    runs = counters["evaluate"]["runs"]
    applied = config | {"features": applied_cuts(config["features"], made["ingest"]["inputs"])}
    labels = {
        name: config["classes"][label]
        for name, label in labels_by_sample(config["samples"]).items()
    }
    steps = cutflow(counters["ingest"], counters["features"], applied)
    kinds = [kind for run in runs.values() for kind in run.get("importance_of_kinds", {})]
    return {
        **report,
        **config["features"],
        **counters["features"],
        **counters["train"],
        **counters["evaluate"],
        "selection": selection(applied),
        "warnings": warnings(versions),
        "samples": [*labels],
        "classes": config["classes"],
        "labels": labels,
        "cutflow": steps,
        "weighted": shows_weights(steps),
        "bad_files": counters["ingest"]["bad_files"],
        "gridsearch": counters.get("gridsearch"),
        "luminosity": config["evaluate"]["luminosity"] or USUAL_LUMINOSITY,
        "metrics_luminosity": counters["evaluate"].get("luminosity"),
        "events_before": counters["evaluate"].get("events_before"),
        "uncertainty": config["evaluate"].get("background_uncertainty", 0.0),
        "about_data": summary.about_data(counters["evaluate"]),
        "answer": summary.answer(counters["evaluate"]),
        "shown_point": summary.point_to_show(runs),
        "kinds": [*dict.fromkeys(kinds)],
        "unmeasurable": summary.unmeasurable(counters["evaluate"]),
        "measurable_to": next(iter(runs.values()))["measurable_to"],
        "export": counters["export"]["networks"] if "export" in counters else {},
        "files": made["ingest"]["inputs"],
        "config_yaml": write_yaml(config),
        "versions": versions,
        "made": made["evaluate"],
    }


def warnings(versions: Mapping[str, Version]) -> list[str]:
    """Warnings about the numbers of the page."""
    ingest, features, evaluate = (
        versions[name].manifest for name in ("ingest", "features", "evaluate")
    )
    counters, metrics = ingest["counters"], evaluate["counters"]
    found = []
    bundled = sum(file["uuid"] in BUNDLED for file in ingest["inputs"])
    if bundled:
        found.append(
            f"Technical sample: {bundled} of the {len(ingest['inputs'])} input files are bundled with the software. "
            f"Their events test it; they do not measure the quality of such models."
        )
    if metrics["num_events"] < _FEW_EVENTS:
        found.append(
            f"Only {metrics['num_events']} test events: small differences between models mean nothing."
        )
    if features["config"]["features"]["convention"] != "correct":
        found.append("Features are those of CERN's published notebooks, mistakes included.")
    negative, copies = (
        sum(counts[name] for counts in counters["samples"].values())
        for name in ("events_of_negative_weight", "rejected_copy")
    )
    if negative:
        found.append(
            f"{negative} of the ingested events have negative weights: they enter sums, losses and metrics with their "
            f"sign, so a bin of a histogram or a share of the cutflow may be negative."
        )
    if copies:
        found.append(f"{copies} events are copies of others in the input files and were left out.")
    left_out = [*counters["bad_files"], *counters.get("waiting_files", [])]
    found += notes(ingest["inputs"], features["config"]["samples"], counters["samples"], left_out)
    found += uncertain_mixtures(features["config"])
    if bad := len(counters["bad_files"]):
        found.append(
            f"Unreadable input files that were skipped: {bad}. The numbers do not include them."
        )
    of_data = next(iter(metrics["runs"].values())).get("data", {}).get("copies", {})
    found += [
        f"{number} events of the data are copies of others in the {where}."
        for where, number in of_data.items()
        if number
    ]
    for name, run in metrics["runs"].items():
        found += [f"{name}: {sentence}" for sentence in run.get("not_measurable", ())]
        tests = [
            test for by_truth in run["train_against_test"].values() for test in by_truth.values()
        ]
        values = [test["p_value"] for test in tests if test["p_value"] is not None]
        # Bonferroni correction for the smallest of several probabilities.
        lowest = min(values, default=1.0) * len(values)
        if values and lowest < _DIFFERENT:
            found.append(
                f"{name}: scores of training and test events differ (p = {summary.powers(lowest, 1)}): overtrained."
            )
    for name, version in versions.items():
        if "accepted" in version.manifest:
            reasons = "; ".join(version.manifest["accepted"]["reasons"])
            found.append(f"{name} was stale and accepted as up to date: {reasons}.")
    return found


def _pictures(versions: Mapping[str, Version]) -> dict[str, Any]:
    evaluated = versions["evaluate"]
    captions = _OF_MODEL | {name: own.caption for name, own in OWN_FIGURES.items()}
    found: dict[str, Any] = {
        "plots": dict.fromkeys(_SIDE_BY_SIDE) | _plots(evaluated.folder / "plots", _SIDE_BY_SIDE),
        "run_plots": {
            name: list(_plots(evaluated.folder / name / "plots", captions).values())
            for name in evaluated.manifest["counters"]["runs"]
        },
    }
    if "gridsearch" in versions:
        found["gridsearch_plots"] = _plots(versions["gridsearch"].folder / "plots", _GRIDSEARCH)
    return found


def _plots(folder: Path, captions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The existing figures of a folder, with captions."""
    paths = {name: folder / f"{name}.png" for name in captions}
    images = {
        name: base64.b64encode(path.read_bytes()).decode()
        for name, path in paths.items()
        if path.exists()
    }
    return {
        name: {"caption": captions[name], "png": f"data:image/png;base64,{each}"}
        for name, each in images.items()
    }
