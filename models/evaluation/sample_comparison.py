"""Compares two samples of the same process, such as our events and those of a full simulation.

Boosted trees that learn to tell them apart give an area under the curve of 0.5 if they do. A
network that is trained on one and tested on the other shows whether the differences matter for the
classification.
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

#: Parts of the cross-validation; the trees score each part after a training on the others.
_FOLDS: Final = 5
#: Copies of the events with random weights, for the errors.
_REPLICAS: Final = 200
#: Trainings of the perceptron, with other seeds.
_NETWORKS: Final = 5
_BINS: Final = 30
#: Panels side by side.
_COLUMNS: Final = 4
#: Numbers of neurons in the hidden layers of the perceptron.
_HIDDEN: Final = (50, 20, 10)


class WeightedEvents(NamedTuple):
    """Events of one class of one sample."""

    features: Floats
    """(num_events, num_features)."""
    weights: Floats
    """(num_events,)."""


def separation(first: WeightedEvents, second: WeightedEvents, *, seed: int) -> Estimate:
    """Compute the area under the ROC curve of boosted trees that tell two samples apart.

    It is 0.5 if they cannot. Cross-validation scores each event by trees that did not train on it.
    Each sample has the same total weight in the training. The error is the standard deviation over
    replicas of the events with random weights.
    """
    features = np.concatenate([first.features, second.features])
    sizes = [len(first.features), len(second.features)]
    is_second = np.repeat([0, 1], sizes)
    first_share = (is_second == 0).mean()
    second_share = (is_second == 1).mean()
    # Each sample adds up to half the number of all events.
    first_weights = first.weights / first.weights.mean() * (0.5 / first_share)
    second_weights = second.weights / second.weights.mean() * (0.5 / second_share)
    weights = np.concatenate([first_weights, second_weights])
    scores = np.zeros(len(is_second))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    # The trees of each fold score the events that they did not train on.
    for train, test in folds.split(features, is_second):
        trees = HistGradientBoostingClassifier(
            max_iter=60,
            learning_rate=0.05,
            max_leaf_nodes=8,
            l2_regularization=1.0,
            random_state=seed,
        )
        # The trees learn to tell the second sample (1) from the first one (0).
        trees.fit(features[train], is_second[train], sample_weight=weights[train])
        probabilities = trees.predict_proba(features[test])
        scores[test] = probabilities[:, 1]
    rng = np.random.default_rng(seed)
    areas = []
    # The scores stay; only the weights of the events vary.
    for _ in range(_REPLICAS):
        random_weights = rng.exponential(size=len(is_second))
        replica_area = roc_auc_score(is_second, scores, sample_weight=weights * random_weights)
        areas.append(replica_area)
    area = roc_auc_score(is_second, scores, sample_weight=weights)
    return Estimate(float(area), float(np.std(areas)))


def transfer(
    tested: Sequence[WeightedEvents], others: Sequence[WeightedEvents], *, seed: int
) -> dict[str, Estimate]:
    """Measure how much accuracy networks lose if they are trained on another sample.

    Half of the `tested` sample is the test. Perceptrons on the features train once on its other
    half, and once on as many events of the `others`. The training is repeated with several seeds.

    Args:
        tested: Events of each class of the sample, in the order of the labels.
        others: Events of each class of the other sample.
        seed: Seed of splits, trainings and replicas.

    Returns:
        Accuracies, in which classes count alike, after a training on the `own` sample and on the
        `other`, and the `loss`, the difference of the two.
    """
    rng = np.random.default_rng(seed)
    split = _split_samples(tested, others, rng)
    # The events of all classes are joined for the test; the trainings stay separate by class.
    features, weights, labels = _joined_classes(split.test)
    # Each of the (num_replicas, num_events) weights has its own random factor.
    random_factors = rng.exponential(size=(_REPLICAS, len(labels)))
    replicas = weights * random_factors

    # The first axis tells whether the training was on the own sample (0), or on the other one (1).
    is_right = np.zeros((2, _NETWORKS, len(labels)), dtype=np.bool_)
    for index, train in enumerate((split.own_train, split.other_train)):
        for network in range(_NETWORKS):
            perceptron = _perceptron(train, seed + network)
            is_right[index, network] = perceptron.predict(features) == labels
    # Accuracies on the events as they are have the shape (2, num_networks).
    by_network = is_right @ weights / weights.sum()
    own_by_network, other_by_network = by_network
    # Accuracies in each replica are means over the networks, (2, num_replicas).
    share_of_networks = is_right.mean(axis=1)
    by_replica = (share_of_networks @ replicas.T) / replicas.sum(axis=1)
    own_by_replica, other_by_replica = by_replica
    return {
        "own": _estimate(own_by_network, own_by_replica),
        "other": _estimate(other_by_network, other_by_replica),
        "loss": _estimate(own_by_network - other_by_network, own_by_replica - other_by_replica),
    }


class _SplitSamples(NamedTuple):
    """The events of each class for a test, and for two trainings of the same size."""

    test: list[WeightedEvents]
    own_train: list[WeightedEvents]
    other_train: list[WeightedEvents]


def _split_samples(
    tested: Sequence[WeightedEvents], others: Sequence[WeightedEvents], rng: np.random.Generator
) -> _SplitSamples:
    """Divide each class of the tested sample at random: one half for the test, one to train on.

    The other training gets as many random events of the class from the other sample. If it has
    fewer, both trainings have that number.
    """
    split = _SplitSamples([], [], [])
    orders = [rng.permutation(len(events.features)) for events in tested]
    for events, other_events, order in zip(tested, others, orders, strict=True):
        num_others = len(other_events.features)
        num_test = len(order) // 2
        num_train = min(len(order) - num_test, num_others)
        test_rows = order[:num_test]
        train_rows = order[num_test : num_test + num_train]
        other_rows = rng.permutation(num_others)[:num_train]
        split.test.append(_select(events, test_rows))
        split.own_train.append(_select(events, train_rows))
        split.other_train.append(_select(other_events, other_rows))
    return split


def _joined_classes(
    classes: Sequence[WeightedEvents],
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Join the events of all classes: their features, their weights, and their labels.

    Every class gets the total weight 1.
    """
    features = np.concatenate([events.features for events in classes])
    weights = np.concatenate([events.weights / events.weights.sum() for events in classes])
    num_events = [len(events.features) for events in classes]
    labels = np.repeat(np.arange(len(classes)), num_events)
    return features, weights, labels


def _estimate(by_network: Floats, by_replica: Floats) -> Estimate:
    """Return the mean over networks, with an error that combines networks and events.

    It is the quadratic sum of the error of the mean over networks and the spread over replicas.
    """
    network_error = by_network.std(ddof=1) / np.sqrt(len(by_network))
    event_error = by_replica.std()
    error = np.hypot(network_error, event_error)
    return Estimate(float(by_network.mean()), float(error))


def _select(events: WeightedEvents, rows: NDArray[np.int64]) -> WeightedEvents:
    """Return the events in some rows."""
    return WeightedEvents(events.features[rows], events.weights[rows])


def _perceptron(classes: Sequence[WeightedEvents], seed: int) -> Any:
    """Train a network on events drawn by their weights, equally many of each class.

    Drawing with replacement stands for weights, which the perceptron does not take. Its inputs
    become normally distributed first.
    """
    rng = np.random.default_rng(seed)
    num_drawn = max(len(events.features) for events in classes)
    features, labels = [], []
    for label, events in enumerate(classes):
        probabilities = events.weights / events.weights.sum()
        rows = rng.choice(len(events.features), num_drawn, p=probabilities)
        features.append(events.features[rows])
        labels.append(np.full(num_drawn, label))
    network = make_pipeline(
        QuantileTransformer(n_quantiles=100, output_distribution="normal", random_state=seed),
        MLPClassifier(_HIDDEN, alpha=1e-2, max_iter=60, early_stopping=True, random_state=seed),
    )
    # A training that ends at the highest number of rounds is good enough here.
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
    """Draw the distributions of two samples, one panel for each quantity.

    Args:
        quantities: By quantity, the values and the weights of the sample, then those of the
            reference.
        names: Names of the sample and of the reference.
        labels: Labels of the figure.
    """
    figure, panels = new_grid(labels, panels=len(quantities), columns=_COLUMNS)
    for axes, (quantity, (sample, reference)) in zip(panels, quantities.items(), strict=True):
        all_values = np.concatenate([sample[0], reference[0]])
        # A few extreme values do not stretch the axis.
        low, high = np.quantile(all_values, [0.001, 0.995])
        if high <= low:
            high = low + 1
        edges = np.linspace(low, high, _BINS + 1)
        sample_name, reference_name = names
        filled: dict[str, Any] = {"fill": True, "alpha": 0.35}
        _draw_density(axes, edges, *reference, color=GREY, label=reference_name, **filled)
        _draw_density(axes, edges, *sample, color=COLOURS[1], label=sample_name)
        # D is the largest difference of the two distribution functions.
        distance = cumulative_distance(*sample, *reference)
        axes.set_xlabel(f"{quantity}   (D = {distance:.3f})", fontsize="small")
        lower_end, _ = axes.get_ylim()
        axes.set_ylim(bottom=min(0.0, lower_end))
        axes.tick_params(labelsize="small")
    legend_below(figure, panels[0])
    return figure


def _draw_density(axes: Any, edges: Floats, values: Floats, weights: Floats, **look: Any) -> None:
    """Draw the share of the weight in each bin; the outer bins hold what lies outside."""
    inside = np.clip(values, edges[0], edges[-1])
    sums, errors = weighted_histogram(inside, edges, weights)
    total = sums.sum()
    density = sums / total
    density_errors = errors / total
    axes.stairs(density, edges, **look)
    centres = (edges[1:] + edges[:-1]) / 2
    axes.errorbar(centres, density, density_errors, fmt="none", ecolor=look["color"], elinewidth=1)
