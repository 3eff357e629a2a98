"""Importance of each feature for a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.evaluation.bootstrap import Estimate


def permutation_importance(
    score: Callable[[NDArray[Any]], float],
    columns: NDArray[Any],
    *,
    repeats: int = 5,
    generator: np.random.Generator,
) -> list[Estimate]:
    """Mean drop of a score when the values of one feature are shuffled among the events, per feature.

    Breiman (2001) for forests, Fisher, Rudin and Dominici (2019) for any model. Strongly correlated features seem
    unimportant. The error is the standard deviation of a single shuffle (ddof=1), without the statistical error of the
    events.

    Own code: scikit-learn's function of this name needs an estimator with a `fit`, and NumPy's old random generator.

    Args:
        score: Function of (num_events, num_features) columns; higher is better. It must not change them.
        columns: (num_events, num_features) features; they stay unchanged.
        repeats: Shuffles of each feature, at least 2.
        generator: Random generator of the shuffles; the same state gives the same numbers.

    Returns:
        One estimate per feature, in the unit of the score.

    Raises:
        ValueError: There are fewer than 2 repeats.

    Examples:
        >>> columns = np.array([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]])
        >>> importances = permutation_importance(
        ...     lambda seen: -float(np.abs(seen[:, 0] - [0, 1, 2]).sum()), columns, generator=np.random.default_rng(1)
        ... )
        >>> importances[0].value > 0, importances[1]
        (True, Estimate(value=0.0, error=0.0))
    """
    if repeats < 2:
        raise ValueError(f"a spread needs at least 2 repeats, not {repeats}")
    whole = score(columns)
    shuffled = columns.copy()
    importances = []
    for feature in range(columns.shape[1]):
        drops = np.empty(repeats)
        for repeat in range(repeats):
            shuffled[:, feature] = generator.permutation(columns[:, feature])
            drops[repeat] = whole - score(shuffled)
        shuffled[:, feature] = columns[:, feature]
        importances.append(Estimate(float(drops.mean()), float(drops.std(ddof=1))))
    return importances
