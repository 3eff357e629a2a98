"""From columns of the features Parquet to what networks take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from networks import random_columns

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.errors import ModelInputError
from models.inputs import input_arrays

Columns = dict[str, np.ndarray[Any, Any]]


def test_particles_are_cut_to_the_longest_event_and_nothing_is_lost() -> None:
    columns = random_columns([4, 1, 7])

    arrays = input_arrays(columns, ["hlf", "particles", "num_particles"])

    hlf, particles, num_particles = arrays.values()
    assert particles.shape == (3, 7, NUM_PARTICLE_FEATURES)
    assert hlf.dtype == np.float32
    assert particles.dtype == np.float32
    assert num_particles.dtype == np.int64
    assert num_particles.tolist() == [4, 1, 7]
    assert np.array_equal(particles, columns["particles"][:, :7])
    assert not columns["particles"][:, 7:].any()
    assert np.array_equal(hlf, columns["hlf"])


def test_arrays_share_no_memory_with_what_came_from_arrow() -> None:
    columns = random_columns([MAX_PARTICLES])
    copies = {name: values.copy() for name, values in columns.items()}
    for values in columns.values():
        values.flags.writeable = False

    arrays = input_arrays(columns, list(columns))
    for array in arrays.values():
        array[:] = 0

    for name, values in columns.items():
        np.testing.assert_array_equal(values, copies[name])


@pytest.mark.parametrize("lengths", [[0], [0, 0], []])
@pytest.mark.parametrize("rows", [MAX_PARTICLES, 0])
def test_at_least_one_row_of_particles_is_left(lengths: list[int], rows: int) -> None:
    shape = (len(lengths), rows, NUM_PARTICLE_FEATURES)
    columns = {
        "particles": np.zeros(shape, np.float32),
        "num_particles": np.array(lengths, np.int32),
    }

    arrays = input_arrays(columns, ["particles", "num_particles"])

    assert arrays["particles"].shape == (len(lengths), 1, NUM_PARTICLE_FEATURES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_particles": np.array([802, 1])}, "num_particles goes from 0 to 802"),
        ({"num_particles": np.array([3, -1])}, "num_particles goes from -1 to 3"),
        (
            {"hlf": np.zeros((2, 1), np.float32)},
            r"hlf has events of shape \(1,\); networks take \(14,\)",
        ),
        (
            {"particles": np.zeros((2, 801 * 19), np.float32)},
            r"shape \(15219,\); networks take \(801, 19\)",
        ),
        # Features and particles in the other order have as many numbers.
        (
            {"particles": np.zeros((2, 19, 801), np.float32)},
            r"shape \(19, 801\); networks take \(801, 19\)",
        ),
        (
            {"num_particles": np.array([3])},
            "different numbers of events: hlf 2, particles 2, num_particles 1",
        ),
    ],
)
def test_columns_of_another_shape_are_refused(change: Columns, message: str) -> None:
    columns = random_columns([2, 3]) | change

    with pytest.raises(ModelInputError, match=message):
        input_arrays(columns, ["hlf", "particles", "num_particles"])
