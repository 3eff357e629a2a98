"""Tables of a comparison in Markdown, and sentences about the significance of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from training.studies.results import Comparison, RunResult
from training.studies.statistics import Difference, Mean, binomial_error, difference, mean_of, points
from training.studies.variants import METHOD_NAMES, METHODS, REFERENCE, TableColumn, Variant

MODEL_NAMES: Final = {
    "hlf": "High-level-features classifier",
    "particles": "Particle-sequence classifier",
    "inclusive": "Inclusive classifier",
}


class Pair(NamedTuple):
    """Two variants to compare."""

    this: Variant
    other: Variant


def pairs(variants: Sequence[Variant]) -> list[Pair]:
    """Pairs to compare: every variant with the reference, SlowMo with none, SlowMo without with exact average."""
    found = [Pair(each, REFERENCE) for each in variants if each != REFERENCE]
    slow = [each for each in variants if each.column is not TableColumn.BASELINE]
    found += [Pair(each, each.plain) for each in slow if each.plain in variants]
    exact = [
        (each, Variant(each.algorithm, TableColumn.SLOWMO)) for each in slow if each.column is TableColumn.NO_AVERAGE
    ]
    return found + [Pair(each, other) for each, other in exact if other in variants]


def accuracy_table(comparison: Comparison, model: str) -> str:
    """The thesis' table, methods by slow momentum: mean over seeds, spread, standard error."""
    rows = []
    for method in METHODS:
        cells = []
        for column in TableColumn:
            runs = comparison.of(model, Variant(method, column))
            cells.append(_in_percent(mean_of([run.counts.accuracy for run in runs])) if runs else "-")
        rows.append([METHOD_NAMES[method], *cells])
    return markdown_table(["Test accuracy", *(str(column) for column in TableColumn)], rows)


def difference_table(comparison: Comparison, model: str) -> str:
    """Every variant minus the reference, seed by seed, and the events that only one of them predicts correctly."""
    rows = []
    for this, other in pairs(comparison.variants(model)):
        if other != REFERENCE:
            continue
        found = compare(comparison, model, Pair(this, other))
        counts = [run.counts for run in comparison.of(model, this)]
        rows.append(
            [
                this.title,
                f"{100 * found.mean.value:+.2f}",
                _number(100 * found.mean.error),
                f"{np.mean([each.only_this for each in counts]):.1f}",
                f"{np.mean([each.only_reference for each in counts]):.1f}",
                "no: " + found.why_not[0] if found.why_not else "yes",
            ]
        )
    header = ["Minus AR-SGD", "points", "standard error", "events only it gets right", "only AR-SGD", "distinguishable"]
    return markdown_table(header, rows)


def work_table(comparison: Comparison, model: str) -> str:
    """Samples, messages and consensus of the workers for the runs of each variant."""
    rows = []
    for variant in comparison.variants(model):
        runs = comparison.of(model, variant)
        summaries = [run.summary for run in runs]
        per_worker = np.mean([each["bytes_sent"] for each in summaries]) / comparison.workers / summaries[0]["epochs"]
        alone = [value for each in summaries for value in each["worker_val_accuracy"]]
        rows.append(
            [
                variant.title,
                f"{summaries[0]['learning_rate_in_effect']:g}",
                f"{np.mean([each['samples'] for each in summaries]):,.0f}",
                f"{per_worker / 1e3:,.0f}",
                f"{np.mean([each['averages_begun'] for each in summaries]):,.0f}",
                f"{np.mean([each['consensus_distance'] for each in summaries]):.2g}",
                _in_percent(mean_of([run.curves["val_accuracy"][-1] for run in runs])),
                f"{100 * np.mean(alone):.2f} % ({100 * min(alone):.2f} to {100 * max(alone):.2f})",
                _in_percent(mean_of([run.counts.weighted_accuracy for run in runs])),
            ]
        )
    header = [
        "Method", "learning rate", "events trained on", "kB sent per worker and epoch (all-reduces as in a ring)",
        "pairwise averages",
        "consensus distance at the end", "validation accuracy of the average model at the end",
        "of single workers (range)", "weighted test accuracy",
    ]  # fmt: skip
    return markdown_table(header, rows)


def compare(comparison: Comparison, model: str, pair: Pair) -> Difference:
    """Difference of two variants, seed by seed."""
    this, other = (comparison.of(model, variant) for variant in pair)
    return difference(_accuracies(this), _accuracies(other), this[0].counts.num_events)


def sentence(comparison: Comparison, model: str, pair: Pair) -> str:
    """A sentence about the difference of two variants and its significance."""
    found = compare(comparison, model, pair)
    mean = found.mean
    number = f"{100 * mean.value:+.2f} ± {_number(100 * mean.error)} points over {mean.num_seeds} seed(s)"
    start = f"**{pair.this.title} against {pair.other.title}:** {number}"
    if found.why_not:
        return f"{start}: not distinguishable; the difference is {'; '.join(found.why_not)}."
    word = "higher" if mean.value > 0 else "lower"
    return (
        f"{start}: {word}; the difference is larger than the binomial error of the test split "
        f"({points(found.binomial_error)}), than the spread over seeds ({points(found.spread)}) and than the 95 % "
        f"interval of its mean ({points(found.limit)})."
    )


def binomial_note(comparison: Comparison, model: str) -> str:
    """A note on the binomial error, which the size of the test split gives to every accuracy of a table."""
    runs = [run for run in comparison.runs if run.model == model]
    accuracy, num_events = float(np.mean(_accuracies(runs))), runs[0].counts.num_events
    error = binomial_error(accuracy, num_events)
    return (
        f"Each cell: mean over the seeds ± standard deviation over the seeds (s.e.: standard error of the mean). The "
        f"binomial error of one accuracy on N = {num_events} test events, sqrt(p (1 - p) / N) at p = {accuracy:.4f}, "
        f"is {points(error)}; it is common to all cells, as all predict the same events."
    )


def overall(comparison: Comparison, model: str) -> str:
    """A sentence with the number of significant differences."""
    all_pairs = pairs(comparison.variants(model))
    seen = [pair for pair in all_pairs if not compare(comparison, model, pair).why_not]
    if not seen:
        return f"None of the {len(all_pairs)} comparisons of this table shows a difference that this sample can tell."
    return (
        f"{len(seen)} of the {len(all_pairs)} comparisons show(s) a difference; at 95 % each, up to about "
        f"{0.05 * len(all_pairs):.1f} would by chance alone."
    )


def still_learning(comparison: Comparison, model: str) -> str:
    """A sentence with the number of runs that were best near their end."""
    summaries = [run.summary for run in comparison.runs if run.model == model]
    late = sum(each["best_epoch"] >= 0.75 * each["epochs"] for each in summaries)
    return (
        f"In {late} of the {len(summaries)} runs the validation loss was lowest in the last quarter of the epochs. "
        f"Such runs may still improve: for them the table shows the result after this number of epochs, not the limit "
        f"of the method."
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown.

    Examples:
        >>> print(markdown_table(["a", "b"], [[1, 2]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [header, *rows]
    body = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([body[0], "|" + "---|" * len(header), *body[1:]])


def _accuracies(runs: Sequence[RunResult]) -> list[float]:
    return [run.counts.accuracy for run in runs]


def _in_percent(mean: Mean) -> str:
    if mean.num_seeds == 1:
        return f"{100 * mean.value:.2f} % (one seed)"
    return f"{100 * mean.value:.2f} % ± {100 * mean.spread:.2f} (s.e. {100 * mean.error:.2f})"


def _number(value: float) -> str:
    return "?" if np.isnan(value) else f"{value:.2f}"
