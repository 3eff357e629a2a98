"""Fills the HTML template with what the manifests of a run say. Everything that comes from inputs is escaped."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.reporting.card import CAPTIONS
from pipeline.reporting.cutflow import Efficiency, as_json, cutflow
from pipeline.store import Version

_HERE: Final = Path(__file__).parent
_PLOTS: Final = {
    "roc": "One-vs-rest ROC curves on the test split: how much background of all other classes passes (down is better) "
    "when a share of the signal is kept.",
    "confusion": "Confusion matrix on the test split, normalised by the true class.",
    "scores": "Distribution of each output of the network, by true class.",
    "learning_curve": "Loss of the training and validation splits; the model of the lowest validation loss is kept.",
}


def render(versions: Mapping[str, Version], report: dict[str, Any], card: Path) -> str:
    """The report as HTML.

    Args:
        versions: Current versions of ingest, features, train and evaluate.
        report: The report section of the config.
        card: Folder of the dataset card's figures.
    """
    # autoescape for every file: names of samples and paths come from users and files.
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    environment.filters["share"] = _share
    environment.filters["estimate"] = lambda each: f"{each['value']:.3f} ± {each['error']:.3f}"
    return environment.get_template("report.html").render(
        **content(versions, report),
        card={name: {"caption": caption, "png": _inline(card / f"{name}.png")} for name, caption in CAPTIONS.items()},
    )


def content(versions: Mapping[str, Version], report: dict[str, Any]) -> dict[str, Any]:
    """What the template shows; also written as JSON beside the page."""
    ingest, features, train, evaluate = (
        versions[name].manifest for name in ("ingest", "features", "train", "evaluate")
    )
    # Each section of the config from the stage that was made with it: a later command may have had another.
    config = {
        **{key: ingest["config"][key] for key in ("samples", "ingest")},
        **{key: features["config"][key] for key in ("classes", "features")},
        **{key: train["config"][key] for key in ("model", "train")},
        "report": report,
    }
    samples = [sample["name"] for sample in config["samples"]]
    steps = cutflow(ingest["counters"], features["counters"], config)
    plots = versions["evaluate"].folder / "plots"
    return {
        "title": config["report"]["title"],
        "sample_note": config["report"]["sample_note"],
        "created": evaluate["created"],
        "samples": samples,
        "classes": config["classes"],
        "labels": {sample["name"]: config["classes"][sample["label"]] for sample in config["samples"]},
        "cutflow": steps,
        "weighted": any(each.weight != each.events for step in steps for each in step.yields.values()),
        "bad_files": ingest["counters"]["bad_files"],
        "load_test": features["counters"]["load_test"],
        "negative_weights": sum(
            counts["events_of_negative_weight"] for counts in ingest["counters"]["samples"].values()
        ),
        "feeds_evenly": features["counters"]["feeds_evenly"],
        "convention": config["features"]["convention"],
        "splits": features["counters"]["splits"],
        "dropped_by_balancing": features["counters"]["dropped_by_balancing"],
        "balance": config["features"]["balance"],
        "training": train["counters"],
        "metrics": evaluate["counters"],
        "plots": {
            name: {"caption": caption, "png": _inline(plots / f"{name}.png")} for name, caption in _PLOTS.items()
        },
        "files": ingest["inputs"],
        "config_yaml": yaml.safe_dump(config, sort_keys=False),
        "stages": [
            {
                "name": name,
                "version": version.name,
                "created": version.manifest["created"],
                "seconds": version.manifest["seconds"],
                "checks": version.manifest["checks"],
                "accepted": version.manifest.get("accepted"),
            }
            for name, version in versions.items()
        ],
        "code": evaluate["code_version"],
        "packages": evaluate["packages"],
    }


def numbers(versions: Mapping[str, Version], report: dict[str, Any]) -> str:
    """The numbers of the report as JSON, without pictures."""
    shown = {key: value for key, value in content(versions, report).items() if key not in {"plots", "config_yaml"}}
    shown["cutflow"] = as_json(shown["cutflow"])
    return json.dumps(shown, indent=1)


def _share(each: Efficiency) -> str:
    """A share of the cutflow in per cent."""
    return f"{100 * each.value:.1f} ± {100 * each.error:.1f} %" if math.isfinite(each.value) else "not defined"


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
