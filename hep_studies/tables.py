"""The tables of a study in Markdown."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from hep_studies.cells import Cell
from hep_studies.measures import lowest_loss, measure_of
from hep_studies.run_result import RunResult
from hep_studies.sample_texts import workload_title
from hep_studies.study import StudySettings, key_label
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import StudyTable

#: A standard deviation of at most this share of the mean is rounding, and is not shown.
_VISIBLE_SPREAD: Final = 1e-6


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown.

    Examples:
        >>> print(markdown_table(["a", "b"], [[1, 2]]))
        |a|b|
        |---|---|
        |1|2|
    """
    lines = []
    for row in (header, *rows):
        cells = [str(cell).replace("|", "\\|") for cell in row]
        lines.append(f"|{'|'.join(cells)}|")
    separator = "|" + "---|" * len(header)
    return "\n".join([lines[0], separator, *lines[1:]])


def study_table(result: StudyResult, table: StudyTable) -> str:
    """Return a table of the study in Markdown, with a row for each cell: a method and its values.

    An entry is a mean over the seeds with standard deviation and standard error. The columns are
    the table's measures, or each measure at each value of a varied key. The numbers of the source
    are the last column.
    """
    if table.over is None:
        header, texts_by_title = _columns_of_measures(result, table)
    else:
        header, texts_by_title = _columns_over_key(result, table, table.over)
    if table.given:
        header.append(result.study.source)
        source_texts = {result.study.title_of(method): text for method, text in table.given.items()}
        for title, texts in texts_by_title.items():
            texts.append(source_texts.get(title, "-"))
    rows = [[title, *texts] for title, texts in texts_by_title.items()]
    return markdown_table(["", *header], rows)


def _columns_of_measures(
    result: StudyResult, table: StudyTable
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the header and the rows by title of a table with a column for each measure."""
    header = [measure_of(name).label for name in table.measures]
    texts_by_title = {}
    for cell in result.cells(table.methods):
        texts = [summary_text(result, cell, name) for name in table.measures]
        texts_by_title[result.title(cell)] = texts
    return header, texts_by_title


def _columns_over_key(
    result: StudyResult, table: StudyTable, key: str
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the header and the rows by title of a table over a varied key.

    There is a row for each method and values of other keys, and a column for each measure and
    value of the key.
    """
    # Pairs of a measure and a value of the key.
    columns = list(itertools.product(table.measures, result.study.all_values_of(key)))
    header = []
    for name, value in columns:
        label = measure_of(name).label
        header.append(f"{label}, {key_label(key)} {json.dumps(value)}")

    texts_by_title: dict[str, list[str]] = {}
    for cell in result.cells(table.methods):
        title = result.title(cell.without(key))
        # "-" stays where no run has the value.
        texts = texts_by_title.setdefault(title, ["-"] * len(columns))
        for index, (name, value) in enumerate(columns):
            # A method without the key fills all columns of a measure.
            value_of_cell = cell.plain_values.get(key, value)
            if value_of_cell == value:
                texts[index] = summary_text(result, cell, name)
    return header, texts_by_title


def summary_text(result: StudyResult, cell: Cell, measure_name: str) -> str:
    """Return a measure of a cell as text: mean, spread over the seeds, and exceptions.

    Exceptions are the numbers of runs that diverged, and of runs that did not reach a goal, whose
    measure is infinite. The mean is that of the other runs.
    """
    measure = measure_of(measure_name)
    num_runs = len(result.runs_of(cell))
    num_diverged = num_runs - len(result.finished_runs(cell))
    if measure_name == "diverged":
        # The measure itself counts the runs that diverged, so that no note repeats it.
        num_diverged = 0
    numbers = result.numbers(cell, measure_name)
    if numbers.empty:
        return "diverged" if num_diverged else "-"

    finite = numbers[np.isfinite(numbers)]
    num_infinite = len(numbers) - len(finite)
    if finite.empty:
        # No run reached the goal: the measure's text says so, without a count.
        texts = [measure.text(numbers.iloc[0])]
        num_infinite = 0
    else:
        texts = [f"{measure.text(finite.mean())}{_spread_text(result, measure_name, finite)}"]
    if num_diverged:
        texts.append(f"diverged in {num_diverged} of {num_runs}")
    if num_infinite:
        texts.append(f"{measure.text(math.inf)} in {num_infinite} of {num_runs}")
    return "; ".join(texts)


def _spread_text(result: StudyResult, measure_name: str, numbers: pd.Series) -> str:
    """Return the standard deviation over the seeds as text; empty if there is none to show.

    Shares in percent, and what claims are about, also have the standard error of the mean.
    """
    if len(numbers) < 2:
        return ""
    measure = measure_of(measure_name)
    deviation, standard_error = numbers.std(), numbers.sem()
    if measure.in_percent:
        return f" ± {100 * deviation:.2f} (s.e. {100 * standard_error:.2f})"
    if deviation <= _VISIBLE_SPREAD * abs(numbers.mean()):
        return ""
    text = f" ± {measure.text(deviation)}"
    claimed_measures = {row.measure for claim in result.study.claims for row in claim.rows()}
    if measure_name in claimed_measures:
        text += f" (s.e. {measure.text(standard_error)})"
    return text


def settings_table(result: StudyResult) -> str:
    """Return the settings that all methods share, and a table of those that differ.

    A row of the table has the settings of a method, its varied keys, and the number of events that
    its workers saw.
    """
    study = result.study
    # A row for each method, a column for each setting.
    settings = _settings_of_methods(study)
    is_shared = settings.nunique() == 1
    shared = [f"{name} {text}" for name, text in settings.loc[0, is_shared].items() if text]
    shared += [f"{key} {json.dumps(value)}" for key, value in study.cluster.items()]
    rows = []
    for method, (_, differing) in zip(
        study.methods, settings.loc[:, ~is_shared].iterrows(), strict=True
    ):
        set_values = [f"{name} {text}" for name, text in differing.items() if text]
        rows.append(
            [
                study.title_of(method),
                "; ".join(set_values),
                "; ".join(_varied_texts(study, method)),
                result.events_seen(*result.cells([method])),
            ]
        )
    table = markdown_table(["", "set", "varied", "events seen by all workers"], rows)
    return f"All: {workload_title(study)}; {'; '.join(shared)}.\n\n{table}"


def _settings_of_methods(study: StudySettings) -> pd.DataFrame:
    """Return the settings of the training as text, a row for each method, without varied keys.

    The columns are dotted keys, such as `algorithm.name`.
    """
    settings_of_methods = []
    for method in study.methods:
        items = study.first_settings(method).result_items()
        settings_of_methods.append(json.loads(json.dumps(items)))
    settings = pd.json_normalize(settings_of_methods)
    varied = {key.removeprefix("train.") for key in study.vary}
    settings = settings.drop(columns=[name for name in settings if name in {"seed", *varied}])
    return settings.map(_setting_text)


def _setting_text(value: Any) -> str:
    """Return a setting as text; empty for one that is not set."""
    is_missing = isinstance(value, float) and math.isnan(value)
    return "" if is_missing or value in (None, [], {}) else str(value)


def _varied_texts(study: StudySettings, method: str) -> list[str]:
    """Return a text for each varied key of a method: its name and its values."""
    texts = []
    for key in next(study.combinations(method)):
        values = ", ".join(json.dumps(value) for value in study.values_of(method, key))
        texts.append(f"{key_label(key)} {values}")
    return texts


def sweep_table(result: StudyResult) -> str:
    """Return a table in Markdown of the values that the keys of `best_of` were tried at.

    These are keys, such as the learning rate, of which each method is shown at its best value. A
    row is a method, a column a combination of values. An entry has the lowest validation loss and
    the test accuracy; the best one is bold. The last column warns of a best value at an edge.
    """
    combinations = {
        combination for by_combination in result.groups.values() for combination in by_combination
    }
    columns = sorted(combinations, key=_sorting_numbers)
    rows = []
    for cell in result.cells():
        best = result.best_combination(cell)
        texts = []
        for combination in columns:
            text = _sweep_text(result.groups[cell].get(combination, []))
            texts.append(f"**{text}**" if combination == best else text)
        edges = result.edges(cell).values()
        warning = "; ".join(f"the {edge} tried: a better one may lie beyond" for edge in edges)
        rows.append([result.title(cell), *texts, warning])
    header = [
        ", ".join(f"{key_label(key)} {text}" for key, text in combination.values)
        for combination in columns
    ]
    return markdown_table(["", *header, "best"], rows)


def _sorting_numbers(combination: Cell) -> list[float]:
    """Return the numbers by which combinations are sorted; 0 for values that are no numbers."""
    values = combination.plain_values.values()
    return [value if isinstance(value, int | float) else 0.0 for value in values]


def _sweep_text(runs: Sequence[RunResult]) -> str:
    """Return the means over runs of the lowest validation loss and of the test accuracy, as text.

    If some diverged, it says how many; "-" without runs.
    """
    if not runs:
        return "-"
    num_diverged = sum(run.has_diverged for run in runs)
    if num_diverged:
        return f"diverged in {num_diverged} of {len(runs)}"
    loss = np.mean([lowest_loss(run) for run in runs])
    accuracy = np.mean([run.counts.weighted_accuracy for run in runs if run.counts])
    return f"{loss:.4f}; {100 * accuracy:.2f} %"
