"""Permutation importance: by hand, by the expected value, and against scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from feature_datasets import made_particles
from numpy.typing import NDArray
from plain_metrics import area_under_curve
from sklearn.dummy import DummyClassifier
from sklearn.inspection import permutation_importance as sklearn_importance

from features.columns import HLF_NAMES, NUM_HLF, PARTICLE_FEATURE_NAMES
from models.evaluation.bootstrap import Estimate
from models.evaluation.importance import chosen_events, importance, num_predicted, permutation_importance
from models.evaluation.permutations import Columns
from models.evaluation.scored_events import ScoredEvents

RNG = np.random.default_rng(1)
ROWS = RNG.normal(0, [1.0, 2.0, 3.0], (800, 3))
COEFFICIENTS = np.array([2.0, -1.0, 0.0])
TRUTH = ROWS @ COEFFICIENTS


class Linear:
    """Gives the sum of the right linear model, and notes what it is asked."""

    inputs = ("x",)

    def __init__(self) -> None:
        self.seen: list[NDArray[Any]] = []

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        self.seen.append(columns["x"])
        return columns["x"] @ COEFFICIENTS[:, None]

    @property
    def whole(self) -> list[NDArray[Any]]:
        """The events of each shuffle, of which 256 are asked at once."""
        return [np.concatenate(self.seen[first : first + 4]) for first in range(0, len(self.seen), 4)]


def score(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Minus the mean squared error of all events, and of two replicas that have no errors of their own."""
    return np.full(3, -float(np.square(sums[:, 0] - TRUTH).mean()))


def exchange(own: Columns, others: Columns, *, place: int) -> Columns:
    rows = own["x"].copy()
    rows[:, place] = others["x"][:, place]
    return {"x": rows}


PERMUTATIONS = {str(place): partial(exchange, place=place) for place in range(3)}


def importances(model: Linear, *, repeats: int = 5, seed: int) -> list[Estimate]:
    generator = np.random.default_rng(seed)
    found = permutation_importance(model, {"x": ROWS}, score, PERMUTATIONS, repeats=repeats, generator=generator)
    assert list(found) == list(PERMUTATIONS)
    return list(found.values())


def test_the_drop_of_a_linear_model_is_twice_the_variance_of_its_term() -> None:
    found = importances(Linear(), repeats=40, seed=2)
    # E (c x - c x')^2 = 2 c^2 var(x) for x' drawn from the sample itself.
    expected = 2 * COEFFICIENTS**2 * ROWS.var(axis=0)
    assert [each.value for each in found] == pytest.approx(expected.tolist(), rel=0.02)
    assert found[2] == (0.0, 0.0)


def test_it_is_that_of_scikit_learn_within_the_errors() -> None:
    ours = importances(Linear(), repeats=50, seed=3)
    theirs = sklearn_importance(
        DummyClassifier(),
        ROWS,
        None,
        scoring=lambda _, rows, __: score(rows @ COEFFICIENTS[:, None])[0],
        n_repeats=50,
        random_state=1,
    )
    spread = theirs.importances.std(axis=1, ddof=1) / np.sqrt(50)
    for place in range(3):
        margin = 4 * spread[place] * np.sqrt(2) + 1e-12
        assert ours[place].value == pytest.approx(theirs.importances_mean[place], abs=margin)
        assert ours[place].error == pytest.approx(spread[place], rel=0.5)


def test_value_and_error_are_those_of_the_mean_drop() -> None:
    model = Linear()
    found = importances(model, repeats=4, seed=4)
    scores = np.array([score(rows @ COEFFICIENTS[:, None])[0] for rows in model.whole])
    drops = scores[0] - scores[1:].reshape(3, 4)
    assert [each.value for each in found] == pytest.approx(drops.mean(axis=1).tolist())
    assert [each.error for each in found] == pytest.approx((drops.std(axis=1, ddof=1) / 2).tolist())


def test_the_error_of_the_events_is_that_of_the_replicas() -> None:
    values = iter([[5.0, 6.0, 4.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])

    def given(_: NDArray[Any]) -> NDArray[np.float64]:
        return np.array(next(values))

    generator = np.random.default_rng(1)
    found = permutation_importance(
        Linear(), {"x": ROWS}, given, {"0": PERMUTATIONS["0"]}, repeats=2, generator=generator
    )
    assert found["0"].value == 4.0
    assert found["0"].error == pytest.approx(np.sqrt(2))


def test_one_part_at_a_time_is_exchanged_among_the_events() -> None:
    model, before = Linear(), ROWS.copy()
    importances(model, repeats=2, seed=5)
    assert np.array_equal(ROWS, before)
    assert np.array_equal(model.whole[0], before)
    for index, rows in enumerate(model.whole[1:]):
        changed = (rows != before).any(axis=0)
        assert changed.tolist() == [place == index // 2 for place in range(3)]
        assert np.array_equal(np.sort(rows, axis=0), np.sort(before, axis=0))
    assert not np.array_equal(model.whole[1], model.whole[2])


def test_the_generator_decides() -> None:
    first, again, other = (importances(Linear(), seed=seed) for seed in (6, 6, 7))
    assert first == again
    assert first[0] != other[0]


def test_each_part_is_exchanged_five_times_as_the_report_says() -> None:
    model = Linear()
    permutation_importance(model, {"x": ROWS}, score, PERMUTATIONS, generator=np.random.default_rng(1))
    assert len(model.whole) == 1 + 5 * len(PERMUTATIONS)


def test_one_repeat_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2 repeats"):
        importances(Linear(), repeats=1, seed=8)


class OneFeature:
    """Gives the signal a probability that rises with the first high-level feature."""

    inputs = ("hlf",)

    def __init__(self) -> None:
        self.num_seen = 0

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        self.num_seen += len(columns["hlf"])
        signal = 1 / (1 + np.exp(-columns["hlf"][:, 0]))
        return np.stack([1 - signal, signal], axis=1).astype(np.float32)


def test_each_feature_is_shuffled_five_times_and_what_tells_is_the_area_that_is_lost() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 600)
    hlf = rng.normal(labels[:, None], 1, (600, NUM_HLF)).astype(np.float32)
    model, weights = OneFeature(), rng.uniform(0.5, 1.5, 600)
    events = ScoredEvents(labels, np.zeros((600, 2)), weights, hlf, np.full(600, "a"))
    told: list[int] = []
    found = importance(model, {"hlf": hlf}, events, signal=1, seed=2, on_events=told.append)
    assert sum(told) == model.num_seen == 600 * (1 + 5 * NUM_HLF) == num_predicted(("hlf",), labels)
    assert list(found) == list(HLF_NAMES)
    first, *others = found.values()
    area = area_under_curve(labels == 1, model.probabilities({"hlf": hlf})[:, 1].astype(float), weights)
    assert first.value == pytest.approx(area - 0.5, abs=0.03)
    # The error of an area of 0.76 with 300 events of each class is 0.02, and that of 0.5 after five shuffles 0.01.
    assert 0.015 < first.error < 0.04
    assert set(others) == {(0.0, 0.0)}


class LeptonPt:
    """Gives the signal a probability that rises with the pT of the first particle."""

    inputs = ("particles", "num_particles")

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        rows = columns["particles"]
        signal = rows[:, 0, PARTICLE_FEATURE_NAMES.index("pt")] / 200
        return np.stack([1 - signal, signal], axis=1).astype(np.float32)


def test_to_a_model_of_the_lepton_only_the_lepton_is_important() -> None:
    rng = np.random.default_rng(1)
    labels, lengths = rng.integers(0, 2, 60), rng.integers(1, 9, 60)
    columns = {"particles": made_particles(rng, labels, lengths), "num_particles": lengths}
    events = ScoredEvents(labels, np.zeros((60, 2)), np.ones(60), np.zeros((60, 1), np.float32), np.full(60, "a"))
    lepton, *others = importance(LeptonPt(), columns, events, signal=1, seed=2).values()
    # From 1, since leptons of 30 and 50 GeV hardly overlap, to what chance gives.
    assert lepton.value == pytest.approx(0.5, abs=0.12)
    assert 0 < lepton.error < 0.1
    assert others == [(0.0, 0.0)] * 3


def test_the_first_events_of_each_class_are_chosen() -> None:
    labels = np.array([0] * 8000 + [1] * 3 + [0] * 5 + [2] * 600)
    assert np.bincount(labels[chosen_events(("hlf",), labels)]).tolist() == [7000, 3, 600]
    rows = chosen_events(("particles", "num_particles"), labels)
    assert rows.tolist() == [*range(500), 8000, 8001, 8002, *range(8008, 8508)]
    assert len(chosen_events(("images",), labels)) == num_predicted(("images",), labels) == 0
