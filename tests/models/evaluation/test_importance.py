"""Permutation importance, and events that exchange parts of their inputs: against slow loops over particles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from feature_datasets import random_particles
from networks import random_columns
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from features.columns import NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES, hlf_names
from models.evaluation.importance import (
    Columns,
    importance,
    num_predicted,
    permutations_of,
    sampled_events,
)
from models.evaluation.scored_events import ScoredEvents


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
    hlf = rng.normal(labels[:, None], 1, (600, len(hlf_names()))).astype(np.float32)
    model, weights = OneFeature(), rng.uniform(0.5, 1.5, 600)
    events = ScoredEvents(labels, np.zeros((600, 2)), weights, hlf, np.full(600, "a"))
    message, copy_before = list[int](), hlf.copy()
    actual = importance(model, {"hlf": hlf}, events, signal=[1], seed=2, on_events=message.append)
    assert (
        sum(message)
        == model.num_seen
        == 600 * (1 + 5 * len(hlf_names()))
        == num_predicted(("hlf",), labels)
    )
    assert list(actual) == list(hlf_names())
    first, *remaining = actual.values()
    area = roc_auc_score(labels, model.probabilities({"hlf": hlf})[:, 1], sample_weight=weights)
    assert first.value == pytest.approx(area - 0.5, abs=0.03)
    # The error of an area of 0.76 with 300 events of each class is 0.02, and that of 0.5 after five shuffles 0.01.
    assert 0.02 < first.error < 0.032
    assert set(remaining) == {(0.0, 0.0)}
    repeated, second = (
        importance(OneFeature(), {"hlf": hlf}, events, signal=[1], seed=seed)["ht"]
        for seed in (2, 3)
    )
    assert first == repeated != second
    np.testing.assert_array_equal(hlf, copy_before)


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
    columns = {"particles": random_particles(rng, labels, lengths), "num_particles": lengths}
    events = ScoredEvents(
        labels, np.zeros((60, 2)), np.ones(60), np.zeros((60, 1), np.float32), np.full(60, "a")
    )
    lepton, *remaining = importance(LeptonPt(), columns, events, signal=[1], seed=2).values()
    # From 1, since leptons of 30 and 50 GeV hardly overlap, to what chance gives.
    assert lepton.value == pytest.approx(0.5, abs=0.12)
    assert 0 < lepton.error < 0.1
    assert remaining == [(0.0, 0.0)] * 3


def test_the_first_events_of_each_class_are_chosen() -> None:
    labels = np.array([0] * 8000 + [1] * 3 + [0] * 5 + [2] * 600)
    assert np.bincount(labels[sampled_events(("hlf",), labels)]).tolist() == [7000, 3, 600]
    rows = sampled_events(("particles", "num_particles"), labels)
    assert rows.tolist() == [*range(500), 8000, 8001, 8002, *range(8008, 8508)]
    assert len(sampled_events(("images",), labels)) == num_predicted(("images",), labels) == 0


FLAGS = {
    "lepton": ["is_electron", "is_muon"],
    "tracks": ["is_charged_hadron"],
    "photons": ["is_photon"],
    "neutral hadrons": ["is_neutral_hadron"],
}
LENGTHS = [7, 0, 1, 12, 30]


def lists_of(columns: Columns) -> list[np.ndarray[Any, Any]]:
    """The particles of each event, without padding, which is 0."""
    rows = columns["particles"]
    assert not any(
        event[count:].any() for event, count in zip(rows, columns["num_particles"], strict=True)
    )
    return [event[:count] for event, count in zip(rows, columns["num_particles"], strict=True)]


def is_kind(particle: np.ndarray[Any, Any], kind_name: str) -> bool:
    return any(particle[PARTICLE_FEATURE_NAMES.index(flag)] == 1 for flag in FLAGS[kind_name])


@pytest.mark.parametrize("kind_name", FLAGS)
def test_an_event_gets_all_particles_of_the_kind_of_another_and_keeps_its_own_of_other_kinds(
    kind_name: str,
) -> None:
    own, remaining = random_columns(LENGTHS, seed=1), random_columns(LENGTHS[::-1], seed=2)
    state_before = [particle.copy() for particle in (*own.values(), *remaining.values())]
    actual = permutations_of(["particles", "num_particles"])[kind_name](own, remaining)
    for event, ours, theirs in zip(
        lists_of(actual), lists_of(own), lists_of(remaining), strict=True
    ):
        placed = [
            (position / len(ours), 0, position, particle)
            for position, particle in enumerate(ours)
            if not is_kind(particle, kind_name)
        ]
        placed += [
            (position / len(theirs), 1, position, particle)
            for position, particle in enumerate(theirs)
            if is_kind(particle, kind_name)
        ]
        expected = [particle for *_, particle in sorted(placed, key=lambda particle: particle[:3])]
        np.testing.assert_array_equal(event, np.reshape(expected, (-1, NUM_PARTICLE_FEATURES)))
    assert actual["num_particles"].dtype == own["num_particles"].dtype
    assert all(map(np.array_equal, state_before, (*own.values(), *remaining.values())))


def test_features_are_exchanged_one_by_one_or_all_together() -> None:
    own, remaining = random_columns(LENGTHS, seed=1), random_columns(LENGTHS, seed=2)
    alone = permutations_of(["hlf"])
    assert list(alone) == list(hlf_names())
    for position, exchange in enumerate(alone.values()):
        expected = own["hlf"].copy()
        expected[:, position] = remaining["hlf"][:, position]
        np.testing.assert_array_equal(exchange(own, remaining)["hlf"], expected)
    together = permutations_of(["hlf", "particles", "num_particles"])
    assert list(together) == [*FLAGS, "high-level features"]
    actual = together["high-level features"](own, remaining)
    assert actual["hlf"] is not remaining["hlf"]
    np.testing.assert_array_equal(actual["hlf"], remaining["hlf"])
    np.testing.assert_array_equal(actual["particles"], own["particles"])
    assert permutations_of(["pixels"]) == {}
