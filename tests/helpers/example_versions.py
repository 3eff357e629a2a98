"""Finished stages with made-up numbers, as the report reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from published_by_hand import example_version

from pipeline.reporting.page import render
from pipeline.runs.version import Version

REPORT = {"title": "A title", "sample_note": "made up", "rates_note": "made up too"}
#: Figures by the folder they lie in.
_SIDE_BY_SIDE = ("background_efficiency", "rejection", "importance")
_OF_RUN = ("learning_curve", "confusion", "scores", "calibration", "efficiencies")


def page_of(
    versions: dict[str, Version], folder: Path, report: dict[str, Any] | None = None, **options: Any
) -> Page:
    return Page(render(versions, report or REPORT, folder / "card", **options))


def counters(versions: dict[str, Version], stage: str) -> dict[str, Any]:
    """The counters of a version, to change."""
    counters: dict[str, Any] = versions[stage].manifest.counters
    return counters


def example_versions(
    folder: Path,
    *,
    suffix: str = "",
    rates: bool = True,
    optional: tuple[str, ...] = ("gridsearch", "export"),
    picture: bytes = b"not really a picture",
) -> dict[str, Version]:
    """Versions of all stages, with nothing in them to warn of.

    Args:
        folder: Gets their figures; those of the dataset card go to `card`.
        suffix: Stands behind every name that comes from a user or a file.
        rates: Whether cross-sections are known.
        optional: The stages among `gridsearch` and `export` that have run.
        picture: Content of the figures.
    """
    samples = (f"qcd{suffix}", f"tt&bar{suffix}")
    classes = (f"QCD{suffix}", f"top{suffix}")
    counters = {
        "ingest": _ingested(samples, suffix),
        "features": _selected(samples),
        "gridsearch": _searched(suffix),
        "train": {"networks": {f"hlf{suffix}": _trained(suffix)}, "further": {}},
        "evaluate": _evaluated(classes, (f"hlf{suffix}", f"boosted-trees{suffix}"), rates=rates),
        "export": {"networks": {f"hlf{suffix}": _exported()}},
    }
    versions = {}
    for stage, stage_counters in counters.items():
        if stage in {"gridsearch", "export"} - set(optional):
            continue
        manifest = _manifest(samples, classes, suffix)
        version = example_version(stage, folder / stage, **manifest, counters=stage_counters)
        versions[stage] = replace(version, name=f"0001-{stage}")

    models = list(counters["evaluate"]["runs"])
    _write_figures(folder / "card", ("hlf", "particles"), picture)
    _write_figures(folder / "gridsearch" / "plots", ("pareto", "speed_up"), picture)
    _write_figures(folder / "evaluate" / "plots", _SIDE_BY_SIDE, picture)
    for model in models:
        _write_figures(folder / "evaluate" / model / "plots", _OF_RUN, picture)
    curves = {classes[0]: {model: _curve(model == models[0]) for model in models}}
    (folder / "evaluate" / "curves.json").write_text(json.dumps(curves), encoding="utf-8")
    return versions


def _write_figures(folder: Path, names: Sequence[str], picture: bytes) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.png").write_bytes(picture)


def _manifest(samples: tuple[str, str], classes: tuple[str, str], suffix: str) -> dict[str, Any]:
    """What every stage says of itself."""
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "checks": [{"name": f"sum{suffix}", "passed": True, "detail": f"1 = 1{suffix}"}],
        "config": {
            "samples": [
                {"name": name, "label": label, "cross_section_pb": None}
                for label, name in enumerate(samples)
            ],
            "classes": list(classes),
            "ingest": {"min_lepton_pt": 23.0},
            "features": {
                "min_lepton_pt": 25.0,
                "max_lepton_isolation": 0.45,
                "balance": "weights",
                "convention": "correct",
                "integrated_luminosity": 1.0,
            },
            "model": {},
            "train": {},
            "train_by_network": {},
            "gridsearch": {"folds": 4},
            "evaluate": {"luminosity": 2e34},
        },
        "code_version": f"commit abc{suffix}",
        "packages": {"numpy": f"1.26.4{suffix}"},
        "inputs": [
            {
                "path": f"/data/{suffix}.root",
                "sample": samples[0],
                "label": 0,
                "entries": 10,
                "size": 1000,
                "modified": "1.0",
                "edges": [0, 10],
                "uuid": f"u{suffix}",
                "missing_optional": [],
            }
        ],
    }


def _ingested(samples: tuple[str, str], suffix: str) -> dict[str, Any]:
    counts = {
        "entries": 10,
        "rejected_copy": 0,
        "rejected_nonfinite": 1,
        "rejected_no_lepton": 2,
        "events": 7,
        "events_of_negative_weight": 0,
        "events_with_wrapped_azimuths": 0,
    }
    bad = {
        "sample": samples[0],
        "path": f"/data/bad{suffix}",
        "reason": f"DamagedFileError{suffix}",
        "message": suffix,
    }
    return {**_counted(samples, counts), "bad_files": [bad] if suffix else []}


def _selected(samples: tuple[str, str]) -> dict[str, Any]:
    counts = {
        "rejected_lacks_a_kind": 0,
        "events": 7,
        "rejected_no_lepton_in_acceptance": 0,
        "rejected_no_isolated_lepton": 3,
        "rejected_nonfinite_features": 0,
        "leptons_without_own_track": 0,
        "selected": 4,
    }
    return {
        **_counted(samples, counts),
        "splits": {"train": [3, 4], "val": [1, 1], "test": [2, 2]},
        "dropped_by_balancing": 0,
        "normalisation": {
            name: {
                "factor": 1.0,
                "cross_section_pb": None,
                "num_events": 10,
                "sum_of_weights": 10.0,
                "stated_sum": None,
            }
            for name in samples
        },
    }


def _counted(samples: tuple[str, str], counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "samples": {name: dict(counts) for name in samples},
        "weights": {
            name: {step: [float(count), float(count)] for step, count in counts.items()}
            for name in samples
        },
    }


def _searched(suffix: str) -> dict[str, Any]:
    trial = {"hidden": [50, 20], "batch_size": 64, "learning_rate": 0.001, "epochs": 20}
    score = {
        "trial": trial,
        "num_parameters": 2013,
        "accuracy": 0.871,
        "behind": 0.012,
        "behind_error": 0.004,
        "loss": 0.399,
        "latency": {"value": 7.8, "error": 0.2},
    }
    return {
        "search": f"grid{suffix}",
        "folds": 4,
        "scores": [score] * 12,
        "chosen": 0,
        "failed": [{"trial": trial, "reason": f"the loss is not finite{suffix}"}],
        "train_events": 419,
        "seconds": 14.2,
        "slots": 2,
    }


def _trained(suffix: str) -> dict[str, Any]:
    return {
        "num_parameters": 2013,
        "algorithm": f"ar-sgd{suffix}",
        "optimizer": f"adam{suffix}",
        "workers": 2,
        "best_epoch": 3,
        "epochs": 10,
        "best_val_loss": 0.31,
        "best_val_accuracy": 0.9,
        "learning_rate_in_effect": 0.001,
        "steps": 9,
    }


def _exported() -> dict[str, Any]:
    forms = {"model.onnx": (53431, 1.2e-7), "one_event.onnx": (60_000, 3e-6)}
    return {
        "tolerance": 1e-5,
        "forms": {
            file: {"bytes": size, "largest_difference": second}
            for file, (size, second) in forms.items()
        },
        "firmware": [],
        "latency_us": {"p50": 8.693, "p90": 10.5, "p99": 13.1, "p99_9": 57.8},
        "events_per_second": 3276569.1,
    }


def _evaluated(classes: tuple[str, str], models: tuple[str, str], *, rates: bool) -> dict[str, Any]:
    """Of 5000 events; the second working point of each model is not measurable."""
    share, area = {"value": 0.1, "low": 0.08, "high": 0.13}, {"value": 0.95, "error": 0.005}
    point = {
        "wanted": 0.9,
        "threshold": 0.71234,
        "measurable": True,
        "num_failing": 250.0,
        "signal": share,
        "backgrounds": {classes[0]: share},
        "all_backgrounds": share,
    }
    if rates:
        rate = {"value": 120.0, "low": 100.0, "high": 160.0}
        point |= {"rates": dict.fromkeys(classes, rate), "total_rate": rate, "purity": share}
    run = {
        "num_events": 5000,
        "accuracy": {"value": 0.9, "error": 0.01},
        "auc": {classes[1]: area},
        "measurable_to": 0.996,
        "auc_against": {classes[0]: area},
        "background_points": [
            point | {"wanted": 1e-3},
            point | {"wanted": 1e-4, "measurable": False},
        ],
        "working_points": [
            point,
            {**point, "wanted": 0.999, "measurable": False, "num_failing": 2.5},
        ],
        "train_against_test": {
            classes[1]: {truth: {"distance": 0.1, "p_value": 0.02} for truth in classes}
        },
    }
    return {
        "classes": list(classes),
        "signal": classes[1],
        "signals": {classes[1]: 1.0},
        "mixture": {"fractions": {classes[0]: 1.0}, "words": f"100 % {classes[0]}, by rate"},
        "best": models[0],
        "behind_best": {name: {"value": 0.0123, "error": 0.002} for name in models},
        "num_events": 5000,
        "rates_before": {classes[0]: 1200.0, classes[1]: 8.0} if rates else None,
        # A test may change the numbers of one model.
        "runs": {name: deepcopy(run) for name in models},
    }


def _curve(any_passes: bool) -> dict[str, list[float]]:
    """A curve with or without background that passes at 90 % of the signal."""
    value, low, high = (0.1, 0.08, 0.13) if any_passes else (0.0, 0.0, 0.02)
    return {"signal_efficiency": [0.5, 0.9, 1.0], "background_efficiency": [0.0, value, 1.0], "low": [0.0, low, 1.0],
            "high": [0.01, high, 1.0]}  # fmt: skip


class Page(HTMLParser):
    """What a browser would make of a page: its tags, what it loads, and its tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[str]]] = []
        """Each with the names of its attributes."""
        self.loaded: list[str] = []
        self.tables: list[list[list[str]]] = []
        """Cells of the rows; one over several columns is repeated."""
        self.text: str = ""
        self._cell: list[str] | None = None
        self._span = 1
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))
        self.loaded += [
            value or ""
            for name, value in attrs
            if name in {"src", "href", "srcset", "data", "action"}
        ]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell, self._span = [], int(dict(attrs).get("colspan") or 1)

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None:
            self.tables[-1][-1] += [" ".join("".join(self._cell).split())] * self._span
            self._cell = None
