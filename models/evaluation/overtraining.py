"""Compares the scores of training and test events: a difference hints at overtraining."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.evaluation.curves import kolmogorov_smirnov
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.scored_events import ScoredEvents, describe_weights


def compare_with_training(
    train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> dict[str, Any]:
    """Compare the outputs of training and test events by a Kolmogorov-Smirnov test.

    There is one test for each output and each true class. A difference hints at overtraining.
    """
    comparison: dict[str, Any] = {}
    for output in task.outputs:
        by_truth = {}
        for label, name in enumerate(task.classes):
            in_train = train.labels == label
            in_test = test.labels == label
            # Only events of the same true class are comparable.
            by_truth[name] = kolmogorov_smirnov(
                train.probabilities[in_train, output],
                train.weights[in_train],
                test.probabilities[in_test, output],
                test.weights[in_test],
            )
        comparison[task.classes[output]] = by_truth
    return comparison


def uncompared_classes(
    comparison: Mapping[str, Any], train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> list[str]:
    """Write a sentence about each class whose training and test events cannot be compared.

    The Kolmogorov-Smirnov test then has no p-value: a split has too few events, or no weight.
    """
    # Whether a comparison is possible is the same for all outputs, so the first one is enough.
    by_truth = next(iter(comparison.values()))
    sentences = []
    for label in task.measured_labels:
        name = task.classes[label]
        if by_truth[name]["p_value"] is None:
            in_train = train.labels == label
            in_test = test.labels == label
            train_weights = describe_weights(train.weights[in_train])
            test_weights = describe_weights(test.weights[in_test])
            sentences.append(
                f"scores of training and test events of {name} cannot be compared: "
                f"in the training {train_weights}, in the test {test_weights}."
            )
    return sentences
