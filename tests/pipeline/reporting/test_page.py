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
from pipeline.terminal.evaluation_tables import evaluation_tables

#: Ends an attribute and a tag, then tries to run.
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}{% endif %}]]>"
GOLDEN = Path(__file__).parents[2] / "golden"
Versions = dict[str, Version]


def study_table(text: str) -> dict[str, Any]:
    """The table of a study in which every cell is the same text."""
    table = {
        "title": text,
        "heads": [text],
        "rows": [[text]],
        "workers": text,
        "events": text,
        "notes": [text],
    }
    return {text: table}


def page_with_texts(folder: Path, text: str) -> Page:
    """The page of a run in which every text from inputs and config ends with the same text."""
    versions = example_versions(folder, suffix=text)
    versions["features"].manifest.accepted = Acceptance.model_validate(
        {"when": "2026-01-01T00:00:00+00:00", "reasons": [text]}
    )
    report = {"title": text, "sample_note": text, "rates_note": text}
    return page_of(versions, folder, report, comparisons=study_table(text))


def test_nothing_from_inputs_becomes_markup(tmp_path: Path) -> None:
    harmless_page = page_with_texts(tmp_path / "a", "x")
    page = page_with_texts(tmp_path / "b", EVIL)

    assert page.tags == harmless_page.tags
    # The curves' data, and the script that draws them.
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [["type", "id"], []]
    # Of title, note, samples, classes, models, algorithms, failed settings, files, checks, code,
    # packages, config ...
    assert page.text.count(EVIL) > 40


@pytest.mark.parametrize(
    ("optional", "num_figures", "num_tables"), [(("gridsearch", "export"), 17, 14), ((), 15, 11)]
)
@pytest.mark.parametrize("rates", [True, False])
def test_the_page_loads_nothing_from_elsewhere_and_shows_all_figures_and_whole_tables(
    tmp_path: Path, optional: tuple[str, ...], num_figures: int, num_tables: int, rates: bool
) -> None:
    versions = example_versions(tmp_path, optional=optional, rates=rates, suffix="x")

    html = render(versions, REPORT, tmp_path / "card")

    page = Page(html)
    figures = [url for url in page.loaded if url.startswith("data:image/png;base64,")]
    assert len(figures) == num_figures
    assert {url for url in page.loaded if not url.startswith("#")} - {*figures} == {"data:,"}
    assert not re.search(r"url\(|@import", html)
    # A phone would shrink the page without it.
    assert '<meta name="viewport" content="width=device-width' in html
    assert len(page.tables) == num_tables + rates
    for table in page.tables:
        assert len(table) > 1
        assert {len(row) for row in table} == {len(table[0])}


def test_the_interactive_curves_have_the_order_of_the_figures(tmp_path: Path) -> None:
    versions = example_versions(tmp_path, suffix="x")

    html = render(versions, REPORT, tmp_path / "card")

    # The order gives the colours.
    match = re.search(r'id="curve-data">(.*?)</script>', html)
    assert match is not None
    curves_of_page = json.loads(match[1])
    curves = json.loads((versions["evaluate"].folder / "curves.json").read_text())
    assert list(curves_of_page) == list(curves)
    for background, curves_by_model in curves.items():
        assert list(curves_of_page[background]) == list(curves_by_model)
        assert list(curves_by_model) != sorted(curves_by_model)


@pytest.mark.parametrize(("optional", "num_links"), [(("gridsearch", "export"), 10), ((), 8)])
def test_the_contents_lead_to_every_section(
    tmp_path: Path, optional: tuple[str, ...], num_links: int
) -> None:
    html = render(example_versions(tmp_path, optional=optional), REPORT, tmp_path / "card")

    targets = re.findall(r'href="#([^"]+)"', html)
    assert len(targets) >= num_links
    assert set(re.findall(r'<h2 id="([^"]+)"', html)) <= set(targets)
    assert set(targets) <= set(re.findall(r'id="([^"]+)"', html))


def test_the_page_says_how_the_scores_depend_on_columns(tmp_path: Path) -> None:
    versions = example_versions(tmp_path)
    run = counters(versions, "evaluate")["runs"]["hlf"]
    wanted = run["working_points"][0]["wanted"]
    run["independence"] = {
        "lepton_pt": {
            "QCD": {
                "distance_correlation": {"value": 0.0312, "error": 0.0064, "independent": 0.00987},
                "points": [{"wanted": wanted, "p_value": 0.0213}],
            }
        }
    }

    html = render(versions, REPORT, tmp_path / "card")

    row = html.partition('<h3 id="independence">')[2].partition("</table>")[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert cells[:6] == ["hlf", "lepton_pt", "QCD", "0.031 ± 0.006", "0.0099", "0.021"]
    assert set(cells[6:]) <= {"-"}


def add_optional_results(versions: Versions) -> None:
    """Add results of some runs: trainings, firmware, importances, shifts, a second best model."""
    add_further_trainings(versions)
    add_firmware(versions)
    runs = counters(versions, "evaluate")["runs"]
    best_point = runs["boosted-trees"]["working_points"][0]
    no_background = {"value": 0.0, "low": 0.0, "high": 0.0577}
    best_point |= {
        "backgrounds": {"QCD": no_background},
        "all_backgrounds": no_background,
        "rates": {
            "QCD": {"value": 0.0, "low": 0.0, "high": 57.7},
            "top": best_point["rates"]["top"],
        },
    }
    importance = {
        "lepton": {"value": 0.2, "error": 0.01},
        "high-level features": {"value": 0.3, "error": 0.02},
    }
    runs["inclusive"] = runs["boosted-trees"] | {"importance_of_kinds": importance}
    counters(versions, "evaluate")["behind_best"]["inclusive"] = {"value": 0.0, "error": 0.0}
    runs["hlf"]["importance_of_kinds"] = {"lepton": {"value": 0.123, "error": 0.004}}
    add_shifts(runs["hlf"])


def add_further_trainings(versions: Versions) -> None:
    spread = {"mean": 0.9012, "spread": 0.0123}
    counters(versions, "evaluate")["runs"]["hlf"]["trainings"] = {
        "count": 5,
        "accuracy": spread,
        "auc": {"top": spread},
        "auc_against": {"QCD": spread},
        "working_points": [
            {"wanted": 0.9, "mean": 0.123, "spread": 0.0456},
            {"wanted": 0.999, **spread},
        ],
    }
    train_counters = counters(versions, "train")
    training = train_counters["networks"]["hlf"] | {"best_val_loss": 0.4321}
    train_counters["further"] = {"hlf": {"hlf-seed-2": training}}


def add_firmware(versions: Versions) -> None:
    networks = counters(versions, "export")["networks"]
    networks["particles"] = dict(networks["hlf"])
    firmware = {
        "bits": 8,
        "largest_difference": 0.2,
        "same_class": 0.9928,
        "latency_ns": 60.0,
        "lookup_tables": 20123,
    }
    networks["hlf"]["firmware"] = [firmware]


def add_shifts(run: dict[str, Any]) -> None:
    """Add shifts by systematics and by other weights."""

    def variation(shift: dict[str, float]) -> dict[str, Any]:
        efficiencies = {"QCD": shift, "top": shift}
        points = [{"wanted": share, "efficiencies": efficiencies} for share in (0.9, 0.999)]
        return {"accuracy": None, "auc": shift, "working_points": points}

    systematic = variation({"value": 0.5, "shift": -0.0123, "error": 0.001})
    reweighted = variation({"value": 0.5, "shift": 0.02, "error": 0.0})
    run["systematics"] = {"one +2 %": systematic, "other": systematic}
    run["weights"] = {"one +2 %": reweighted, "other": reweighted}
    run["weights_envelope"] = variation({"down": -0.0123, "up": 0.02, "rms": 0.01})


def make_offline(versions: Versions) -> None:
    """Make it an offline analysis of blinded data, with a model that lets no background pass."""
    metrics = counters(versions, "evaluate")
    metrics |= {
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
        "best": 0,
    }
    data = {
        "num_files": 2,
        "num_entries": 12_345,
        "num_events": 6000,
        "blind_above": 0.5,
        "scale": None,
        "num_expected": 6012.3,
        "copies": {},
        "chi_square": {},
    }
    signal_events = {"value": 120.4, "low": 110.0, "high": 131.0}
    for model, run in metrics["runs"].items():
        has_background = model == "hlf"
        point = run["working_points"][0]
        point |= background_numbers() if has_background else no_background_numbers()
        point["backgrounds"] = {"QCD": point["all_backgrounds"]}
        point["events"] = {"QCD": point["background_events"], "top": signal_events}
        point["signal_events"] = signal_events
        run |= {"data": data, "significance": {**scan, "best_is_at_end": has_background}}


def background_numbers() -> dict[str, Any]:
    return {
        "background_events": {"value": 4.2, "low": 2.1, "high": 8.0},
        "significance": {"value": 30.0, "low": 25.0, "high": 36.0},
        "purity": {"value": 0.97, "low": 0.9, "high": 0.99},
    }


def no_background_numbers() -> dict[str, Any]:
    return {
        "all_backgrounds": {"value": 0.0, "low": 0.0, "high": 0.01},
        "background_events": {"value": 0.0, "low": 0.0, "high": 3.7},
        "significance": {"value": None, "low": 27.3, "high": None, "limit": "lower"},
        "purity": {"value": 1.0, "low": 0.97, "high": 1.0},
    }


def make_unmeasurable(versions: Versions) -> None:
    """Take away what can be measured at the working points."""
    for run in counters(versions, "evaluate")["runs"].values():
        run["working_points"][0]["measurable"] = False
    (versions["evaluate"].folder / "plots" / "importance.png").unlink()


@pytest.mark.parametrize(
    ("name", "change", "optional"),
    [
        ("with_all", add_optional_results, ("gridsearch", "export")),
        ("with_little", make_unmeasurable, ()),
        ("with_events", make_offline, ()),
    ],
)
def test_the_text_and_tables_of_the_page_are_those_of_the_golden_file(
    tmp_path: Path,
    name: str,
    change: Callable[[Versions], None],
    optional: tuple[str, ...],
    *,
    update_golden: bool,
) -> None:
    has_all = name == "with_all"
    versions = example_versions(tmp_path, optional=optional, rates=has_all)
    change(versions)
    comparisons = study_table("mine") if has_all else {}

    html = render(versions, REPORT, tmp_path / "card", comparisons=comparisons)

    text_html = re.sub(r"(?s)<(style|script|table)\b.*?</\1>", "", html)
    lines = [" ".join(line.split()) for line in Page(text_html).text.splitlines()]
    for table in Page(html).tables:
        lines += ["---", *[" | ".join(row) for row in table]]
    lines.append("---")
    for grid in evaluation_tables(counters(versions, "evaluate")):
        lines += [line.rstrip() for line in str(grid).splitlines()]
    text = "\n".join(filter(None, lines)) + "\n"
    golden = GOLDEN / f"report_{name}.txt"
    if update_golden:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
