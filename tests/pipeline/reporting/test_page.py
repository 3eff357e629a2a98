"""The page: complete, self-contained, and nothing from inputs can run in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_versions import REPORT, Page, counters, example_versions, page_of

from pipeline.reporting.page import render
from pipeline.runs.manifest import Acceptance
from pipeline.runs.version import Version
from pipeline.terminal.tables import evaluation_tables

#: Ends an attribute and a tag, then tries to run.
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}{% endif %}]]>"
GOLDEN = Path(__file__).parents[2] / "golden"
Versions = dict[str, Version]


def compared(word: str) -> dict[str, Any]:
    """The table of a study in which every text is a word."""
    return {
        word: {
            "title": word,
            "heads": [word],
            "rows": [[word]],
            "workers": word,
            "events": word,
            "notes": [word],
        }
    }


def test_nothing_from_inputs_becomes_markup(tmp_path: Path) -> None:
    harmless, evil = (
        example_versions(tmp_path / name, state_after=state_after)
        for name, state_after in (("a", "x"), ("b", EVIL))
    )
    for each in (harmless, evil):
        each["features"].manifest.accepted = Acceptance.model_validate(
            {"when": "2026-01-01T00:00:00+00:00", "reasons": [EVIL]}
        )
    texts = {"title": EVIL, "sample_note": EVIL, "rates_note": EVIL}
    page = page_of(evil, tmp_path / "b", texts, comparisons=compared(EVIL))
    assert page.tags == page_of(harmless, tmp_path / "a", comparisons=compared("x")).tags
    # The curves' data, and the script that draws them.
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [["type", "id"], []]
    # Of title, note, samples, classes, models, algorithms, failed settings, files, checks, code, packages, config ...
    assert page.words.count(EVIL) > 40


@pytest.mark.parametrize(
    ("optional", "pictures", "tables"), [(("gridsearch", "export"), 17, 14), ((), 15, 11)]
)
@pytest.mark.parametrize("rates", [True, False])
def test_the_page_loads_nothing_from_elsewhere_and_shows_all_figures_and_whole_tables(
    tmp_path: Path, optional: tuple[str, ...], pictures: int, tables: int, rates: bool
) -> None:
    created = example_versions(tmp_path, optional=optional, rates=rates, state_after="x")
    html = render(created, REPORT, tmp_path / "card")
    page = Page(html)
    assert sum(link.startswith("data:image/png;base64,") for link in page.loaded) == pictures
    assert [
        link for link in page.loaded if not link.startswith(("data:image/png;base64,", "#"))
    ] == ["data:,"]
    assert not re.search(r"url\(|@import", html)
    # A phone would shrink the page without it.
    assert '<meta name="viewport" content="width=device-width' in html
    assert len(page.tables) == tables + rates
    assert all(
        len(table) > 1 and {len(row) for row in table} == {len(table[0])} for table in page.tables
    )
    # The interactive curves come in the order of the figures, whose colours they have.
    curves = json.loads((created["evaluate"].folder / "curves.json").read_text())
    displayed = re.search(r'id="curve-data">(.*?)</script>', html)
    assert displayed is not None
    orders = [
        [list(of_models) for of_models in link.values()]
        for link in (json.loads(displayed[1]), curves)
    ]
    assert orders[0] == orders[1] != [sorted(models) for models in orders[1]]
    # The contents lead to every section.
    targets = re.findall(r'href="#([^"]+)"', html)
    assert len(targets) >= (10 if optional else 8)
    assert all(f'id="{target}"' in html for target in targets)
    assert set(re.findall(r'<h2 id="([^"]+)"', html)) <= set(targets)


def with_all(created: Versions) -> None:
    """What only some runs have: further trainings, firmware, importances of kinds, shifts, a model without rivals."""
    runs, networks = counters(created, "evaluate")["runs"], counters(created, "export")["networks"]
    spread = {"mean": 0.9012, "spread": 0.0123}
    points = [{"wanted": 0.9, "mean": 0.123, "spread": 0.0456}, {"wanted": 0.999, **spread}]
    runs["hlf"]["trainings"] = {
        "count": 5, "accuracy": spread, "auc": {"top": spread}, "auc_against": {"QCD": spread},
        "working_points": points,
    }  # fmt: skip
    first = counters(created, "train")["networks"]["hlf"]
    counters(created, "train")["further"] = {
        "hlf": {"hlf-seed-2": first | {"best_val_loss": 0.4321}}
    }
    firmware = {
        "bits": 8,
        "largest_difference": 0.2,
        "same_class": 0.9928,
        "latency_ns": 60.0,
        "lookup_tables": 20123,
    }
    networks["particles"] = dict(networks["hlf"])
    networks["hlf"]["firmware"] = [firmware]
    better, nothing = (
        runs["boosted-trees"]["working_points"][0],
        {"value": 0.0, "low": 0.0, "high": 0.0577},
    )
    better |= {"backgrounds": {"QCD": nothing}, "all_backgrounds": nothing}
    better["rates"] = {
        "QCD": {"value": 0.0, "low": 0.0, "high": 57.7},
        "top": better["rates"]["top"],
    }
    runs["hlf"]["importance_of_kinds"] = {"lepton": {"value": 0.123, "error": 0.004}}
    second = {
        "lepton": {"value": 0.2, "error": 0.01},
        "high-level features": {"value": 0.3, "error": 0.02},
    }
    runs["inclusive"] = runs["boosted-trees"] | {"importance_of_kinds": second}
    counters(created, "evaluate")["behind_best"]["inclusive"] = {"value": 0.0, "error": 0.0}
    for key, index in (
        ("systematics", {"value": 0.5, "shift": -0.0123, "error": 0.001}),
        ("weights", {"value": 0.5, "shift": 0.02, "error": 0.0}),
        ("weights_envelope", {"down": -0.0123, "up": 0.02, "rms": 0.01}),
    ):
        shifted = [
            {"wanted": expected, "efficiencies": {"QCD": index, "top": index}}
            for expected in (0.9, 0.999)
        ]
        varied = {"accuracy": None, "auc": index, "working_points": shifted}
        runs["hlf"][key] = (
            varied if key == "weights_envelope" else {"one +2 %": varied, "other": varied}
        )


def with_events(created: Versions) -> None:
    """An offline analysis of blinded data, with a model that lets no background pass."""
    counted = {"value": 120.4, "low": 110.0, "high": 131.0}
    few, none = {"value": 4.2, "low": 2.1, "high": 8.0}, {"value": 0.0, "low": 0.0, "high": 3.7}
    evaluated = counters(created, "evaluate")
    evaluated |= {
        "rates_before": None,
        "events_before": {"QCD": 4000.0, "top": 140.0},
        "luminosity": "36 fb⁻¹",
    }
    scan = {
        "asimov": [12.3],
        "low": [11.1],
        "high": [13.2],
        "signal": [99.0],
        "background": [3.0],
        "threshold": [0.9],
    }
    data = {
        "num_files": 2, "num_entries": 12_345, "num_events": 6000,
        "blind_above": 0.5, "scale": None, "num_expected": 6012.3, "copies": {}, "chi_square": {},
    }  # fmt: skip
    for model, run in evaluated["runs"].items():
        point = run["working_points"][0]
        background, passes = (
            (few, point["all_backgrounds"]) if model == "hlf" else (none, none | {"high": 0.01})
        )
        purity = (
            {"value": 1.0, "low": 0.97, "high": 1.0}
            if background is none
            else {"value": 0.97, "low": 0.9, "high": 0.99}
        )
        significance: dict[str, Any] = {"value": 30.0, "low": 25.0, "high": 36.0}
        if background is none:
            significance = {"value": None, "low": 27.3, "high": None, "limit": "lower"}
        point |= {
            "all_backgrounds": passes,
            "backgrounds": {"QCD": passes},
            "events": {"QCD": background, "top": counted},
        }
        point |= {
            "signal_events": counted,
            "background_events": background,
            "significance": significance,
        }
        point["purity"] = purity
        run |= {"data": data, "significance": {**scan, "best": 0, "best_is_at_end": model == "hlf"}}


def with_little(created: Versions) -> None:
    """No working point can be measured."""
    for run in counters(created, "evaluate")["runs"].values():
        run["working_points"][0]["measurable"] = False
    (created["evaluate"].folder / "plots" / "importance.png").unlink()


@pytest.mark.parametrize(
    ("change", "optional"),
    [(with_all, ("gridsearch", "export")), (with_little, ()), (with_events, ())],
)
def test_the_words_and_tables_of_the_page_are_those_of_the_golden_file(
    tmp_path: Path,
    change: Callable[[Versions], None],
    optional: tuple[str, ...],
    *,
    update_golden: bool,
) -> None:
    created = example_versions(tmp_path, optional=optional, rates=change is with_all)
    change(created)
    compared_with = compared("mine") if change is with_all else {}
    html = render(created, REPORT, tmp_path / "card", comparisons=compared_with)
    message = Page(re.sub(r"(?s)<(style|script|table)\b.*?</\1>", "", html)).words.splitlines()
    rows = [" | ".join(row) for table in Page(html).tables for row in (["---"], *table)]
    printed = [
        line
        for table in evaluation_tables(counters(created, "evaluate"))
        for line in str(table).splitlines()
    ]
    lines = [*(" ".join(line.split()) for line in message), *rows, "---", *map(str.rstrip, printed)]
    text = "\n".join(filter(None, lines)) + "\n"
    golden = GOLDEN / f"report_{change.__name__}.txt"
    if update_golden:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
