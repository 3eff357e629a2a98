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
from pipeline.configuration.yaml_text import write_yaml
from pipeline.reporting import summary
from pipeline.reporting.card import CAPTIONS
from pipeline.reporting.cutflow import (
    as_applied,
    cutflow,
    labels_of,
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
    "the ratios' errors are paired. Where no background event passes there is no line. Grey: not measurable, since "
    "fewer than 10 signal events are expected to fail.",
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
    versions: Mapping[str, Version], report: dict[str, Any], card: Path, *, comparisons: Mapping[str, Any] | None = None
) -> str:
    """The report as HTML."""
    # Every file is escaped: names of samples and paths come from users and files.
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, finalize=_tight
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    plain = (
        summary.estimate,
        summary.rejection,
        summary.powers,
        summary.rate,
        summary.shifts,
        summary.spread,
        summary.with_powers,
    )
    environment.filters |= {each.__name__: each for each in plain}
    environment.filters["share"] = lambda each: summary.share(each._asdict() if isinstance(each, Efficiency) else each)
    environment.filters["thousands"] = "{:,}".format
    environment.filters["microseconds"] = lambda each: f"{each:,.0f} µs" if each >= 1000 else f"{each:.3g} µs"
    # By background and model, for the script of the page.
    curves = json.loads((versions["evaluate"].folder / "curves.json").read_text(encoding="utf-8"))
    return environment.get_template("report.html").render(
        **content(versions, report, comparisons), **_pictures(versions), card=_plots(card, CAPTIONS), curves=curves
    )


def _tight(each: Any) -> Any:
    """Text of the page with numbers beside their units; markup, and what is escaped already, stay as they are."""
    return summary.tight(each) if isinstance(each, str) and not isinstance(each, Markup) else each


def content(
    versions: Mapping[str, Version], report: dict[str, Any], comparisons: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of the page without pictures."""
    ingest, features, train, evaluate = (
        versions[name].manifest for name in ("ingest", "features", "train", "evaluate")
    )
    # Each section of the config comes from the stage that used it: later commands may have used another config.
    config = {
        **{key: ingest["config"][key] for key in ("samples", "ingest")},
        **{key: features["config"][key] for key in ("classes", "features")},
        **{key: train["config"][key] for key in ("model", "train", "train_by_network")},
        "evaluate": evaluate["config"]["evaluate"],
        "report": report,
    }
    if "gridsearch" in versions:
        config["gridsearch"] = versions["gridsearch"].manifest["config"]["gridsearch"]
    selected, metrics = features["counters"], evaluate["counters"]
    applied = as_applied(config["features"], ingest["inputs"])
    labels = {name: config["classes"][label] for name, label in labels_of(config["samples"]).items()}
    steps = cutflow(ingest["counters"], selected, config | {"features": applied})
    return {
        **{key: report[key] for key in ("title", "sample_note")},
        "selection": selection(config | {"features": applied}),
        "created": evaluate["created"],
        "warnings": warnings(versions),
        "samples": [*labels],
        "classes": config["classes"],
        "labels": labels,
        "cutflow": steps,
        "weighted": shows_weights(steps),
        "bad_files": ingest["counters"]["bad_files"],
        **{key: selected[key] for key in ("splits", "dropped_by_balancing")},
        "balance": config["features"]["balance"],
        "normalisation": selected["normalisation"],
        "integrated_luminosity": config["features"]["integrated_luminosity"],
        "gridsearch": versions["gridsearch"].manifest["counters"] if "gridsearch" in versions else None,
        "networks": train["counters"]["networks"],
        "further": train["counters"]["further"],
        **{key: metrics[key] for key in ("num_events", "signal", "runs", "rates_before")},
        "luminosity": config["evaluate"]["luminosity"],
        "rates_note": report["rates_note"],
        **{key: metrics[key] for key in ("mixture", "best", "behind_best")},
        "answer": summary.answer(metrics),
        "shown_point": summary.point_to_show(metrics["runs"]),
        "kinds": _kinds(metrics["runs"]),
        "unmeasurable": summary.unmeasurable(metrics),
        "measurable_to": next(iter(metrics["runs"].values()))["measurable_to"],
        "comparisons": comparisons or {},
        "export": versions["export"].manifest["counters"]["networks"] if "export" in versions else {},
        "files": ingest["inputs"],
        "config_yaml": write_yaml(config),
        "stages": [
            {"name": name, "version": version.name}
            | {key: version.manifest[key] for key in ("created", "seconds", "checks")}
            for name, version in versions.items()
        ],
        "code": evaluate["code_version"],
        "packages": evaluate["packages"],
    }


def _kinds(runs: Mapping[str, Any]) -> list[str]:
    """The kinds of particles, and other parts of the inputs, whose importance was measured."""
    found = (run.get("importance_of_kinds", {}) for run in runs.values())
    return list(dict.fromkeys(kind for each in found for kind in each))


def warnings(versions: Mapping[str, Version]) -> list[str]:
    """Warnings about the numbers of the page."""
    ingest, features, evaluate = (versions[name].manifest for name in ("ingest", "features", "evaluate"))
    metrics = evaluate["counters"]
    found = []
    bundled = sum(file["uuid"] in BUNDLED for file in ingest["inputs"])
    if bundled:
        found.append(
            f"Technical sample: {bundled} of the {len(ingest['inputs'])} input files are bundled with the software. "
            f"Their events test it; they do not measure the quality of such models."
        )
    if metrics["num_events"] < _FEW_EVENTS:
        found.append(f"Only {metrics['num_events']} test events: small differences between models mean nothing.")
    if features["config"]["features"]["convention"] != "correct":
        found.append("Features are those of CERN's published notebooks, mistakes included.")
    negative = sum(counts["events_of_negative_weight"] for counts in ingest["counters"]["samples"].values())
    if negative:
        found.append(
            f"{negative} of the ingested events have negative weights: they enter sums, losses and metrics with their "
            f"sign, so a bin of a histogram or a share of the cutflow may be negative."
        )
    copies = sum(counts["rejected_copy"] for counts in ingest["counters"]["samples"].values())
    if copies:
        found.append(f"{copies} events are copies of others in the input files and were left out.")
    counters = ingest["counters"]
    left_out = [*counters["bad_files"], *counters.get("waiting_files", [])]
    found += notes(ingest["inputs"], features["config"]["samples"], counters["samples"], left_out)
    found += uncertain_mixtures(features["config"])
    bad = len(ingest["counters"]["bad_files"])
    if bad:
        found.append(f"Unreadable input files that were skipped: {bad}. The numbers do not include them.")
    of_data = next(iter(metrics["runs"].values())).get("data", {}).get("copies", {})
    found += [
        f"{number} events of the data are copies of others in the {where}."
        for where, number in of_data.items()
        if number
    ]
    for name, run in metrics["runs"].items():
        values = [test["p_value"] for tests in run["train_against_test"].values() for test in tests.values()]
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
    images = {name: base64.b64encode(path.read_bytes()).decode() for name, path in paths.items() if path.exists()}
    return {name: {"caption": captions[name], "png": f"data:image/png;base64,{each}"} for name, each in images.items()}
