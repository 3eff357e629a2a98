"""Intervals and verdicts that are right in simulated studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from hep_studies.study import FOLDER
from hep_studies.verdicts import (
    FAILS,
    HOLDS,
    LEVEL,
    OPEN,
    Difference,
    Verdict,
    combine_verdicts,
    holm_levels,
    verdict_of,
)

NUM_EVENTS = 631
#: Least effect that confirms the claims of these tests, or margin of their equivalences.
THRESHOLD = 1.0


class EventModel(NamedTuple):
    """Standard deviations of the parts of an event's margin: it is correct above 0."""

    event: float = 1.6
    """Difficulty of an event, for every method and seed."""
    event_and_method: float = 0.06
    """Difficulty for one method, with every seed."""
    event_method_and_seed: float = 0.15
    """Difficulty for one method with one seed."""
    seed: float = 0.02
    """Quality of a method with a seed."""

    def draw_differences(
        self, num_studies: int, num_seeds: int, *, lead: float = 0.0
    ) -> NDArray[np.float64]:
        """Differences of two methods at 90 % accuracy, (studies, seeds, events) of -1, 0, 1.

        The margins of the first method are larger by the lead.
        """
        rng = np.random.default_rng([num_seeds, NUM_EVENTS])
        per_event = (num_studies, 1, NUM_EVENTS)
        per_seed = (num_studies, num_seeds, 1)
        per_event_and_seed = (num_studies, num_seeds, NUM_EVENTS)
        mean_margin = ndtri(0.9) * math.hypot(*self)
        common = mean_margin + self.event * rng.normal(size=per_event)
        correct = []
        for method_lead in (lead, 0.0):
            margin = common + method_lead
            margin = margin + self.event_and_method * rng.normal(size=per_event)
            margin = margin + self.seed * rng.normal(size=per_seed)
            margin = margin + self.event_method_and_seed * rng.normal(size=per_event_and_seed)
            correct.append(margin > 0)
        first, second = correct
        return first.astype(float) - second


@pytest.mark.parametrize("num_seeds", [3, 10])
@pytest.mark.parametrize(
    "model",
    [
        EventModel(),
        EventModel(event_and_method=0.0),
        EventModel(seed=0.1),
        EventModel(event_and_method=0.5, event_method_and_seed=0.2),
        EventModel(event_and_method=0.5, event_method_and_seed=0.7),
    ],
)
def test_intervals_over_seeds_and_events_cover_the_truth(model: EventModel, num_seeds: int) -> None:
    tables = model.draw_differences(200, num_seeds)

    differences = [Difference.from_events(table) for table in tables]
    covered = [abs(difference.mean) < difference.half_width() for difference in differences]

    # Four standard deviations of 200 draws are 0.06.
    assert np.mean(covered) > 1 - LEVEL - 0.06


def test_intervals_over_seeds_alone_miss_the_truth_too_often() -> None:
    tables = EventModel(event_and_method=0.3).draw_differences(200, 30)

    differences = [Difference.from_seeds(table.mean(axis=1)) for table in tables]
    missed = [abs(difference.mean) > difference.half_width() for difference in differences]

    assert np.mean(missed) > 0.2


def test_the_variances_of_seeds_and_events_are_found_again() -> None:
    rng = np.random.default_rng(5)
    seeds = 2 * rng.normal(size=(400, 6, 1))
    events = 3 * rng.normal(size=(400, 1, 50))
    noise = rng.normal(size=(400, 6, 50))

    differences = [Difference.from_events(table) for table in seeds + events + noise]

    seed_variances = [difference.seed_variance for difference in differences]
    event_variances = [difference.event_variance for difference in differences]
    # The noise of 50 events adds to the variance of seeds.
    assert np.mean(seed_variances) == pytest.approx(4 + 1 / 50, rel=0.1)
    assert np.mean(event_variances) == pytest.approx(9, rel=0.1)


def test_equal_numbers_are_no_certainty() -> None:
    one_event_differs = np.zeros((2, 1000))
    one_event_differs[:, 0] = 1.0

    over_seeds = Difference.from_seeds([1.0, 1.0])
    over_events = Difference.from_events(one_event_differs)

    assert over_seeds.half_width() > 0
    assert over_events.half_width() > 1e-3


@pytest.mark.parametrize(
    "difference",
    [
        Difference.from_seeds([1.0]),
        Difference.from_events(np.ones((1, 50))),
        Difference.from_seeds([]),
        Difference.from_events([]),
        Difference.from_seeds([0.1, math.inf]),
    ],
)
def test_one_seed_and_missing_numbers_decide_nothing(difference: Difference) -> None:
    verdict = verdict_of(difference.mean, difference.half_width(), 0.1)

    assert verdict is Verdict.UNDECIDED


def is_true(verdict: Verdict, truth: float, *, is_equivalence: bool) -> bool:
    """Whether a verdict is right for this true difference; open claims are never wrong."""
    if verdict is Verdict.CONFIRMED:
        return truth >= THRESHOLD
    if verdict is Verdict.SMALLER:
        return truth < THRESHOLD
    if verdict is Verdict.EQUIVALENT:
        return abs(truth) < THRESHOLD
    if verdict is Verdict.CONTRADICTED:
        return abs(truth) >= THRESHOLD if is_equivalence else truth < 0
    return True


def error_rates(
    truth: float, numbers_of_seeds: Sequence[int], *, is_equivalence: bool, num_studies: int
) -> list[tuple[float, float]]:
    """Shares of decided and of wrong verdicts over studies that grow seed by seed.

    The differences of a study have a spread of 1 over the seeds.
    """
    rng = np.random.default_rng(0)
    values = rng.normal(truth, 1.0, (num_studies, max(numbers_of_seeds)))
    rates = []
    for num_seeds in numbers_of_seeds:
        num_decided = 0
        num_wrong = 0
        for differences in values[:, :num_seeds]:
            difference = Difference.from_seeds(differences)
            verdict = verdict_of(
                difference.mean,
                difference.half_width(),
                THRESHOLD,
                is_equivalence=is_equivalence,
            )
            num_decided += verdict not in OPEN
            num_wrong += not is_true(verdict, truth, is_equivalence=is_equivalence)
        rates.append((num_decided / num_studies, num_wrong / num_studies))
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "truth"),
    [
        ("at least 1", 2.0),
        ("at least 1", 0.99),
        ("at least 1", 0.01),
        ("at least 1", -0.5),
        ("equal within 1", 0.5),
        ("equal within 1", 1.01),
    ],
)
def test_the_page_of_claims_has_the_error_rates_of_simulated_studies(
    claim: str, truth: float
) -> None:
    page = FOLDER / "claims.md.j2"
    text = page.read_text()
    seeds = (3, 10, 30, 100)
    is_equivalence = claim.startswith("equal")

    rates = error_rates(truth, seeds, is_equivalence=is_equivalence, num_studies=1000)

    for num_seeds, (decided, wrong) in zip(seeds, rates, strict=True):
        percentages = f"{100 * decided:.1f}|{100 * wrong:.1f}"
        assert f"|{claim}|{truth}|{num_seeds}|{percentages}|" in text


@pytest.mark.parametrize("is_equivalence", [False, True])
def test_an_interval_within_another_keeps_a_decided_verdict(is_equivalence: bool) -> None:
    """A smaller effect may also turn into one of the other direction."""
    means = np.linspace(-4, 4, 33)
    half_widths = np.linspace(3, 0.01, 30)
    directions = (-1, 0, 1)
    for mean, (wide, narrow), direction in product(means, pairwise(half_widths), directions):
        inner_mean = mean + direction * (wide - narrow)

        outer = verdict_of(mean, wide, THRESHOLD, is_equivalence=is_equivalence)
        inner = verdict_of(inner_mean, narrow, THRESHOLD, is_equivalence=is_equivalence)

        turns = outer is Verdict.SMALLER and inner is Verdict.CONTRADICTED
        assert outer in OPEN or outer is inner or turns, (mean, wide, narrow, direction)
        # A verdict denies no difference that the interval allows.
        for end in (inner_mean - narrow, inner_mean + narrow):
            assert is_true(inner, end, is_equivalence=is_equivalence)


@pytest.mark.parametrize("is_equivalence", [False, True])
@pytest.mark.parametrize("truth", [2.0, 1.0, 0.99, 0.5, 0.01, -0.01, -2.0])
def test_verdicts_stay_with_the_truth_as_seeds_grow(truth: float, is_equivalence: bool) -> None:
    rates = error_rates(truth, (3, 10, 30, 200), is_equivalence=is_equivalence, num_studies=400)

    for _, wrong in rates:
        assert wrong < LEVEL / 2 + 0.03
    decided = [share for share, _ in rates]
    if abs(truth) in (0.5, 2.0):
        assert decided == sorted(decided)
        assert decided[-1] > 0.95


def exceeds_quantile(z: float) -> Callable[[float], bool]:
    """Whether a normal variable is beyond its quantile at a level."""
    return lambda level: abs(z) > -ndtri(level / 2)


def test_a_family_without_any_difference_has_a_wrong_verdict_in_one_of_twenty() -> None:
    rng = np.random.default_rng(6)
    families = rng.normal(size=(2000, 12))
    num_alarms = 0
    for family in families:
        decides_at = [exceeds_quantile(z) for z in family]
        levels = holm_levels(decides_at)
        num_alarms += any(decides(level) for decides, level in zip(decides_at, levels, strict=True))

    assert num_alarms / len(families) == pytest.approx(LEVEL, abs=0.02)


def test_each_decided_comparison_leaves_a_higher_level_to_the_next() -> None:
    levels = holm_levels([exceeds_quantile(z) for z in (9.0, 0.1, 2.3)])

    assert levels == pytest.approx([LEVEL / 3, LEVEL, LEVEL / 2])


@pytest.mark.parametrize(
    ("verdicts", "share", "expected"),
    [
        (["confirmed", "confirmed"], 1.0, "confirmed"),
        (["equivalent", "equivalent"], 1.0, "equivalent"),
        (["larger than claimed", "larger than claimed"], 1.0, "larger than claimed"),
        (["larger than claimed", "confirmed"], 1.0, "confirmed"),
        (["confirmed", "undecided"], 1.0, "undecided"),
        (["confirmed", "smaller than claimed"], 1.0, "smaller than claimed"),
        (["smaller than claimed", "contradicted", "undecided"], 1.0, "contradicted"),
        # The interval of 3 of 4 is 19 % to 99.4 %, that of 1 of 4 is 0.6 % to 81 %.
        (["confirmed", "confirmed", "confirmed", "contradicted"], 0.85, "undecided"),
        (["confirmed", "contradicted", "contradicted", "contradicted"], 0.57, "undecided"),
        (["confirmed", "confirmed", "confirmed", "contradicted"], 0.19, "confirmed"),
        (["confirmed", "contradicted", "contradicted", "contradicted"], 0.85, "contradicted"),
        (
            ["confirmed", "smaller than claimed", "contradicted", "contradicted"],
            0.85,
            "smaller than claimed",
        ),
        (["confirmed", "confirmed", "undecided", "contradicted"], 0.19, "undecided"),
        (["contradicted", "contradicted", "contradicted", "undecided"], 0.75, "undecided"),
        ([], 1.0, "not decidable here"),
    ],
)
def test_a_claim_of_several_comparisons(verdicts: list[str], share: float, expected: str) -> None:
    of_comparisons = [Verdict(verdict) for verdict in verdicts]

    combined = combine_verdicts(of_comparisons, share=share)

    assert combined == expected


def test_every_verdict_holds_fails_or_leaves_the_claim_open() -> None:
    assert sorted([*HOLDS, *FAILS, *OPEN]) == sorted(Verdict)
