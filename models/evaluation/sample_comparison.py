"""Two samples of the same process, such as events of our own and of a full simulation: do they look alike?

Boosted trees that learn to tell them apart give an area under the curve of 0.5 if they do. A network that is trained
on one and tested on the other says whether the differences matter for the classification.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from models.evaluation.bootstrap import Estimate
from models.evaluation.curves import cumulative_distance, weighted_histogram
from models.evaluation.intervals import Floats
from models.evaluation.style import COLOURS, GREY, PlotLabels, legend_below, new_grid, styled

_FOLDS: Final = 5
_REPLICAS: Final = 200
_NETWORKS: Final = 5
_BINS: Final = 30
#: Panels side by side.
_COLUMNS: Final = 4
_HIDDEN: Final = (50, 20, 10)


class WeightedEvents(NamedTuple):
    """Events of one class of one sample."""

    features: Floats
    """(num_events, num_features)."""
    weights: Floats
    """(num_events,)."""


def separation(first: WeightedEvents, second: WeightedEvents, *, seed: int) -> Estimate:
    """Area under the curve of boosted trees that tell two samples apart, by cross-validation; 0.5: they cannot.

    Each sample counts alike in the training.
    """
    features = np.concatenate([first.features, second.features])
    label = np.repeat([0, 1], [len(first.features), len(second.features)])
    weights = np.concatenate([each.weights / each.weights.mean() for each in (first, second)])
    weights *= np.where(label == 0, 0.5 / (label == 0).mean(), 0.5 / (label == 1).mean())
    scores = np.zeros(len(label))
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(
        features, label
    ):
        trees = HistGradientBoostingClassifier(
            max_iter=60,
            learning_rate=0.05,
            max_leaf_nodes=8,
            l2_regularization=1.0,
            random_state=seed,
        )
        trees.fit(features[train], label[train], sample_weight=weights[train])
        scores[test] = trees.predict_proba(features[test])[:, 1]
    rng = np.random.default_rng(seed)
    areas = [
        roc_auc_score(label, scores, sample_weight=weights * rng.exponential(size=len(label)))
        for _ in range(_REPLICAS)
    ]
    return Estimate(
        float(roc_auc_score(label, scores, sample_weight=weights)), float(np.std(areas))
    )


def transfer(
    tested: Sequence[WeightedEvents], others: Sequence[WeightedEvents], *, seed: int
) -> dict[str, Estimate]:
    """Train perceptrons of the high-level features on half of a sample, and on as many events of another.

    Tested on the other half, they give accuracies, classes counted alike: of the `own` sample, of the `other`, and the
    `loss`, the difference of the two. Samples are lists of the events of each class.
    """
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(len(each.features)) for each in tested]
    sizes = [
        min(len(half) - len(half) // 2, len(other.features))
        for half, other in zip(halves, others, strict=True)
    ]
    own = [
        _chosen(each, half[len(half) // 2 :][:n])
        for each, half, n in zip(tested, halves, sizes, strict=True)
    ]
    strange = [
        _chosen(each, rng.permutation(len(each.features))[:n])
        for each, n in zip(others, sizes, strict=True)
    ]
    test = [
        _chosen(each, half[: len(half) // 2]) for each, half in zip(tested, halves, strict=True)
    ]
    label = np.repeat(np.arange(len(test)), [len(each.features) for each in test])
    features = np.concatenate([each.features for each in test])
    weights = np.concatenate([each.weights / each.weights.sum() for each in test])
    right = np.array(
        [
            [
                _perceptron(train, seed + number).predict(features) == label
                for number in range(_NETWORKS)
            ]
            for train in (own, strange)
        ]
    )
    replicas = weights * rng.exponential(size=(_REPLICAS, len(label)))
    of_events = (right.mean(axis=1) @ replicas.T) / replicas.sum(axis=1)
    of_networks = right @ weights / weights.sum()
    return {
        "own": _estimate(of_networks[0], of_events[0]),
        "other": _estimate(of_networks[1], of_events[1]),
        "loss": _estimate(of_networks[0] - of_networks[1], of_events[0] - of_events[1]),
    }


def _estimate(of_networks: Floats, of_events: Floats) -> Estimate:
    """The mean over networks; its error from both, networks and replicas of the events."""
    trained = of_networks.std(ddof=1) / np.sqrt(len(of_networks))
    return Estimate(float(of_networks.mean()), float(np.hypot(trained, of_events.std())))


def _chosen(events: WeightedEvents, rows: NDArray[np.int64]) -> WeightedEvents:
    return WeightedEvents(events.features[rows], events.weights[rows])


def _perceptron(classes: Sequence[WeightedEvents], seed: int) -> Any:
    """A network; events are drawn by their weights, equally many of each class."""
    rng = np.random.default_rng(seed)
    size = max(len(each.features) for each in classes)
    features, labels = [], []
    for label, each in enumerate(classes):
        drawn = rng.choice(len(each.features), size, p=each.weights / each.weights.sum())
        features.append(each.features[drawn])
        labels.append(np.full(size, label))
    network = make_pipeline(
        QuantileTransformer(n_quantiles=100, output_distribution="normal", random_state=seed),
        MLPClassifier(_HIDDEN, alpha=1e-2, max_iter=60, early_stopping=True, random_state=seed),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(np.concatenate(features), np.concatenate(labels))
    return network


@styled
def plot_comparison(
    quantities: Mapping[str, tuple[tuple[Floats, Floats], tuple[Floats, Floats]]],
    names: tuple[str, str],
    labels: PlotLabels,
) -> Figure:
    """Densities of both samples, the reference second; a panel for each quantity with their values and weights."""
    figure, panels = new_grid(labels, panels=len(quantities), columns=_COLUMNS)
    for axes, (quantity, (first, second)) in zip(panels, quantities.items(), strict=True):
        both = np.concatenate([first[0], second[0]])
        low, high = np.quantile(both, [0.001, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        for (values, weights), colour, name, filled in (
            (second, GREY, names[1], True),
            (first, COLOURS[1], names[0], False),
        ):
            counts, errors = weighted_histogram(
                np.clip(values, edges[0], edges[-1]), edges, weights
            )
            density, errors = counts / counts.sum(), errors / counts.sum()
            axes.stairs(
                density, edges, fill=filled, alpha=0.35 if filled else 1.0, color=colour, label=name
            )
            axes.errorbar(
                (edges[1:] + edges[:-1]) / 2,
                density,
                errors,
                fmt="none",
                ecolor=colour,
                elinewidth=1,
            )
        axes.set_xlabel(
            f"{quantity}   (D = {cumulative_distance(*first, *second):.3f})", fontsize="small"
        )
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.tick_params(labelsize="small")
    legend_below(figure, panels[0])
    return figure
