"""Permutation importance, and events that exchange parts of their inputs: against slow loops over
particles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from feature_datasets import random_particles
from networks import random_columns
from numpy.typing import NDArray
from scipy.special import expit
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

FLAGS = {
    "lepton": ["is_electron", "is_muon"],
    "tracks": ["is_charged_hadron"],
    "photons": ["is_photon"],
    "neutral hadrons": ["is_neutral_hadron"],
}
LENGTHS = [7, 0, 1, 12, 30]


class FirstFeatureModel:
    """Gives the signal a probability that rises with the first high-level feature."""

    inputs = ("hlf",)

    def __init__(self) -> None:
        self.num_predicted = 0

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        self.num_predicted += len(columns["hlf"])
        signal = expit(columns["hlf"][:, 0])
        return np.stack([1 - signal, signal], axis=1).astype(np.float32)


class LeptonPtModel:
    """Gives the signal a probability that rises with the pT of the first particle."""

    inputs = ("particles", "num_particles")

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        pt_of_first = columns["particles"][:, 0, PARTICLE_FEATURE_NAMES.index("pt")]
        signal = pt_of_first / 200
        return np.stack([1 - signal, signal], axis=1).astype(np.float32)


def labelled_events() -> ScoredEvents:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 600)
    mean_of_features = labels[:, np.newaxis]
    hlf = rng.normal(mean_of_features, 1, (600, len(hlf_names()))).astype(np.float32)
    weights = rng.uniform(0.5, 1.5, 600)
    probabilities = np.zeros((600, 2))
    samples = np.full(600, "a")
    return ScoredEvents(labels, probabilities, weights, hlf, samples)


def test_the_importance_of_a_feature_is_the_area_that_its_shuffles_lose() -> None:
    events = labelled_events()
    model = FirstFeatureModel()
    counts: list[int] = []
    columns = {"hlf": events.hlf.copy()}

    losses = importance(model, columns, events, signal=[1], seed=2, on_events=counts.append)

    # Each feature is shuffled five times.
    num_expected = 600 * (1 + 5 * len(hlf_names()))
    assert sum(counts) == model.num_predicted == num_expected
    assert num_predicted(("hlf",), events.labels) == num_expected
    assert list(losses) == list(hlf_names())
    first, *shuffled = losses.values()
    scores = model.probabilities(columns)[:, 1]
    area = roc_auc_score(events.labels, scores, sample_weight=events.weights)
    assert first.value == pytest.approx(area - 0.5, abs=0.03)
    # The error of an area of 0.76 with 300 events of each class is 0.02, and that of 0.5 after five
    # shuffles 0.01.
    assert 0.02 < first.error < 0.032
    assert set(shuffled) == {(0.0, 0.0)}
    np.testing.assert_array_equal(columns["hlf"], events.hlf)


def test_the_same_seed_gives_the_same_importance() -> None:
    events = labelled_events()

    def loss(seed: int) -> tuple[float, float]:
        model = FirstFeatureModel()
        columns = {"hlf": events.hlf}
        losses = importance(model, columns, events, signal=[1], seed=seed)
        return losses["ht"]

    assert loss(2) == loss(2)
    assert loss(2) != loss(3)


def test_to_a_model_of_the_lepton_only_the_lepton_is_important() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 60)
    lengths = rng.integers(1, 9, 60)
    columns = {"particles": random_particles(rng, labels, lengths), "num_particles": lengths}
    probabilities = np.zeros((60, 2))
    weights = np.ones(60)
    hlf = np.zeros((60, 1), np.float32)
    samples = np.full(60, "a")
    events = ScoredEvents(labels, probabilities, weights, hlf, samples)

    losses = importance(LeptonPtModel(), columns, events, signal=[1], seed=2)

    lepton, *candidates = losses.values()
    # From 1, since leptons of 30 and 50 GeV hardly overlap, to the area of a random score.
    assert lepton.value == pytest.approx(0.5, abs=0.12)
    assert 0 < lepton.error < 0.1
    assert candidates == [(0.0, 0.0)] * 3


def test_the_first_events_of_each_class_are_sampled() -> None:
    labels = np.repeat([0, 1, 0, 2], [8000, 3, 5, 600])

    rows_with_hlf = sampled_events(("hlf",), labels)
    rows_with_particles = sampled_events(("particles", "num_particles"), labels)

    events_per_class = np.bincount(labels[rows_with_hlf])
    assert events_per_class.tolist() == [7000, 3, 600]
    expected = [*range(500), 8000, 8001, 8002, *range(8008, 8508)]
    assert rows_with_particles.tolist() == expected
    # Images have no permutations.
    assert len(sampled_events(("images",), labels)) == 0
    assert num_predicted(("images",), labels) == 0


def particles_of(columns: Columns) -> list[np.ndarray[Any, Any]]:
    """The particles of each event, without padding, which must be 0."""
    particles = []
    for event, length in zip(columns["particles"], columns["num_particles"], strict=True):
        assert not event[length:].any()
        particles.append(event[:length])
    return particles


def exchange_by_hand(
    event: np.ndarray, donor: np.ndarray, flags: list[int]
) -> np.ndarray[Any, Any]:
    """Particles of the event without a flag and of the donor with one, by relative position."""
    positions = []
    particles = []
    for row, particle in enumerate(event):
        if not particle[flags].any():
            positions.append(row / len(event))
            particles.append(particle)
    for row, particle in enumerate(donor):
        if particle[flags].any():
            positions.append(row / len(donor))
            particles.append(particle)
    order = np.argsort(positions, kind="stable")
    rows = np.reshape(particles, (-1, NUM_PARTICLE_FEATURES))
    return rows[order]


@pytest.mark.parametrize("particle_type", FLAGS)
def test_an_event_gets_the_particles_of_one_type_of_its_donor(particle_type: str) -> None:
    events = random_columns(LENGTHS, seed=1)
    donors = random_columns(LENGTHS[::-1], seed=2)
    flags = [PARTICLE_FEATURE_NAMES.index(flag) for flag in FLAGS[particle_type]]
    permute = permutations_of(["particles", "num_particles"])[particle_type]

    permuted = permute(events, donors)

    expected = [
        exchange_by_hand(event, donor, flags)
        for event, donor in zip(particles_of(events), particles_of(donors), strict=True)
    ]
    for particles, expected_particles in zip(particles_of(permuted), expected, strict=True):
        np.testing.assert_array_equal(particles, expected_particles)
    assert permuted["num_particles"].dtype == events["num_particles"].dtype
    # The inputs stay unchanged.
    for name, values in random_columns(LENGTHS, seed=1).items():
        np.testing.assert_array_equal(events[name], values)


def test_features_are_exchanged_one_by_one() -> None:
    events = random_columns(LENGTHS, seed=1)
    donors = random_columns(LENGTHS, seed=2)

    permutations = permutations_of(["hlf"])

    assert list(permutations) == list(hlf_names())
    for index, permutation in enumerate(permutations.values()):
        permuted = permutation(events, donors)
        expected = events["hlf"].copy()
        expected[:, index] = donors["hlf"][:, index]
        np.testing.assert_array_equal(permuted["hlf"], expected)


def test_beside_particles_all_features_are_exchanged_together() -> None:
    events = random_columns(LENGTHS, seed=1)
    donors = random_columns(LENGTHS, seed=2)

    permutations = permutations_of(["hlf", "particles", "num_particles"])
    permuted = permutations["high-level features"](events, donors)

    assert list(permutations) == [*FLAGS, "high-level features"]
    assert permuted["hlf"] is not donors["hlf"]
    np.testing.assert_array_equal(permuted["hlf"], donors["hlf"])
    np.testing.assert_array_equal(permuted["particles"], events["particles"])


def test_other_inputs_have_no_permutations() -> None:
    assert permutations_of(["pixels"]) == {}
