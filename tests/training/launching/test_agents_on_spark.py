"""The jobs of a training on Spark alone."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from pyspark import SparkContext

from training.launching.agents_on_spark import _VECTORS_PER_TASK, _tree_sum


def sum_in_groups(vectors: list[np.ndarray]) -> np.ndarray:
    """The sum of vectors: those of each group first, then the sums of the groups, and so on."""
    sums = vectors
    while len(sums) > 1:
        starts = range(0, len(sums), _VECTORS_PER_TASK)
        sums = [reduce(np.add, sums[start : start + _VECTORS_PER_TASK]) for start in starts]
    return sums[0]


@pytest.mark.spark
@pytest.mark.parametrize(
    "num_agents", [1, _VECTORS_PER_TASK, _VECTORS_PER_TASK + 1, 4 * _VECTORS_PER_TASK + 3]
)
def test_a_sum_over_agents_has_one_order_whoever_comes_first(
    spark: SparkContext, num_agents: int
) -> None:
    # Numbers of very different size: another order rounds otherwise.
    rng = np.random.default_rng(1)
    scales = 10.0 ** rng.integers(-8, 8, (num_agents, 1))
    vectors = list(rng.normal(size=(num_agents, 5)) * scales)
    vectors_by_rank = list(enumerate(vectors))

    for _ in range(2):
        rng.shuffle(vectors_by_rank)
        partitions = spark.parallelize(vectors_by_rank, min(num_agents, 5))
        np.testing.assert_array_equal(_tree_sum(partitions, num_agents), sum_in_groups(vectors))
