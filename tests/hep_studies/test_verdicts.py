"""Intervals and verdicts that are right in simulated studies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from hep_studies.judging import (
    FAILS,
    HOLDS,
    LEVEL,
    OPEN,
    Difference,
    Verdict,
    holm,
    together,
    verdict_of,
)
from hep_studies.study import FOLDER

NUM_EVENTS = 631


class World(NamedTuple):
    """Standard deviations of what makes an event right or wrong, in units of its margin."""

    event: float = 1.6
    """How hard an event is, for every method and seed."""
    method: float = 0.06
    """How hard it is for one method, with every seed."""
    both: float = 0.15
    """How hard it is for one method with one seed."""
    seed: float = 0.02
    """How good a method is with a seed."""

    def drawn(
        self, studies: int, seeds: int, *, ahead: float = 0.0, events: int = NUM_EVENTS
    ) -> NDArray[np.float64]:
        """Tables (studies, seeds, events) of -1, 0, 1 of two methods at 90 %; the first has this larger margin."""
        rng = np.random.default_rng([seeds, events])
        common = ndtri(0.9) * math.hypot(*self) + self.event * rng.normal(size=(studies, 1, events))
        right = []
        for start in (ahead, 0.0):
            margin = common + start + self.method * rng.normal(size=(studies, 1, events))
            margin = margin + self.seed * rng.normal(size=(studies, seeds, 1))
            right.append(margin + self.both * rng.standard_normal((studies, seeds, events)) > 0)
        return right[0].astype(float) - right[1]


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(method=0.0),
        World(seed=0.1),
        World(method=0.5, both=0.2),
        World(method=0.5, both=0.7),
    ],
)
def test_intervals_over_seeds_and_events_cover_the_truth(world: World, seeds: int) -> None:
    found = [Difference.of_events(table) for table in world.drawn(200, seeds)]
    # Four standard deviations of 200 draws are 0.06.
    assert np.mean([abs(each.value) < each.half_width() for each in found]) > 1 - LEVEL - 0.06


def test_seeds_alone_would_raise_false_alarms() -> None:
    tables = World(method=0.3).drawn(200, 30)
    alone = [Difference.of_numbers(table.mean(axis=1)) for table in tables]
    assert np.mean([abs(each.value) > each.half_width() for each in alone]) > 0.2


def test_the_parts_of_the_variance_are_those_put_in() -> None:
    rng = np.random.default_rng(5)
    shapes = ((2, (400, 6, 1)), (3, (400, 1, 50)), (1, (400, 6, 50)))
    tables = sum((scale * rng.normal(size=shape) for scale, shape in shapes), np.zeros(()))
    found = [Difference.of_events(table) for table in tables]
    assert np.mean([each.of_seed for each in found]) == pytest.approx(4 + 1 / 50, rel=0.1)
    assert np.mean([each.of_event for each in found]) == pytest.approx(9, rel=0.1)


def test_equal_spreads_and_one_seed_are_no_certainty() -> None:
    assert Difference.of_numbers([1.0, 1.0]).half_width() > 0
    assert Difference.of_events(np.tile([1.0] + [0.0] * 999, (2, 1))).half_width() > 1e-3
    for one in (Difference.of_numbers([1.0]), Difference.of_events(np.ones((1, 50)))):
        assert verdict_of(one.value, one.half_width(), 0.1) is Verdict.NOT_DECIDABLE
    for none in (
        Difference.of_numbers([]),
        Difference.of_events([]),
        Difference.of_numbers([0.1, math.inf]),
    ):
        assert verdict_of(none.value, none.half_width(), 0.1) is Verdict.NOT_DECIDABLE


def is_true(verdict: Verdict, truth: float, least: float, *, of_equals: bool) -> bool:
    """Whether a verdict is right, if the true difference is this; one that leaves the claim open is never wrong."""
    regions = {
        Verdict.CONFIRMED: truth >= least,
        Verdict.SMALLER: truth < least,
        Verdict.CONTRADICTED: abs(truth) >= least if of_equals else truth < 0,
        Verdict.EQUIVALENT: abs(truth) < least,
    }
    return regions.get(verdict, True)


def error_rates(
    truth: float, seeds: Sequence[int], *, of_equals: bool, studies: int
) -> list[tuple[float, float]]:
    """Shares of decided and of wrong verdicts over studies that grow seed by seed, whose differences have spread 1."""
    values = np.random.default_rng(0).normal(truth, 1.0, (studies, max(seeds)))
    found = []
    for number in seeds:
        drawn = map(Difference.of_numbers, values[:, :number])
        given = [
            verdict_of(each.value, each.half_width(), 1.0, of_equals=of_equals) for each in drawn
        ]
        wrong = np.mean([not is_true(each, truth, 1.0, of_equals=of_equals) for each in given])
        found.append((float(np.mean([each not in OPEN for each in given])), float(wrong)))
    return found


@pytest.mark.slow
def test_the_error_rates_of_the_page_of_claims_are_those_of_simulated_studies() -> None:
    seeds, page = (3, 10, 30, 100), (FOLDER / "claims.md.j2").read_text()
    for truth, of_equals in (
        (2.0, False),
        (0.99, False),
        (0.01, False),
        (-0.5, False),
        (0.5, True),
        (1.01, True),
    ):
        kind = "equal within 1" if of_equals else "at least 1"
        rates = error_rates(truth, seeds, of_equals=of_equals, studies=1000)
        for number, (decided, wrong) in zip(seeds, rates, strict=True):
            assert f"|{kind}|{truth}|{number}|{100 * decided:.1f}|{100 * wrong:.1f}|" in page


GRID = np.linspace(-4, 4, 33)


@pytest.mark.parametrize("of_equals", [False, True])
def test_more_data_turned_a_refuted_claim_into_a_confirmed_one(of_equals: bool) -> None:
    """An interval within another has the same verdict, or one that the other leaves open."""
    order = {Verdict.SMALLER: 1, Verdict.CONTRADICTED: 2}
    for value in GRID:
        for before, after in pairwise(np.linspace(3, 0.01, 30)):
            for centre in (value + shift * (before - after) for shift in (-1, 0, 1)):
                intervals = ((value, before), (centre, after))
                old, new = (
                    verdict_of(*interval, 1.0, of_equals=of_equals) for interval in intervals
                )
                assert old in OPEN or old is new or (old in FAILS and order[old] < order[new]), (
                    intervals
                )
                # Whatever the interval allows is not denied.
                ends = (centre - after, centre + after)
                assert all(is_true(new, truth, 1.0, of_equals=of_equals) for truth in ends)


@pytest.mark.parametrize("of_equals", [False, True])
@pytest.mark.parametrize("truth", [2.0, 1.0, 0.99, 0.5, 0.01, -0.01, -2.0])
def test_verdicts_left_the_truth_as_seeds_grew(truth: float, of_equals: bool) -> None:
    found = error_rates(truth, (3, 10, 30, 200), of_equals=of_equals, studies=400)
    assert all(wrong < LEVEL / 2 + 0.03 for _, wrong in found)
    decided = [share for share, _ in found]
    if abs(truth) in (0.5, 2.0):
        assert decided == sorted(decided)
        assert decided[-1] > 0.95


def test_what_ten_times_the_data_would_not_decide_asked_for_millions_of_events() -> None:
    assert verdict_of(0.98, 0.98, 1.0) is Verdict.NOT_DECIDABLE
    assert verdict_of(0.6, 0.98, 1.0) is Verdict.UNDECIDED
    # More seeds do not make what simulated times share any smaller.
    for shift in (0.9, math.inf):
        assert verdict_of(0.6, 0.08, 1.0, shifts=(-shift, shift)) is Verdict.NOT_DECIDABLE


def test_a_family_without_any_difference_has_a_wrong_verdict_in_one_of_twenty() -> None:
    draws = np.random.default_rng(6).normal(size=(2000, 12))
    alarms = [
        any(
            abs(z) > -ndtri(level / 2)
            for z, level in zip(row, holm([_beyond(z) for z in row]), strict=True)
        )
        for row in draws
    ]
    assert np.mean(alarms) == pytest.approx(LEVEL, abs=0.02)
    assert holm([_beyond(z) for z in (9.0, 0.1, 2.3)]) == pytest.approx(
        [LEVEL / 3, LEVEL, LEVEL / 2]
    )


def _beyond(z: float) -> object:
    return lambda level: abs(z) > -ndtri(level / 2)


A, B, C, U, N = (
    Verdict.CONFIRMED,
    Verdict.SMALLER,
    Verdict.CONTRADICTED,
    Verdict.UNDECIDED,
    Verdict.NOT_DECIDABLE,
)


@pytest.mark.parametrize(
    ("found", "share", "expected"),
    [
        ([A, A], 1.0, A),
        ([A, U], 1.0, U),
        ([A, N], 1.0, N),
        ([A, B], 1.0, B),
        ([B, C, N], 1.0, C),
        ([A, A, C], 0.6, A),
        ([A, C, C], 0.6, C),
        ([A, B, C], 0.6, B),
        ([A, U, N], 0.6, U),
        ([], 1.0, N),
    ],
)
def test_a_claim_of_several_comparisons(
    found: list[Verdict], share: float, expected: Verdict
) -> None:
    assert together(found, share=share) is expected
    assert together([Verdict.EQUIVALENT] * 2) is Verdict.EQUIVALENT
    assert {*HOLDS, *FAILS, *OPEN} == set(Verdict)
