"""Tables and sentences: they state the numbers without further claims."""

from __future__ import annotations

from made_comparison import NUM_EVENTS, made_comparison

from training.studies.statistics import mean_of
from training.studies.tables import (
    Pair,
    accuracy_table,
    binomial_note,
    difference_table,
    overall,
    pairs,
    sentence,
    still_learning,
    work_table,
)
from training.studies.variants import ALL_VARIANTS, REFERENCE, Variant

BEST = Variant.of("swarm-sgd-slowmo-no-avg")
PAIR = Pair(BEST, REFERENCE)


def cells(table: str, row: int) -> list[str]:
    return [cell.strip() for cell in table.splitlines()[row + 2].strip("|").split("|")]


def test_the_accuracy_table_has_the_layout_of_the_thesis() -> None:
    table = accuracy_table(made_comparison({"ad-psgd-slowmo": [910, 930]}), "hlf")
    assert [cells(table, row)[0] for row in range(3)] == ["AR-SGD", "AD-PSGD", "SwarmSGD"]
    assert cells(table, 0)[2:] == ["-", "-"]
    expected = mean_of([0.91, 0.93])
    assert cells(table, 1)[2] == f"92.00 % ± {100 * expected.spread:.2f} (s.e. {100 * expected.error:.2f})"


def test_the_note_has_the_binomial_error_and_its_number_of_events() -> None:
    note = binomial_note(made_comparison(), "hlf")
    assert f"N = {NUM_EVENTS}" in note
    assert "0.93 points" in note  # sqrt(0.905 * 0.095 / 1000)


def test_every_variant_is_compared_with_the_reference_its_own_baseline_and_the_exact_average() -> None:
    words = [f"{pair.this.key} {pair.other.key}" for pair in pairs(ALL_VARIANTS)]
    assert len(words) == len(set(words)) == 6 + 4 + 2
    assert "swarm-sgd-slowmo-no-avg swarm-sgd-slowmo" in words
    assert "ad-psgd-slowmo ad-psgd" in words


def test_a_difference_that_is_lost_in_the_errors_is_not_called_one() -> None:
    comparison = made_comparison({BEST.key: [904, 915]})
    assert "not distinguishable" in sentence(comparison, "hlf", PAIR)
    assert "smaller than the binomial error of the test split (0.92 points)" in sentence(comparison, "hlf", PAIR)
    assert overall(comparison, "hlf").startswith("None of the 12")
    assert cells(difference_table(comparison, "hlf"), 5)[-1].startswith("no: smaller than")


def test_a_difference_beyond_all_errors_is_called_one_with_its_direction() -> None:
    seeds = {"ar-sgd": [900, 905, 903], BEST.key: [960, 966, 962]}
    rest = {variant.key: [900, 905, 903] for variant in ALL_VARIANTS if variant not in PAIR}
    comparison = made_comparison(seeds | rest)
    assert ": higher; the difference is larger than" in sentence(comparison, "hlf", PAIR)
    assert "+6.00 ± 0.06 points over 3 seed(s)" in sentence(comparison, "hlf", PAIR)
    assert "lower" in sentence(comparison, "hlf", Pair(REFERENCE, BEST))
    assert cells(difference_table(comparison, "hlf"), 5)[-1] == "yes"
    # Against AR-SGD, SwarmSGD alone, and SwarmSGD with the exact average.
    assert overall(comparison, "hlf").startswith("3 of the 12")


def test_the_work_table_shows_that_all_trained_on_as_many_events() -> None:
    table = work_table(made_comparison(), "hlf")
    assert {cells(table, row)[2] for row in range(7)} == {"4,800"}
    # 8000 bytes of 2 workers and 6 epochs.
    assert cells(table, 0)[3] == "1"
    assert cells(table, 0)[7] == "89.00 % (88.00 to 90.00)"


def test_one_seed_is_shown_as_such() -> None:
    comparison = made_comparison({variant.key: [900] for variant in ALL_VARIANTS})
    assert "(one seed)" in accuracy_table(comparison, "hlf")
    assert "± ? points over 1 seed(s): not distinguishable" in sentence(comparison, "hlf", PAIR)


def test_runs_that_were_best_near_their_end_are_counted() -> None:
    comparison = made_comparison()
    found = [run for run in comparison.runs if run.model == "hlf"]
    assert still_learning(comparison, "hlf").startswith(f"In {len(found)} of the {len(found)} runs")
    found[0].summary["best_epoch"] = 0
    assert still_learning(comparison, "hlf").startswith(f"In {len(found) - 1} of the {len(found)} runs")
