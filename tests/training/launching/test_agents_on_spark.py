"""The jobs of a training on Spark alone."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from pyspark import SparkContext

from training.launching.agents_on_spark import _VECTORS_PER_TASK, _tree_sum


@pytest.mark.spark
@pytest.mark.parametrize(
    "count", [1, _VECTORS_PER_TASK, _VECTORS_PER_TASK + 1, 4 * _VECTORS_PER_TASK + 3]
)
def test_a_sum_over_agents_has_one_order_whatever_comes_first(
    spark: SparkContext, count: int
) -> None:
    rng = np.random.default_rng(1)
    vectors = list(enumerate(rng.normal(size=(count, 5)) * 10.0 ** rng.integers(-8, 8, (count, 1))))
    expected = [vector for _, vector in vectors]
    while len(expected) > 1:
        expected = [
            reduce(np.add, expected[first : first + _VECTORS_PER_TASK])
            for first in range(0, len(expected), _VECTORS_PER_TASK)
        ]
    for _ in range(2):
        rng.shuffle(vectors)
        np.testing.assert_array_equal(
            _tree_sum(spark.parallelize(vectors, min(count, 5)), count), expected[0]
        )
