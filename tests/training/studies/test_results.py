"""`comparison.json` and the page made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_comparison import made_comparison

from models.evaluation.style import PlotLabels
from training.studies.drawing import draw
from training.studies.page import render
from training.studies.results import Comparison, load
from training.studies.variants import Variant

COMPARISON = made_comparison()


def test_a_comparison_survives_a_round_trip_through_json() -> None:
    content = json.loads(json.dumps(COMPARISON.to_json()))
    assert Comparison.from_json(content) == COMPARISON


def test_only_a_result_of_the_same_plan_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    assert load(path, "0123") is None
    path.write_text(json.dumps(COMPARISON.to_json()))
    assert load(path, "0123") == COMPARISON
    assert load(path, "4567") is None
    path.write_text(path.read_text()[:-20])
    assert load(path, "0123") is None


def test_curves_are_ordered_by_seed() -> None:
    turned = COMPARISON._replace(runs=COMPARISON.runs[::-1])
    variant = Variant.of("ad-psgd")
    assert [run.seed for run in turned.of("hlf", variant)] == [1, 2]
    np.testing.assert_array_equal(
        turned.curves("hlf", variant, "val_loss"), COMPARISON.curves("hlf", variant, "val_loss")
    )


@pytest.mark.slow
def test_the_page_embeds_every_figure_and_says_how_it_was_made(tmp_path: Path) -> None:
    drawn = draw(COMPARISON, PlotLabels("", "technical sample", 13), tmp_path / "figures")
    page = render(COMPARISON, drawn, folder="figures")
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert sorted(links) == sorted(f"figures/{each.stem}.png" for each in drawn)
    assert all((tmp_path / link).exists() for link in links)
    for words in (
        "python -m pipeline compare thesis",
        "Some Processor, 2 core(s)",
        "| torch | 2.13.0 |",
        "| test | 500 | 500 | 1000 |",
        "seeds: hlf 1 to 2; particles 1 to 2",
        "| sample | technical sample |",
        "| code of the runs | commit 1 |",
        "learning rate 0.001, each for every method",
    ):
        assert words in page, words


def test_numbers_of_the_thesis_stand_in_no_table() -> None:
    page = render(COMPARISON, [], folder="figures")
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert not [line for line in tables if "91.68" in line or "94.06" in line]
    assert "91.68 %" in page


def test_the_linear_rule_is_stated_where_it_holds() -> None:
    train = {**COMPARISON.settings["train"], "optimizer": "sgd"}
    comparison = COMPARISON._replace(settings={**COMPARISON.settings, "train": train})
    assert "multiplied by the number of workers for AR-SGD (linear rule)" in render(comparison, [], folder="x")
