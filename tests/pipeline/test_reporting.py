"""The page: complete, self-contained, and nothing from inputs can run in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pipeline.reporting.page import numbers, render
from pipeline.store import Version

EVIL = "<script>alert(1)</script>"
REPORT = {"title": "A title", "sample_note": EVIL}
ESTIMATE = {"value": 0.9, "error": 0.01}


def weights_of(counts: dict[str, int]) -> dict[str, list[float]]:
    return {step: [float(count), float(count)] for step, count in counts.items()}


def versions(folder: Path) -> dict[str, Version]:
    (folder / "plots").mkdir(parents=True)
    for name in ("roc", "confusion", "scores", "learning_curve", "hlf", "particles"):
        (folder / "plots" / f"{name}.png").write_bytes(b"not really a picture")
    config = {
        "model": {},
        "train": {},
        "samples": [{"name": "qcd", "label": 0}, {"name": "tt&bar", "label": 1}],
        "classes": ["QCD", EVIL],
        "ingest": {"min_lepton_pt": 23.0},
        "features": {
            "min_lepton_pt": 25.0,
            "max_lepton_isolation": 0.45,
            "balance": "weights",
            "convention": "correct",
        },
    }
    counter = {
        "entries": 10,
        "rejected_nonfinite": 1,
        "rejected_no_lepton": 2,
        "events": 7,
        "events_of_negative_weight": 0,
    }
    chosen = {
        "rejected_lacks_a_kind": 0,
        "events": 7,
        "rejected_no_isolated_lepton": 3,
        "rejected_nonfinite_features": 0,
        "selected": 4,
    }
    common: dict[str, Any] = {
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "checks": [{"name": "sum", "passed": True, "detail": "1 = 1"}],
        "config": config,
        "code_version": "commit abc",
        "packages": {"numpy": "1.26.4"},
        "inputs": [{"path": f"/data/{EVIL}.root", "sample": "qcd", "entries": 10, "uuid": "u"}],
    }
    counters: dict[str, dict[str, Any]] = {
        "ingest": {
            "samples": {"qcd": counter, "tt&bar": counter},
            "weights": {name: weights_of(counter) for name in ("qcd", "tt&bar")},
            "bad_files": [{"sample": "qcd", "path": f"/data/{EVIL}", "reason": "DamagedFileError", "message": EVIL}],
        },
        "features": {
            "samples": {"qcd": chosen, "tt&bar": chosen},
            "weights": {name: weights_of(chosen) for name in ("qcd", "tt&bar")},
            "splits": {"train": [3, 4], "val": [1, 1], "test": [2, 2]},
            "dropped_by_balancing": 0,
            "load_test": False,
            "feeds_evenly": [1, 2],
        },
        "train": {
            "num_parameters": 2013, "algorithm": "ar-sgd", "optimizer": "adam", "workers": 2, "best_epoch": 3,
            "epochs": 10, "best_val_loss": 0.31, "best_val_accuracy": 0.9, "learning_rate_in_effect": 0.001, "steps": 9,
        },
        "evaluate": {"accuracy": ESTIMATE, "auc": {"QCD": ESTIMATE, EVIL: ESTIMATE}, "num_events": 4},
    }  # fmt: skip
    return {name: Version("0001-abc", folder, {**common, "counters": each}) for name, each in counters.items()}


class Tags(HTMLParser):
    """Collects tags and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in {"src", "href"}]


def test_nothing_from_inputs_becomes_markup(tmp_path: Path) -> None:
    page = render(versions(tmp_path), {**REPORT, "title": EVIL}, tmp_path / "plots")
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert "&lt;script&gt;" in page


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    tags = Tags()
    tags.feed(render(versions(tmp_path), REPORT, tmp_path / "plots"))
    assert len(tags.loaded) == 6
    assert all(each.startswith("data:image/png;base64,") for each in tags.loaded)


def test_the_cutflow_is_on_the_page_and_in_the_numbers(tmp_path: Path) -> None:
    made = versions(tmp_path)
    page, content = render(made, REPORT, tmp_path / "plots"), json.loads(numbers(made, REPORT))
    for name in ("qcd", "tt&bar"):
        assert [row["columns"][name]["events"] for row in content["cutflow"]] == [10, 9, 7, 4, 4]
    assert "pT &gt; 25 GeV, isolation &lt; 0.45" in page
    assert "40.0 ± 15.5 %" in page
