"""Events that exchange parts of their inputs: against slow loops over particles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from feature_datasets import made_particles

from features.columns import HLF_NAMES, NUM_HLF, NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES
from models.evaluation.permutations import Columns, permutations_of

FLAGS = {
    "lepton": ["is_electron", "is_muon"],
    "tracks": ["is_charged_hadron"],
    "photons": ["is_photon"],
    "neutral hadrons": ["is_neutral_hadron"],
}
LENGTHS = np.array([7, 0, 1, 12, 30])


def made_columns(seed: int, lengths: np.ndarray[Any, Any] = LENGTHS) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    particles = made_particles(rng, rng.integers(0, 3, len(lengths)), lengths)
    return {
        "hlf": rng.normal(size=(len(lengths), NUM_HLF)).astype(np.float32),
        "particles": particles,
        "num_particles": lengths.astype(np.int32),
    }


def lists_of(columns: Columns) -> list[np.ndarray[Any, Any]]:
    """The particles of each event, without padding, which is 0."""
    rows = columns["particles"]
    assert not any(event[count:].any() for event, count in zip(rows, columns["num_particles"], strict=True))
    return [event[:count] for event, count in zip(rows, columns["num_particles"], strict=True)]


def is_kind(particle: np.ndarray[Any, Any], kind: str) -> bool:
    return any(particle[PARTICLE_FEATURE_NAMES.index(flag)] == 1 for flag in FLAGS[kind])


@pytest.mark.parametrize("kind", FLAGS)
def test_an_event_gets_all_particles_of_the_kind_of_another_and_keeps_its_own_of_other_kinds(kind: str) -> None:
    own, others = made_columns(1), made_columns(2, LENGTHS[::-1])
    before = [each.copy() for each in (*own.values(), *others.values())]
    found = permutations_of(["particles", "num_particles"])[kind](own, others)
    for event, ours, theirs in zip(lists_of(found), lists_of(own), lists_of(others), strict=True):
        placed = [(place / len(ours), 0, place, each) for place, each in enumerate(ours) if not is_kind(each, kind)]
        placed += [(place / len(theirs), 1, place, each) for place, each in enumerate(theirs) if is_kind(each, kind)]
        expected = [each for *_, each in sorted(placed, key=lambda each: each[:3])]
        np.testing.assert_array_equal(event, np.reshape(expected, (-1, NUM_PARTICLE_FEATURES)))
    assert found["num_particles"].dtype == own["num_particles"].dtype
    assert all(map(np.array_equal, before, (*own.values(), *others.values())))


def test_the_lepton_stays_first_and_is_that_of_the_other_event() -> None:
    own, others = made_columns(1), made_columns(2)
    found = permutations_of(["particles", "num_particles"])["lepton"](own, others)
    for event, theirs in zip(lists_of(found), lists_of(others), strict=True):
        if len(theirs):
            np.testing.assert_array_equal(event[0], theirs[0])
            assert is_kind(event[0], "lepton")


@pytest.mark.parametrize("inputs", [["particles", "num_particles"], ["hlf", "particles", "num_particles"]])
def test_events_that_exchange_with_themselves_stay_as_they_are(inputs: list[str]) -> None:
    columns = made_columns(3)
    for exchange in permutations_of(inputs).values():
        found = exchange(columns, columns)
        assert found.keys() == columns.keys()
        for one, other in zip(lists_of(found), lists_of(columns), strict=True):
            np.testing.assert_array_equal(one, other)
        assert all(np.array_equal(found[name], columns[name]) for name in ("hlf", "num_particles"))


def test_features_are_exchanged_one_by_one_or_all_together() -> None:
    own, others = made_columns(1), made_columns(2)
    alone = permutations_of(["hlf"])
    assert list(alone) == list(HLF_NAMES)
    for place, exchange in enumerate(alone.values()):
        expected = own["hlf"].copy()
        expected[:, place] = others["hlf"][:, place]
        np.testing.assert_array_equal(exchange(own, others)["hlf"], expected)
    together = permutations_of(["hlf", "particles", "num_particles"])
    assert list(together) == [*FLAGS, "high-level features"]
    found = together["high-level features"](own, others)
    assert found["hlf"] is not others["hlf"]
    np.testing.assert_array_equal(found["hlf"], others["hlf"])
    np.testing.assert_array_equal(found["particles"], own["particles"])
    assert permutations_of(["pixels"]) == {}
