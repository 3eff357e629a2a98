"""Tables of a comparison in Markdown, and sentences about the significance of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from training.studies.results import Comparison, RunResult, lowest_loss
from training.studies.statistics import Difference, Judgement, Mean, Word, binomial_error, mean_of, points, verdicts
from training.studies.variants import ALL_METHODS, REFERENCE, TableColumn, Variant, title_of

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
    """Pairs to compare.

    Every variant with the reference; SlowMo with none, and with that of the reference; SlowMo without its exact average
    with that of the same method.
    """
    found = [Pair(each, REFERENCE) for each in variants]
    slow = [each for each in variants if each.column is not TableColumn.BASELINE]
    found += [Pair(each, each.plain) for each in slow]
    found += [Pair(each, Variant(REFERENCE.algorithm, TableColumn.SLOWMO)) for each in slow]
    found += [
        Pair(each, Variant(each.algorithm, TableColumn.SLOWMO))
        for each in slow
        if each.column is TableColumn.NO_AVERAGE
    ]
    return [pair for pair in dict.fromkeys(found) if pair.other in variants and pair.this != pair.other]


def accuracy_table(comparison: Comparison, model: str) -> str:
    """The thesis' table, methods by slow momentum: mean over seeds, spread, standard error."""
    rows = []
    for method in ALL_METHODS:
        cells = []
        for column in TableColumn:
            runs = comparison.of(model, Variant(method, column))
            cells.append(_in_percent(mean_of([run.counts.accuracy for run in runs])) if runs else "-")
        rows.append([title_of(method), *cells])
    return markdown_table(["Test accuracy", *(str(column) for column in TableColumn)], rows)


def judged(comparison: Comparison, model: str) -> dict[Pair, Judgement]:
    """The verdict on every pair of a network, from the seeds that both have."""
    found = {}
    for pair in pairs(comparison.variants(model)):
        this, other = (np.array([run.counts.is_correct for run in comparison.of(model, each)]) for each in pair)
        found[pair] = Difference.of(this.astype(np.int8) - other.astype(np.int8))
    return dict(zip(found, verdicts(list(found.values())), strict=True))


def verdict_table(judgements: Mapping[Pair, Judgement]) -> str:
    """Every comparison: the difference seed by seed and event by event, its interval, and the verdict."""
    rows = []
    for (this, other), verdict in judgements.items():
        value, width = 100 * float(verdict.difference.value), 100 * float(verdict.difference.half_width())
        interval = "?" if np.isnan(width) else f"{value - width:+.2f} to {value + width:+.2f}"
        p_values = (f"{verdict.p_different:.2g}", f"{verdict.p_equivalent:.2g}")
        rows.append([this.title, other.title, f"{value:+.2f}", interval, *p_values, str(verdict)])
    header = ["", "against", "points", "95 % interval", "p, difference", "p, equivalence", "verdict"]
    return markdown_table(header, rows)


def overall(judgements: Mapping[Pair, Judgement]) -> str:
    """A sentence with the number of each verdict.

    Examples:
        >>> overall({})
        'Of the 0 comparisons: 0 better, 0 worse, 0 equivalent, 0 undecided.'
    """
    words = [verdict.word for verdict in judgements.values()]
    return f"Of the {len(words)} comparisons: {', '.join(f'{words.count(word)} {word}' for word in Word)}."


def rate_table(comparison: Comparison, model: str) -> str:
    """The sweep of learning rates: lowest validation loss and test accuracy of each method at each."""
    rates = sorted({run.learning_rate for run in comparison.runs if run.model == model})
    rows = []
    for variant in comparison.variants(model):
        by_rate, best = comparison.by_rate(model, variant), comparison.of(model, variant)[0].learning_rate
        cells = []
        for rate in rates:
            accuracy = 100 * float(np.mean([run.counts.accuracy for run in by_rate[rate]]))
            words = f"{lowest_loss(by_rate[rate]):.4f}; {accuracy:.2f} %"
            cells.append(f"**{words}**" if rate == best else words)
        edge = {rates[0]: "lowest", rates[-1]: "highest"}.get(best) if len(rates) > 1 else None
        rows.append([variant.title, *cells, f"the {edge} tried: a better one may lie beyond" if edge else ""])
    return markdown_table(["Learning rate", *(f"{rate:g}" for rate in rates), "best"], rows)


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
                f"{np.mean([each.get('averages_begun', 0) for each in summaries]):,.0f}",
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


def binomial_note(comparison: Comparison, model: str) -> str:
    """A note on the binomial error, which the size of the test split gives to every accuracy of a table."""
    runs = _shown(comparison, model)
    accuracy, num_events = float(np.mean(_accuracies(runs))), runs[0].counts.num_events
    error = binomial_error(accuracy, num_events)
    return (
        f"Each cell: mean over the seeds ± standard deviation over the seeds (s.e.: standard error of the mean). The "
        f"binomial error of one accuracy on N = {num_events} test events, sqrt(p (1 - p) / N) at p = {accuracy:.4f}, "
        f"is {points(error)}; it is common to all cells, as all predict the same events."
    )


def still_learning(comparison: Comparison, model: str) -> str:
    """A sentence with the number of runs that were best near their end."""
    summaries = [run.summary for run in _shown(comparison, model)]
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


def _shown(comparison: Comparison, model: str) -> list[RunResult]:
    """The runs of a network at the best learning rates."""
    return [run for variant in comparison.variants(model) for run in comparison.of(model, variant)]


def _accuracies(runs: Sequence[RunResult]) -> list[float]:
    return [run.counts.accuracy for run in runs]


def _in_percent(mean: Mean) -> str:
    if mean.num_seeds == 1:
        return f"{100 * mean.value:.2f} % (one seed)"
    return f"{100 * mean.value:.2f} % ± {100 * mean.spread:.2f} (s.e. {100 * mean.error:.2f})"


def _number(value: float) -> str:
    return "?" if np.isnan(value) else f"{value:.2f}"
