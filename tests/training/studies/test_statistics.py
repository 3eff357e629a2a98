"""Means, errors, and verdicts that are right in simulated studies."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from training.studies.statistics import LEVEL, MARGIN, Difference, Word, binomial_error, holm, mean_of, verdicts

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

    def drawn(self, studies: int, seeds: int, events: int, *, ahead: float = 0.0) -> NDArray[np.float32]:
        """Tables (studies, seeds, events) of -1, 0, 1 of two methods at 90 %; the first has this larger margin."""
        rng = np.random.default_rng([seeds, events])
        all_of_them = math.sqrt(sum(each**2 for each in self))
        common = ndtri(0.9) * all_of_them + self.event * rng.normal(size=(studies, 1, events)).astype(np.float32)
        right = []
        for start in (ahead, 0.0):
            margin = common + start + self.method * rng.normal(size=(studies, 1, events)).astype(np.float32)
            margin = margin + self.seed * rng.normal(size=(studies, seeds, 1)).astype(np.float32)
            right.append(margin + self.both * rng.standard_normal((studies, seeds, events), dtype=np.float32) > 0)
        return right[0].astype(np.float32) - right[1]


WORLDS = {
    "as measured": World(),
    "methods agree on events": World(method=0.0),
    "seeds differ much": World(seed=0.1),
    "methods differ by event": World(method=0.5, both=0.2),
    "much noise": World(method=0.5, both=0.7, seed=0.08),
}


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_intervals_cover_and_false_alarms_are_rare(world: World, seeds: int) -> None:
    found = Difference.of(world.drawn(250, seeds, NUM_EVENTS))
    # Over other seeds and other events the true difference is 0; four standard deviations of 250 draws are 0.055.
    assert (np.abs(found.value) < found.half_width()).mean() > 1 - LEVEL - 0.055
    np.testing.assert_array_equal(found.p_different < LEVEL, np.abs(found.value) > found.half_width())


def test_seeds_alone_would_raise_false_alarms() -> None:
    table = World(method=0.3).drawn(250, 30, NUM_EVENTS)
    by_seed = table.mean(axis=2)
    pulls = by_seed.mean(axis=1) / (by_seed.std(axis=1, ddof=1) / math.sqrt(30))
    assert (np.abs(pulls) > 2.045).mean() > 0.2
    assert (Difference.of(table).p_different < LEVEL).mean() < 0.11


@pytest.mark.parametrize(
    ("seeds", "events", "power"), [(10, NUM_EVENTS, 0.05), (30, NUM_EVENTS, 0.25), (20, 10_000, 0.8)]
)
def test_a_true_difference_of_0_3_points_is_found_where_there_is_enough(seeds: int, events: int, power: float) -> None:
    found = Difference.of(World().drawn(30, seeds, events, ahead=0.03))
    assert found.value.mean() == pytest.approx(0.003, abs=0.0012)
    assert (found.p_different < LEVEL).mean() >= power
    # Half of them even as the first of 12 comparisons.
    assert (found.p_different < LEVEL / 12).mean() >= power - 0.3


def test_methods_are_called_equivalent_where_they_are_and_not_at_the_margin() -> None:
    noise = 0.05 * np.random.default_rng(4).standard_normal((200, 8, 1500), dtype=np.float32)
    assert (Difference.of(noise + MARGIN).p_equivalent < LEVEL).mean() < LEVEL + 0.045
    assert (Difference.of(noise).p_equivalent < LEVEL).mean() > 0.2


def test_methods_are_called_unlike_beyond_the_margin_only() -> None:
    noise = 0.02 * np.random.default_rng(4).standard_normal((200, 8, 1500), dtype=np.float32)
    at, beyond = (Difference.of(noise + factor * MARGIN) for factor in (1.0, 4.0))
    assert (at.p_beyond < LEVEL).mean() < LEVEL + 0.045
    # Most of them differ from 0, and half of these are further from it than the margin.
    assert ((at.p_different < LEVEL) & (at.value > MARGIN)).mean() > 0.2
    assert (beyond.p_beyond < LEVEL).mean() > 0.9


def test_few_seeds_do_not_make_a_false_alarm_of_equal_spreads() -> None:
    table = np.zeros((2, 1000))
    table[:, :2] = 1
    assert verdicts([Difference.of(table)])[0].word is Word.UNDECIDED


def test_the_parts_of_the_variance_are_those_put_in() -> None:
    rng = np.random.default_rng(5)
    seeds, events, both = (
        scale * rng.normal(size=shape) for scale, shape in ((2, (400, 6, 1)), (3, (400, 1, 50)), (1, (400, 6, 50)))
    )
    found = Difference.of(seeds + events + both)
    assert found.of_seed.mean() == pytest.approx(4 + 1 / 50, rel=0.1)
    assert found.of_event.mean() == pytest.approx(9, rel=0.1)
    assert found.of_both.mean() == pytest.approx(1, rel=0.02)
    error = found.of_seed / 6 + found.of_event / 50
    assert error.mean() == pytest.approx(found.value.var(), rel=0.15)


def test_probabilities_of_a_table_are_corrected_for_their_number() -> None:
    np.testing.assert_allclose(holm([0.001, 0.2, 0.012, 0.9]), [0.004, 0.4, 0.036, 0.9])
    rng = np.random.default_rng(6)
    assert (holm(rng.uniform(size=(4000, 12))).min(axis=1) < LEVEL).mean() == pytest.approx(LEVEL, abs=0.014)


def flipped(share: float, *, seeds: int = 5, events: int = 20_000, seed: int = 1) -> Difference:
    """A difference on a large sample; this share of events is right by the first method alone, 0.1 % by either."""
    rng = np.random.default_rng(seed)
    draws = rng.uniform(size=(seeds, events))
    return Difference.of((draws < share + 0.001).astype(int) - (draws > 0.999))


def test_each_verdict_is_given() -> None:
    one = Difference.of(np.ones((1, 50)))
    found = verdicts(
        [flipped(0.01), flipped(0.01)._replace(value=np.asarray(-0.01)), flipped(0.0), flipped(0.0008), one]
    )
    assert [each.word for each in found] == [
        Word.BETTER,
        Word.WORSE,
        Word.EQUIVALENT,
        Word.UNDECIDED,
        Word.UNDECIDED,
    ]
    assert str(found[4]) == "undecided (needs 2 or more seeds)"
    assert found[0].p_different < 1e-3 < found[2].p_different
    assert "seeds" in str(found[3])


def test_a_difference_beyond_the_margin_is_never_equivalent() -> None:
    assert flipped(0.01).p_equivalent == 1
    assert flipped(0.0)._replace(value=np.asarray(MARGIN)).p_equivalent == 1


def test_what_is_said_to_be_needed_is_enough() -> None:
    value, of_seed, of_event, of_both = (np.asarray(each) for each in (0.003, 1.2e-5, 0.0, 0.01))
    few = Difference(value, of_seed, of_event, of_both, 5, 100_000)
    assert verdicts([few])[0].needed == "about 11 seeds"
    enough = few._replace(num_seeds=11)
    draws = np.random.default_rng(3).normal(0.003, math.sqrt(1.2e-5 / 11), size=(4000, 1))
    assert (np.abs(draws) > enough.half_width()).mean() == pytest.approx(0.8, abs=0.1)
    events = few._replace(of_seed=np.asarray(1e-9), of_event=np.asarray(0.02), num_events=600)
    assert verdicts([events])[0].needed.endswith("test events")
    assert " and " in verdicts([few._replace(of_event=np.asarray(5.0))])[0].needed


def test_the_error_of_a_mean_is_the_spread_over_the_root_of_the_number() -> None:
    found = mean_of([0.90, 0.92, 0.94, 0.96])
    assert found.value == pytest.approx(0.93)
    assert found.spread == pytest.approx(np.std([0.90, 0.92, 0.94, 0.96], ddof=1))
    assert found.error == pytest.approx(found.spread / 2)
    assert math.isnan(mean_of([0.9]).spread)


def test_the_binomial_error_is_that_of_many_drawn_test_sets() -> None:
    drawn = np.random.default_rng(2).binomial(500, 0.8, size=20_000) / 500
    assert binomial_error(0.8, 500) == pytest.approx(drawn.std(), rel=0.02)
