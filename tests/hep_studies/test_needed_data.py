"""What would decide an open claim: seeds, test events, hours, or checked times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_study import EQUAL_ACCURACY, example_result, example_run, example_study

from hep_studies.judging import JudgedClaim, judge
from hep_studies.run_result import Counts, RunResult
from hep_studies.verdicts import OPEN

IN_LOSS = {"better": "ad-psgd", "control": "ar-sgd", "measure": "val_loss"}


def loss_runs(
    differences: Sequence[float], *, wall_seconds: float | None = None
) -> list[RunResult]:
    """Runs in which AD-PSGD has the loss of AR-SGD less a difference for each seed."""
    runs = []
    for seed, difference in enumerate(differences, 1):
        for method, loss in (("ar-sgd", 0.5), ("ad-psgd", 0.5 - difference)):
            run = example_run(method, seed)
            curves = {**run.curves, "val_loss": [loss] * 6}
            runs.append(replace(run, curves=curves, wall_seconds=wall_seconds))
    return runs


def judged_claim(runs: list[RunResult], claim: dict[str, Any], **changes: Any) -> JudgedClaim:
    """A claim judged by runs; `changes`: of the result or, if it is no field of it, of the study."""
    row = {"says": "x", **EQUAL_ACCURACY, **claim}
    of_result = {key: changes.pop(key) for key in ("checks", "form") if key in changes}
    result = example_result(example_study(claims=[row], **changes), runs)
    return judge(replace(result, **of_result))[0]


def test_the_number_of_seeds_decides_the_claim_if_the_mean_stays() -> None:
    mean, spread = 0.0035, 0.004
    pattern = np.array([-1.0, 1.0])
    differences = mean + spread * np.tile(pattern, 3)

    judged = judged_claim(loss_runs(differences), IN_LOSS)

    assert judged.verdict in OPEN
    num_seeds = int(judged.would_decide.split()[0])
    assert judged.would_decide.startswith(f"{num_seeds} seeds (now 6; ")
    # As many seeds of the same mean and variance decide it, and a seed fewer does not.
    difference = judged.comparisons[0].difference
    for number, is_open in ((num_seeds, False), (num_seeds - 1, True)):
        grown = judged.comparisons[0]._replace(difference=difference._replace(num_seeds=number))
        assert (grown.verdict in OPEN) == is_open


@pytest.mark.parametrize(
    ("wall_seconds", "hours_per_seed"),
    # Two runs of a seed, an hour each on two cores; else the minutes of the study by its seeds.
    [(3600.0, 1.0), (None, 1 / 60 / 2)],
)
def test_hours_are_those_of_the_stored_runs_or_of_the_study(
    wall_seconds: float | None, hours_per_seed: float
) -> None:
    differences = 0.0035 + 0.004 * np.tile([-1.0, 1.0], 3)

    judged = judged_claim(loss_runs(differences, wall_seconds=wall_seconds), IN_LOSS)

    num_seeds = int(judged.would_decide.split()[0])
    hours = float(judged.would_decide.split()[-2])
    assert hours == pytest.approx((num_seeds - 6) * hours_per_seed, rel=0.05)


def test_test_events_are_needed_where_their_error_dominates() -> None:
    """All seeds predict the same events, so that more seeds bring nothing."""
    is_correct = {method: np.ones(1000, dtype=bool) for method in ("ad-psgd", "ar-sgd")}
    # AD-PSGD is right about 20 events where AR-SGD is wrong, and wrong about 10 others.
    is_correct["ar-sgd"][:20] = False
    is_correct["ad-psgd"][20:30] = False
    runs = []
    for method, mask in is_correct.items():
        counts = Counts.from_mask(mask, float(mask.mean()))
        runs += [replace(example_run(method, seed), counts=counts) for seed in range(1, 7)]

    judged = judged_claim(runs, {"better": "ad-psgd", "control": "ar-sgd"})

    assert judged.verdict in OPEN
    assert " test events (now 1,000)" in judged.would_decide


@pytest.mark.parametrize(
    ("claim", "changes", "would_decide"),
    [
        ({**IN_LOSS, "withdrawn": "faulty"}, {}, "its runs made again"),
        ({**IN_LOSS, "not_decidable": "no GPU"}, {}, "other runs than these: no GPU"),
        (IN_LOSS, {"demonstration": "few"}, "the full form of the study"),
        (IN_LOSS, {"demonstration": "few", "form": "full"}, "data that are no demonstration"),
        (
            {**IN_LOSS, "measure": "seconds_to=0.99"},
            {},
            "longer runs or another goal: here a run diverged or did not reach it",
        ),
        # AR-SGD and AD-PSGD take the same time, of which no check says how wrong it is.
        (
            {**IN_LOSS, "measure": "seconds_per_batch"},
            {},
            "a closer check of the simulated times",
        ),
    ],
    ids=str,
)
def test_what_is_not_a_matter_of_data_is_said(
    claim: dict[str, Any], changes: dict[str, Any], would_decide: str
) -> None:
    runs = loss_runs([0.0035 + 0.004, 0.0035 - 0.004, 0.0035])

    judged = judged_claim(runs, claim, **changes)

    assert judged.verdict in OPEN
    assert judged.would_decide == would_decide


def test_a_decided_claim_needs_nothing() -> None:
    judged = judged_claim(loss_runs([0.01, 0.011, 0.012]), IN_LOSS)

    assert judged.verdict not in OPEN
    assert judged.would_decide == ""


def test_an_effect_at_the_limit_of_two_verdicts_is_decided_by_no_data() -> None:
    threshold = 0.002
    differences = threshold + 0.004 * np.tile([-1.0, 1.0], 3)

    judged = judged_claim(loss_runs(differences), IN_LOSS)

    assert judged.would_decide.startswith("no feasible amount of data")


def test_a_decided_claim_at_an_edge_needs_a_wider_sweep() -> None:
    rate = "train.learning_rate"
    runs = []
    for value in (0.1, 0.2):
        without_rate = loss_runs([0.01, 0.011, 0.012])
        runs += [replace(run, values={rate: value}) for run in without_rate]
    at_best = {**IN_LOSS, "protocol": "each at its best"}

    judged = judged_claim(runs, at_best, vary={rate: [0.1, 0.2]}, best_of=[rate])

    assert judged.verdict not in OPEN
    assert judged.would_decide == "a sweep beyond its edge"
