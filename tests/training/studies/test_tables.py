"""Tables and sentences: they state the numbers without further claims."""

from __future__ import annotations

import re

import pytest
from made_comparison import NUM_EVENTS, made_comparison

from training.studies.results import lowest_loss
from training.studies.statistics import Word, mean_of
from training.studies.tables import (
    Pair,
    accuracy_table,
    binomial_note,
    judged,
    overall,
    pairs,
    rate_table,
    still_learning,
    verdict_table,
    work_table,
)
from training.studies.variants import ALL_VARIANTS, REFERENCE, Variant

BEST = Variant.of("swarm-sgd-slowmo-no-avg")
PAIR = Pair(BEST, REFERENCE)


def cells(table: str, row: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[row + 2].strip("|").split("|")]


def test_the_accuracy_table_has_the_layout_of_the_thesis() -> None:
    table = accuracy_table(made_comparison({"ad-psgd-slowmo": [910, 930]}), "hlf")
    assert [cells(table, row)[0] for row in range(4)] == ["SGD, one worker", "AR-SGD", "AD-PSGD", "SwarmSGD"]
    assert cells(table, 1)[3] == "-"
    expected = mean_of([0.91, 0.93])
    assert cells(table, 2)[2] == f"92.00 % ± {100 * expected.spread:.2f} (s.e. {100 * expected.error:.2f})"


def test_the_note_has_the_binomial_error_and_its_number_of_events() -> None:
    note = binomial_note(made_comparison(), "hlf")
    assert f"N = {NUM_EVENTS}" in note
    assert "0.93 points" in note  # sqrt(0.905 * 0.095 / 1000)


def test_every_variant_is_compared_with_the_reference_its_own_baseline_and_the_exact_average() -> None:
    words = [f"{pair.this.key} {pair.other.key}" for pair in pairs(ALL_VARIANTS)]
    assert len(words) == len(set(words)) == 8 + 4 + 4 + 2
    assert "swarm-sgd-slowmo-no-avg swarm-sgd-slowmo" in words
    assert "ad-psgd-slowmo ad-psgd" in words
    assert "ad-psgd-slowmo ar-sgd-slowmo" in words
    assert "sgd ar-sgd" in words


def test_a_difference_that_is_lost_in_the_errors_is_undecided_and_says_what_it_needs() -> None:
    found = judged(made_comparison({BEST.key: [904, 915]}), "hlf")
    assert found[PAIR].word is Word.UNDECIDED
    assert re.search(r"undecided \(needs about [\d,]+ (seeds|test events)", verdict_table(found))
    assert overall(found).startswith("Of the 18 comparisons: 0 better, 0 worse")


def test_a_difference_beyond_all_errors_is_called_one_with_its_direction() -> None:
    seeds = [900, 905, 903, 902, 899, 901]
    rest = {variant.key: seeds for variant in ALL_VARIANTS if variant not in PAIR}
    comparison = made_comparison({"ar-sgd": seeds, BEST.key: [number + 60 for number in seeds]} | rest)
    found = judged(comparison, "hlf")
    row = next(line for line in verdict_table(found).splitlines() if f"| {BEST.title} | AR-SGD |" in line)
    assert "| +6.00 | +4." in row
    assert row.endswith("| better |")
    # Against AR-SGD, both with SlowMo, and SwarmSGD alone and with the exact average.
    assert overall(found).startswith("Of the 18 comparisons: 4 better, 0 worse")
    turned = made_comparison({"ar-sgd": [number + 60 for number in seeds], BEST.key: seeds} | rest)
    assert judged(turned, "hlf")[PAIR].word is Word.WORSE


def test_differences_are_paired_by_seed_and_event() -> None:
    comparison = made_comparison({"ar-sgd": [900, 700], BEST.key: [903, 705]})
    found = judged(comparison, "hlf")[PAIR].difference
    assert found.value == pytest.approx(0.004)
    assert found.of_seed == pytest.approx(2e-6)


def test_each_method_stands_at_its_own_best_learning_rate() -> None:
    comparison = made_comparison()
    worse = {name: [2.0] * 6 for name in ("val_loss", "val_accuracy", "consensus_distance", "seconds", "communicate")}
    other = [
        run._replace(learning_rate=3e-3, curves=worse if run.variant == "ad-psgd" else run.curves | {"val_loss": [0.0]})
        for run in comparison.runs
    ]
    swept = comparison._replace(runs=[*other, *comparison.runs])
    assert {run.learning_rate for run in swept.of("hlf", Variant.of("ad-psgd"))} == {1e-3}
    assert {run.learning_rate for run in swept.of("hlf", REFERENCE)} == {3e-3}
    table = rate_table(swept, "hlf")
    assert cells(table, 0)[1:] == [
        f"{lowest_loss(comparison.of('hlf', REFERENCE)):.4f}; 90.50 %",
        "**0.0000; 90.50 %**",
        "the highest tried: a better one may lie beyond",
    ]


def test_the_work_table_shows_that_all_trained_on_as_many_events() -> None:
    table = work_table(made_comparison(), "hlf")
    assert {cells(table, row)[2] for row in range(9)} == {"4,800"}
    # 8000 bytes of 2 workers and 6 epochs.
    assert cells(table, 0)[3] == "1"
    assert cells(table, 0)[7] == "89.00 % (88.00 to 90.00)"


def test_one_seed_is_shown_as_such() -> None:
    comparison = made_comparison({variant.key: [900] for variant in ALL_VARIANTS})
    assert "(one seed)" in accuracy_table(comparison, "hlf")
    assert "| ? | 1 | 1 | undecided (needs 2 or more seeds) |" in verdict_table(judged(comparison, "hlf"))


def test_runs_that_were_best_near_their_end_are_counted() -> None:
    comparison = made_comparison()
    found = [run for run in comparison.runs if run.model == "hlf"]
    assert still_learning(comparison, "hlf").startswith(f"In {len(found)} of the {len(found)} runs")
    found[0].summary["best_epoch"] = 0
    assert still_learning(comparison, "hlf").startswith(f"In {len(found) - 1} of the {len(found)} runs")
