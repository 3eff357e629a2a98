"""The page: complete, self-contained, and nothing from inputs can run in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_manifests import REPORT, Page, counters, made_versions, page_of

from pipeline.reporting.page import numbers, render
from pipeline.runs.store import Version
from pipeline.terminal.tables import evaluation_tables

#: Ends an attribute and a tag, then tries to run.
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}{% endif %}]]>"
#: Stands in a cell for what there is not.
NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
Versions = dict[str, Version]


def compared(word: str) -> dict[str, Any]:
    """The table of a study in which every text is a word."""
    return {word: {"title": word, "heads": [word], "rows": [[word]], "workers": word, "events": word, "notes": [word]}}


def refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_nothing_from_inputs_becomes_markup(tmp_path: Path) -> None:
    harmless, evil = (made_versions(tmp_path / name, after=after) for name, after in (("a", "x"), ("b", EVIL)))
    for each in (harmless, evil):
        each["features"].manifest["accepted"] = {"reasons": [EVIL]}
    texts = {"title": EVIL, "sample_note": EVIL, "rates_note": EVIL}
    page = page_of(evil, tmp_path / "b", texts, comparisons=compared(EVIL))
    assert page.tags == page_of(harmless, tmp_path / "a", comparisons=compared("x")).tags
    # The curves' data, and the script that draws them.
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [["type", "id"], []]
    # Of title, note, samples, classes, models, algorithms, failed settings, files, checks, code, packages, config ...
    assert page.words.count(EVIL) > 40


@pytest.mark.parametrize(("optional", "pictures", "tables"), [(("gridsearch", "export"), 17, 14), ((), 15, 11)])
@pytest.mark.parametrize("rates", [True, False])
def test_the_page_loads_nothing_from_elsewhere_and_shows_all_figures_and_whole_tables(
    tmp_path: Path, optional: tuple[str, ...], pictures: int, tables: int, rates: bool
) -> None:
    made = made_versions(tmp_path, optional=optional, rates=rates, after="x")
    html = render(made, REPORT, tmp_path / "card")
    page = Page(html)
    assert sum(each.startswith("data:image/png;base64,") for each in page.loaded) == pictures
    assert [each for each in page.loaded if not each.startswith(("data:image/png;base64,", "#"))] == ["data:,"]
    assert not re.search(r"url\(|@import", html)
    # A phone would shrink the page without it.
    assert '<meta name="viewport" content="width=device-width' in html
    assert len(page.tables) == tables + rates
    assert all(len(table) > 1 and {len(row) for row in table} == {len(table[0])} for table in page.tables)
    # The contents lead to every section.
    targets = re.findall(r'href="#([^"]+)"', html)
    assert len(targets) >= (10 if optional else 8)
    assert all(f'id="{target}"' in html for target in targets)
    assert set(re.findall(r'<h2 id="([^"]+)"', html)) <= set(targets)
    # The numbers are strict JSON and have what the page shows; what has no weight has no share.
    made = made_versions(tmp_path / "numbers", optional=optional, rates=rates)
    counters(made, "ingest")["weights"]["qcd"]["entries"] = [0.0, 20.0]
    content = json.loads(numbers(made, REPORT), parse_constant=refuse_constant)
    assert content["runs"] == counters(made, "evaluate")["runs"]
    assert (content["signal"], content["num_events"]) == ("top", 5000)
    assert content["rates_before"] == ({"QCD": 1200.0, "top": 8.0} if rates else None)
    assert (content["gridsearch"] is None) == (content["export"] == {}) == (not optional)
    assert [stage["name"] for stage in content["stages"]] == list(made)
    assert content["cutflow"][0]["columns"]["qcd"]["weighted_efficiency"] is None


def test_models_stand_side_by_side_with_what_is_known_of_each(tmp_path: Path) -> None:
    page = page_of(made_versions(tmp_path), tmp_path)
    assert page.tables[0] == [
        ["Model", "Accuracy", "Parameters", "Time for one event"],
        ["hlf", "0.900 ± 0.010", "2,013", "8.69 µs"],
        ["boosted-trees", "0.900 ± 0.010", *[NOTHING] * 2],
    ]
    assert page.tables[1] == [
        ["Model", "top against QCD", "Behind the best"],
        ["hlf", "0.950 ± 0.005", "the best"],
        ["boosted-trees", "0.950 ± 0.005", "0.012 ± 0.002"],
    ]
    assert "trained with ar-sgd and adam on 2 workers" in " ".join(page.words.split())
    assert page.words.count("Gradient-boosted trees on the high-level features") == 1


def test_points_have_rates_and_those_that_cannot_be_measured_have_one_line(tmp_path: Path) -> None:
    page = page_of(made_versions(tmp_path), tmp_path)
    left, rate = "10.0 % (+3.0 −2.0)", "120/s (+40 −20)"  # noqa: RUF001 - a minus
    assert page.tables[2] == [
        ["Model", "top kept", "Cut", "QCD left"],
        ["hlf", "90 %", "0.7123", left],
        ["boosted-trees", "90 %", "0.7123", left],
    ]
    # Apart, since a table of both is too wide for four classes.
    assert page.tables[3] == [
        ["Model", "top kept", "QCD rate", "top rate", "Purity"],
        ["hlf", "90 %", rate, rate, left],
        ["boosted-trees", "90 %", rate, rate, left],
    ]
    assert "before the classifier QCD 1,200/s, top 8/s" in page.words
    assert "made up too" in page.words
    few = "Not measurable on these events: efficiencies of 99.9 %. Below such a cut, only 2.5 effective events of top"
    # In the summary, and below the table.
    assert page.words.replace("\N{NO-BREAK SPACE}", " ").count(few) == 2


def test_the_summary_answers_the_triggers_question_by_the_best_model(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    better = counters(made, "evaluate")["runs"]["boosted-trees"]["working_points"][0]
    nothing = {"value": 0.0, "low": 0.0, "high": 0.0577}
    better |= {"backgrounds": {"QCD": nothing}, "all_backgrounds": nothing}
    better["rates"] = {"QCD": {"value": 0.0, "low": 0.0, "high": 57.7}, "top": better["rates"]["top"]}
    words = " ".join(page_of(made, tmp_path).words.split())
    assert "At a top efficiency of 90 %, boosted-trees lets < 5.8 % of QCD pass" in words
    assert "QCD < 58/s, top 120/s (+40 −20), together 120/s" in words  # noqa: RUF001 - a minus


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    page = page_of(made_versions(tmp_path / "a", rates=False), tmp_path / "a")
    assert page.tables[2][0] == ["Model", "top kept", "Cut", "QCD left"]
    assert "need a cross-section of every sample" in page.words
    assert "before the classifier" not in page.words
    made = made_versions(tmp_path / "b")
    point = counters(made, "evaluate")["runs"]["hlf"]["working_points"][0]
    point["purity"] = None
    assert page_of(made, tmp_path / "b").tables[3][1][-1] == "not defined"
    for run in counters(made, "evaluate")["runs"].values():
        run["working_points"][0]["measurable"] = False
    (tmp_path / "b" / "evaluate" / "plots" / "importance.png").unlink()
    page = page_of(made, tmp_path / "b")
    assert "No working point can be measured." in page.words
    assert page.tables[2][0] == ["Model", "Backgrounds left", "Cut", "top kept", "Rejection"]
    assert [row[2] for row in page.tables[2][1:]] == ["0.7123", "\N{EN DASH}"] * 2
    assert page.tables[3][0][0] == "Step"
    assert "Permutation importance" not in page.words


def test_every_exported_form_is_shown_with_its_size_and_parity(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    table = next(each for each in page_of(made, tmp_path).tables if each[0][:2] == ["Network", "Form"])
    assert table == [
        ["Network", "Form", "Size", "Differs from torch by"],
        ["hlf", "model.onnx", "53.4 kB", f"1.2 {TIMES} 10⁻⁷"],
        ["hlf", "one_event.onnx", "60.0 kB", f"3 {TIMES} 10⁻⁶"],
    ]
    times = next(each for each in page_of(made, tmp_path).tables if each[0][:2] == ["Network", "Median"])
    assert times[1] == ["hlf", "8.69 µs", "10.5 µs", "13.1 µs", "57.8 µs", "3,276,569/s"]


def test_firmware_stands_beside_the_other_forms(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    networks = counters(made, "export")["networks"]
    networks["particles"] = {**networks["hlf"], "firmware": []}
    networks["hlf"]["firmware"] = [
        {"bits": 8, "largest_difference": 0.2, "same_class": 0.9928, "latency_ns": 60.0, "lookup_tables": 20123},
        {"bits": 16, "largest_difference": 0.0019, "same_class": 1.0, "latency_ns": 85.0, "lookup_tables": 51234},
    ]
    page = page_of(made, tmp_path)
    table = next(each for each in page.tables if each[0][:2] == ["Network", "Form"])
    assert table[0] == [
        *["Network", "Form", "Size", "Differs from torch by", "Same class", "Estimated latency", "Estimated LUTs"]
    ]
    assert [row[1] for row in table[1:]] == [
        *["model.onnx", "one_event.onnx", "hls4ml, 8 bits", "hls4ml, 16 bits"],
        *["model.onnx", "one_event.onnx"],
    ]
    assert table[3] == ["hlf", "hls4ml, 8 bits", NOTHING, "0.2", "99.3 %", "60 ns", "20,123"]
    assert table[4][5:] == ["85 ns", "51,234"]
    assert table[1][4:] == [NOTHING] * 3


def test_comparisons_of_optimisers_stand_on_the_page_where_there_are_some(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    assert "Comparison of optimisers" not in page_of(made, tmp_path).words
    table = {"title": "A study <b>", "heads": ["Method", "test accuracy [%]"], "rows": [["SwarmSGD", "90.10 ± 2e-07"]]}
    table |= {"workers": "MPI ranks", "events": "0001-ab", "notes": ["Times: not checked."]}
    page = Page(render(made, REPORT, tmp_path / "card", comparisons={"mine": table}))
    assert [table["heads"], ["SwarmSGD", f"90.10 ± 2 {TIMES} 10⁻⁷"]] in page.tables
    words = " ".join(page.words.split())
    assert "A study <b> " in words
    assert "events: 0001-ab. Times: not checked. All tables, figures and verdicts: compare/mine/page.md" in words
    assert "#comparisons" in page.loaded
    assert json.loads(numbers(made, REPORT, comparisons={"mine": table}))["comparisons"] == {"mine": table}


def test_the_grid_search_shows_its_best_and_what_failed(tmp_path: Path) -> None:
    page = page_of(made_versions(tmp_path), tmp_path)
    table = next(table for table in page.tables if table[0][0] == "Layers")
    assert len(table) == 1 + 10
    expected = ["50–20", "64", "0.001", "20", "2,013", "0.8710", "the best", "0.3990", "7.80 ± 0.20 µs"]  # noqa: RUF001
    assert table[1] == expected
    assert table[2][6] == "0.0120 ± 0.0040"
    words = " ".join(page.words.split())
    assert "12 settings of a perceptron on the high-level features (1 more failed)" in words
    assert "the loss is not finite" in words


def test_several_trainings_are_shown_with_their_spread_and_which_one_the_rest_is_of(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    assert "Several trainings" not in page_of(made, tmp_path).words
    spread = {"mean": 0.9012, "spread": 0.0123}
    points = [{"wanted": 0.9, "mean": 0.123, "spread": 0.0456}, {"wanted": 0.999, **spread}]
    counters(made, "evaluate")["runs"]["hlf"]["trainings"] = {
        "count": 5, "accuracy": spread, "auc_against": {"QCD": spread},
        "working_points": points,
    }  # fmt: skip
    one = counters(made, "train")["networks"]["hlf"]
    counters(made, "train")["further"] = {"hlf": {"hlf-seed-2": one | {"best_val_loss": 0.4321}}}
    page = page_of(made, tmp_path)
    heads = ["Network", "Trainings", "Accuracy", "AUC QCD"]
    table = next(each for each in page.tables if each[0][:2] == heads[:2])
    assert table[0] == [*heads, "Left at 90 %"]
    assert table[1:] == [["hlf", "5", *["0.901 ± 0.012"] * 2, "12.30 ± 4.56 %"]]
    assert "the model that is promoted are of the first training" in " ".join(page.words.split())
    further = next(each for each in page.tables if each[0][0] == "Further training")
    assert further[1] == ["hlf-seed-2", "4", "0.4321", "0.900"]


def test_the_importance_of_kinds_of_particles_is_a_table_of_the_networks_on_particles(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    assert "Importance of kinds" not in page_of(made, tmp_path).words
    runs = counters(made, "evaluate")["runs"]
    runs["hlf"]["importance_of_kinds"] = {"lepton": {"value": 0.123, "error": 0.004}}
    other = {"lepton": {"value": 0.2, "error": 0.01}, "high-level features": {"value": 0.3, "error": 0.02}}
    runs["inclusive"] = runs["boosted-trees"] | {"importance_of_kinds": other}
    counters(made, "evaluate")["behind_best"]["inclusive"] = {"value": 0.0, "error": 0.0}
    table = next(each for each in page_of(made, tmp_path).tables if each[0][:2] == ["Network", "lepton"])
    assert table == [
        ["Network", "lepton", "high-level features"],
        ["hlf", "0.123 ± 0.004", NOTHING],
        ["inclusive", "0.200 ± 0.010", "0.300 ± 0.020"],
    ]


def test_shifts_by_weights_and_scales_stand_under_the_working_points(tmp_path: Path) -> None:
    made = made_versions(tmp_path)
    assert "percentage points" not in render(made, REPORT, tmp_path / "card")
    metrics = made["evaluate"].manifest["counters"]
    name, run = next(iter(metrics["runs"].items()))
    number = {"value": 0.5, "shift": -0.0123, "error": 0.001}
    points = [
        {"wanted": point["wanted"], "efficiencies": dict.fromkeys(metrics["classes"], number)}
        for point in run["working_points"]
    ]
    run["systematics"] = {"jet scale +2 %": {"accuracy": None, "auc": number, "working_points": points}}
    page = render(made, REPORT, tmp_path / "card")
    assert page.count("Changes with shifted energy scales") == 1
    assert "Changes with other weights" not in page
    assert "jet scale +2\N{NO-BREAK SPACE}%" in page
    assert "-1.23 ± 0.10" in page
    (table,) = [each for each in evaluation_tables(metrics) if each.rows[0][1] == "systematics"]
    assert table.rows[1][3:5] == ("-", "-1.23 ± 0.10")
    assert len(table.rows) > 1
    assert [row[:2] for row in table.rows[1:]] == [(name, "jet scale +2 %") for _ in table.rows[1:]]
    assert (table.caption, "root mean square" in page) == ("", False)
