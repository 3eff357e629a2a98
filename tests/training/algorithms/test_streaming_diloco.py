"""Streaming DiLoCo by hand, as DiLoCo, with the same outer model on all workers, and its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from simulated import UNEVEN_CLUSTER, LinearGradients, StepRecorder, VectorRow, run, settings

from training.algorithms.base import Algorithm
from training.algorithms.streaming_diloco import StreamingDiLoCo
from training.errors import IdleSettingError
from training.loop.factories import make_algorithm
from training.transports.transport import Transport

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
ADAMW: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.05}
STREAMING = {"algorithm": "streaming-diloco"}
DILOCO_CASE = STREAMING | {"fragments": 1, "overlap": 0, "mixing": 0.0}
Array = NDArray[np.float64]


def relative_numbers(bits: int) -> Array:
    """All positive numbers of E3M0 or of E4M3 over the largest one, and 0."""
    if bits == 4:
        powers_of_2 = 2.0 ** -np.arange(7)
        return np.array([0, *powers_of_2])
    eighths = np.arange(8) / 8
    subnormal = eighths * 2
    powers_of_2 = 2.0 ** np.arange(1, 16)
    normal = np.outer(powers_of_2, 1 + eighths).ravel()
    largest = 1.875 * 2**15
    return np.concatenate([subnormal, normal]) / largest


def rounded(vector: Array, bits: int | None) -> Array:
    """The numbers nearest to a vector's values, scaled to its largest magnitude."""
    if bits is None:
        return vector
    magnitudes = np.abs(vector)
    numbers = relative_numbers(bits) * magnitudes.max()
    distances = np.abs(magnitudes[:, np.newaxis] - numbers)
    nearest = distances.argmin(axis=1)
    return np.sign(vector) * numbers[nearest]


def models_by_hand(
    problem: LinearGradients,
    *,
    local_steps: int,
    fragments: int,
    overlap: int,
    mixing: float,
    bits: int | None,
) -> Array:
    """The models after each step, (steps, workers, parameters), with SGD (Algorithm 2)."""
    size = len(problem.initial)
    models = np.tile(problem.initial, (problem.workers, 1))
    outer_model = problem.initial.copy()
    velocity = np.zeros(size)
    outer_gradients = {}
    history = []
    for step in range(1, problem.steps + 1):
        models = models - RATE * problem.gradients(step - 1, models)
        for fragment in range(fragments):
            start = size * fragment // fragments
            stop = size * (fragment + 1) // fragments
            elements = slice(start, stop)
            turn = local_steps * (fragment + 1) // fragments
            arrival = turn + overlap
            if step >= turn and (step - turn) % local_steps == 0:
                differences = outer_model[elements] - models[:, elements]
                messages = [rounded(difference, bits) for difference in differences]
                outer_gradients[fragment] = np.mean(messages, axis=0)
            if step >= arrival and (step - arrival) % local_steps == 0:
                gradient = outer_gradients.pop(fragment)
                velocity[elements] = 0.8 * velocity[elements] + gradient
                outer_model[elements] -= 0.6 * (gradient + 0.8 * velocity[elements])
                models[:, elements] *= mixing
                models[:, elements] += (1 - mixing) * outer_model[elements]
        history.append(models.copy())
    return np.array(history)


@pytest.mark.parametrize(
    "selected",
    [
        {"local_steps": 4, "fragments": 1, "overlap": 0, "mixing": 0.0, "bits": None},
        {"local_steps": 5, "fragments": 3, "overlap": 2, "mixing": 0.5, "bits": None},
        {"local_steps": 4, "fragments": 4, "overlap": 3, "mixing": 0.0, "bits": None},
        {"local_steps": 4, "fragments": 2, "overlap": 0, "mixing": 0.3, "bits": 4},
        {"local_steps": 5, "fragments": 3, "overlap": 1, "mixing": 0.5, "bits": 4},
        {"local_steps": 5, "fragments": 2, "overlap": 2, "mixing": 0.5, "bits": 8},
    ],
    ids=str,
)
def test_streaming_diloco_is_algorithm_2(selected: dict[str, Any]) -> None:
    problem = LinearGradients(workers=3, steps=17, seed=2, size=11)
    outer_step = {"outer_rate": 0.6, "outer_momentum": 0.8}

    trained = problem.drive(cluster=UNEVEN_CLUSTER, **STREAMING, **outer_step, **SGD, **selected)

    expected = models_by_hand(problem, **selected)
    np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-12)


def test_one_fragment_without_overlap_mixing_and_bits_is_diloco_to_the_bit() -> None:
    problem = LinearGradients(workers=4, steps=14, seed=3)

    streaming = problem.drive(**DILOCO_CASE, **ADAMW, local_steps=4)

    diloco = problem.drive(algorithm="diloco", **ADAMW, local_steps=4)
    np.testing.assert_array_equal(streaming, diloco)


@examples(max_examples=30)
@given(
    workers=st.integers(1, 5),
    local_steps=st.integers(1, 6),
    fragments=st.integers(1, 6),
    overlap=st.integers(0, 5),
    bits=st.sampled_from([None, 4, 8]),
    seed=st.integers(0, 99),
)
def test_all_workers_have_the_same_outer_model_to_the_bit(
    workers: int, local_steps: int, fragments: int, overlap: int, bits: int | None, seed: int
) -> None:
    recorder = StepRecorder()
    problem = LinearGradients(workers=workers, steps=13, seed=seed, size=7)
    windows = {
        "local_steps": local_steps,
        "fragments": min(fragments, local_steps),
        "overlap": min(overlap, local_steps - 1),
    }
    selected = STREAMING | SGD | windows | {"bits": bits}

    problem.drive(cluster=UNEVEN_CLUSTER, before_step=recorder, **selected)

    outer_models = []
    for algorithm in recorder.algorithms.values():
        assert isinstance(algorithm, StreamingDiLoCo)
        outer_models.append(algorithm._outer_model)
    np.testing.assert_array_equal(outer_models, [outer_models[0]] * workers)


def test_a_fragment_that_no_worker_has_finite_stays_as_it_was() -> None:
    problem = LinearGradients(workers=2, steps=4, seed=1)

    def spoil_model(_rank: int, step: int, algorithm: Algorithm) -> None:
        if step == 3:
            algorithm.model.write(np.full(5, np.nan))

    selected = {"local_steps": 4, "fragments": 1, "overlap": 0, "bits": 4}
    trained = problem.drive(before_step=spoil_model, **STREAMING, **SGD, **selected)

    initial_models = np.tile(problem.initial, (2, 1))
    np.testing.assert_array_equal(trained[3], initial_models)


def bytes_of_exchanges(**selected: Any) -> int:
    """Bytes that a worker sends for a method in one epoch of eight steps."""
    num_bytes: list[int] = []
    for local_steps in (4, 100):
        simulated = run(epochs=1, **selected | {"local_steps": local_steps})
        num_bytes.append(simulated.records[0][0]["bytes_sent"])
    with_exchanges, without_exchanges = num_bytes
    return with_exchanges - without_exchanges


@pytest.mark.parametrize(
    ("fragments", "bits", "bytes_of_a_round"),
    [
        # A ring of 4 workers: six quarters of 51 parameters of 8 bytes, and of the number of models.
        (1, None, 1.5 * (51 * 8 + 8)),
        # The halves have 25 and 26 parameters.
        (2, None, 1.5 * (51 * 8 + 2 * 8)),
        # To each of 3 workers, with a scale of 8 bytes for each half.
        (2, 8, 3 * (51 + 2 * 8)),
        (2, 4, 3 * (13 + 13 + 2 * 8)),
    ],
)
def test_each_parameter_is_sent_once_in_a_window_in_the_bits_that_are_set(
    fragments: int, bits: int | None, bytes_of_a_round: float
) -> None:
    selected = STREAMING | {"fragments": fragments, "bits": bits, "overlap": 1}

    num_bytes = bytes_of_exchanges(**selected)

    assert num_bytes == 2 * bytes_of_a_round


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"fragments": 51}, r"fragments: 51 have no turns in 50 local_steps.* Lower fragments"),
        ({"overlap": 50}, r"overlap: 50 steps are no less than local_steps: 50.* overlap to 49"),
        ({"local_steps": 3}, r"fragments: 4 have .*; overlap: 5 steps"),
        ({"bits": 2}, "bits"),
        ({"mixing": 1.0}, "mixing"),
    ],
    ids=str,
)
def test_settings_without_a_turn_or_an_effect_are_refused(
    selected: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**STREAMING, **selected)


def test_more_fragments_than_parameters_are_refused() -> None:
    selected = settings(**STREAMING, fragments=4)

    with pytest.raises(
        IdleSettingError, match=r"fragments: 4 needs a network of at least 4 .* this one has 3"
    ):
        make_algorithm(VectorRow(np.zeros(3)), selected, Transport())


def test_a_fragment_that_travels_beside_the_steps_takes_no_time() -> None:
    # A message takes as long as a step.
    steady = {"slow_ranks": {}, "jitter": 0, "pause_probability": 0}
    cluster = UNEVEN_CLUSTER.model_copy(update=steady | {"latency_seconds": 1e-3})
    seconds = {}
    for overlap in (0, 2):
        # One message in eight steps.
        selected = {"local_steps": 5, "fragments": 1, "overlap": overlap, "bits": 4}
        seconds[overlap] = run(cluster=cluster, epochs=1, **STREAMING, **selected).seconds

    assert seconds[0] - seconds[2] == pytest.approx(1e-3, rel=0.1)
