"""Extends the sweep of a key of `best_of` until each method's best value is inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from hep_studies.cells import Cell
from hep_studies.measures import number_of_run
from hep_studies.run_result import RunResult
from hep_studies.study import StudySettings
from hep_studies.study_sections import AddedValues
from hep_studies.tuning import (
    LOWEST_LOSS,
    best_combination,
    edges_of_sweep,
    grouped_runs,
    resolved_measure,
)

#: Digits of an added value: 0.01 and 0.03 are followed by 0.09.
_DIGITS: Final = 3


def extended_sweeps(
    study: StudySettings, added: AddedValues, runs: Sequence[RunResult]
) -> AddedValues:
    """Return the values to add to the sweeps of a study, by method and key.

    They are those that were added before, and one more beyond each edge at which a method has its
    best value: the lowest or highest value times the ratio to its neighbour. Best is by validation
    loss, and by each measure that a claim is tuned by. At most `extend` values are added to a side.

    Args:
        study: The study of the file.
        added: The values that were added before, none of which the file has.
        runs: The runs at all these values.
    """
    extended: AddedValues = {method: dict(by_key) for method, by_key in added.items()}
    current = study.with_added(added)
    for method, key, edge in _edges(current, runs):
        value = _value_beyond(current, method, key, edge)
        added_values = added.get(method, {}).get(key, [])
        if value is None or _num_on_side(study, method, key, edge, added_values) >= study.extend:
            continue
        values = extended.setdefault(method, {}).setdefault(key, [])
        if value not in values:
            extended[method][key] = [*values, value]
    return extended


def tuning_measures(study: StudySettings) -> list[str]:
    """Return the measures that choose best values: the validation loss, and those of claims."""
    measures = [LOWEST_LOSS.best_in]
    for claim in study.claims:
        measures += [row.tuning.best_in for row in claim.rows() if not row.tuning.at]
    return list(dict.fromkeys(measures))


def _edges(study: StudySettings, runs: Sequence[RunResult]) -> list[tuple[str, str, str]]:
    """Return method, key and edge of each best value that is the lowest or highest tried."""
    edges = []
    groups = grouped_runs(runs, study.best_of)
    # The best accuracy is that of all runs, so that it is looked for once.
    measures: dict[tuple[Cell, str], str] = {}
    for cell, combinations in groups.items():
        for name in tuning_measures(study):
            values_and_name = (cell.in_any_situation, name)
            if values_and_name not in measures:
                measures[values_and_name] = resolved_measure(groups, cell, name)
            measure = measures[values_and_name]
            best = best_combination(combinations, measure)
            if not _is_best_of_something(combinations[best], measure):
                continue
            for key, edge in edges_of_sweep(combinations, best).items():
                edges.append((cell.method, key, edge))
    return edges


def _is_best_of_something(runs: Sequence[RunResult], measure: str) -> bool:
    """Return whether the runs at a best value have numbers, or all diverged.

    If all diverged, the first value is the best, beyond which a lower rate may not diverge. If no
    run reaches a goal, nothing says in which direction one would.
    """
    if all(run.has_diverged for run in runs):
        return True
    return any(np.isfinite(number_of_run(measure, run, run)) for run in runs)


def _value_beyond(study: StudySettings, method: str, key: str, edge: str) -> Any:
    """Return the value beyond an edge of a sweep, by the ratio of the last two values.

    None if there is none: a single value has no ratio, nor has 0, and settings may forbid it.
    """
    values = sorted(study.values_of(method, key))
    if edge == "highest":
        values.reverse()
    if len(values) < 2 or values[0] <= 0 or values[1] <= 0:
        return None
    value: Any = float(f"{values[0] * values[0] / values[1]:.{_DIGITS}g}")
    if all(isinstance(tried_value, int) for tried_value in values):
        value = round(value)
    if value in values:
        return None
    try:
        study.train_settings(method, {**next(study.combinations(method)), key: value}, 1)
    except ValidationError:
        return None
    return value


def _num_on_side(
    study: StudySettings, method: str, key: str, edge: str, added: Sequence[Any]
) -> int:
    """Return how many values were added at the edge of a sweep of the file."""
    values = study.values_of(method, key)
    if edge == "highest":
        return sum(value > max(values) for value in added)
    return sum(value < min(values) for value in added)


def described_additions(added: AddedValues) -> str:
    """Return added values as text.

    Examples:
        >>> described_additions({"sgd": {"train.learning_rate": [0.3, 0.9]}})
        'sgd: train.learning_rate 0.3, 0.9'
    """
    texts = []
    for method, values_by_key in added.items():
        for key, values in values_by_key.items():
            values_text = ", ".join(map(str, values))
            texts.append(f"{method}: {key} {values_text}")
    return "; ".join(texts)
