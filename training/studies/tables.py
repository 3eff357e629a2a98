"""Tables of a study in Markdown, and sentences about the significance of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from training.studies.judging import (
    ClaimVerdict,
    Comparison,
    JudgedClaim,
    common_seeds,
    effect,
    in_words,
    left_out,
)
from training.studies.measures import lowest_loss, measure_of
from training.studies.run_result import RunResult
from training.studies.statistics import Judgement, binomial_error, mean_of, points
from training.studies.study import StudyTable
from training.studies.study_result import Cell, StudyResult

#: Relative spread below which a number has none: rounding.
_VISIBLE: Final = 1e-6
MARKS: Final = {
    ClaimVerdict.CONFIRMED: "**confirmed**",
    ClaimVerdict.REFUTED: "**refuted**",
    ClaimVerdict.UNDECIDED: "undecided",
    ClaimVerdict.NOT_TESTED: "not tested in this form",
}


def study_table(result: StudyResult, table: StudyTable) -> str:
    """A table of the study: mean over the seeds, standard deviation, standard error."""
    cells = result.cells(table.methods)
    if table.over is None:
        header = [measure_of(name).words for name in table.measures]
        rows = {result.title(cell): [summed_up(result, cell, name) for name in table.measures] for cell in cells}
    else:
        header, rows = _over(result, table, cells)
    given = {result.study.title_of(method): text for method, text in table.given.items()}
    if given:
        header = [*header, f"{result.study.source}"]
        rows = {title: [*row, given.get(title, "-")] for title, row in rows.items()}
    return markdown_table(["", *header], [[title, *row] for title, row in rows.items()])


def _over(result: StudyResult, table: StudyTable, cells: Sequence[Cell]) -> tuple[list[str], dict[str, list[str]]]:
    """A row for each method and other values, a column for each value of the key; a method without it fills all."""
    key, (name, *_) = table.over or "", table.measures
    values = result.study.vary[key]
    rows: dict[str, list[str]] = {}
    for cell in cells:
        rest = Cell(cell.method, tuple(pair for pair in cell.values if pair[0] != key))
        row = rows.setdefault(result.title(rest), ["-"] * len(values))
        text = summed_up(result, cell, name)
        for place, value in enumerate(values):
            if cell.value(key) in (None, value):
                row[place] = text
    return [f"{measure_of(name).words}, {key.rpartition('.')[2]} {value}" for value in values], rows


def summed_up(result: StudyResult, cell: Cell, name: str) -> str:
    """A measure of a cell: mean, standard deviation and standard error over the seeds, and how many runs diverged."""
    measure, runs, values = measure_of(name), result.of(cell), [*result.numbers(cell, name).values()]
    gone = 0 if name == "diverged" else len(runs) - len(result.with_result(cell))
    finite = [value for value in values if math.isfinite(value)]
    if not values:
        return "diverged" if gone else "-"
    lost = {"diverged": gone, measure.text(math.inf): len(values) - len(finite)}
    if not finite:
        return "; ".join([measure.text(values[0]), *([f"diverged in {gone} of {len(runs)}"] if gone else [])])
    mean = mean_of(finite)
    words = measure.text(mean.value)
    if measure.percent and mean.num_seeds > 1:
        words += f" ± {100 * mean.spread:.2f} (s.e. {100 * mean.error:.2f})"
    elif mean.spread > _VISIBLE * abs(mean.value):
        words += f" ± {measure.text(mean.spread)}"
    return "; ".join([words, *(f"{what} in {count} of {len(runs)}" for what, count in lost.items() if count)])


#: Headings of `claim_row`.
CLAIM_HEADINGS: Final = ("Claim", "measured by", "came out (95 % interval)", "verdict")


def claim_row(judged: JudgedClaim, result: StudyResult) -> list[str]:
    """What the source claims, and what came out."""
    claim = judged.claim
    found = "; ".join(
        f"{result.title(each.this)} against {result.title(each.other)}: "
        f"{'{} ({})'.format(*effect(each, judgement))}{_fewer_seeds(result, each)}"
        for each, judgement in judged.judged.items()
    )
    words = MARKS[judged.verdict] + (f" (needs {judged.needed})" if judged.needed else "")
    if result.warning and measure_of(claim.measure).of_time:
        words += f"; {result.warning}"
    return [claim.claim, measure_of(claim.measure).words, found, words]


def verdict_table(judged: Mapping[Comparison, Judgement], result: StudyResult) -> str:
    """Every comparison: the difference over the seeds, its interval, and the verdict."""
    rows = []
    for each, judgement in judged.items():
        p_values = (f"{judgement.p_different:.2g}", f"{judgement.p_equivalent:.2g}")
        names = (result.title(each.this), result.title(each.other), measure_of(each.measure).words)
        limit = f", beyond {math.exp(each.shift):.3g}" if each.shift else ""
        verdict = f"{in_words(each, judgement)}{limit}{_fewer_seeds(result, each)}"
        rows.append([*names, *effect(each, judgement), *p_values, verdict])
    header = ["", "against", "in", "difference", "95 % interval", "p, difference", "p, equivalence", "verdict"]
    return markdown_table(header, rows)


def _fewer_seeds(result: StudyResult, comparison: Comparison) -> str:
    """The number of seeds of a comparison, if runs of others diverged."""
    seeds = {run.seed for cell in comparison[:2] for run in result.of(cell)}
    common = len(common_seeds(result, comparison))
    return f", {common} of {len(seeds)} seeds" if common < len(seeds) else ""


def best_table(result: StudyResult) -> str:
    """The sweep of the keys of `best_of`: lowest validation loss and test accuracy of each method at each value."""
    every = dict.fromkeys(each.values for cell in result.cells() for each in result.by_best(cell))
    columns = sorted((Cell("", values) for values in every), key=_size)
    rows = []
    for cell in result.cells():
        found, best = result.by_best(cell), result.best(cell)
        texts = {each.values: _of_best(runs, is_best=each == best) for each, runs in found.items()}
        edges = [_edge(result, cell.method, key, best.value(key)) for key, _ in best.values]
        rows.append(
            [
                result.title(cell),
                *(texts.get(each.values, "-") for each in columns),
                "; ".join(f"the {edge} tried: a better one may lie beyond" for edge in edges if edge),
            ]
        )
    header = [
        ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {text}" for key, text in each.values) for each in columns
    ]
    return markdown_table(["", *header, "best"], rows)


def edges_of_sweep(result: StudyResult) -> list[str]:
    """A sentence about the methods whose best value is the lowest or highest tried; none where there is none."""
    found = []
    for cell, best in ((cell, result.best(cell)) for cell in result.cells()):
        edges = {key: _edge(result, cell.method, key, best.value(key)) for key, _ in best.values}
        words = [f"{edge} {key.rpartition('.')[2].replace('_', ' ')}" for key, edge in edges.items() if edge]
        found += [f"{result.title(cell)} ({', '.join(words)})"] if words else []
    return [f"At the edge of the sweep, so that a better value may lie beyond: {', '.join(found)}."] if found else []


def _size(cell: Cell) -> list[float]:
    """What orders the columns of a sweep: the values that are numbers."""
    values = (cell.value(key) for key, _ in cell.values)
    return [value if isinstance(value, int | float) else 0.0 for value in values]


def _edge(result: StudyResult, method: str, key: str, best: Any) -> str:
    """Whether the best value of a key is the `lowest` or `highest` of several; else empty."""
    values = result.study.values_of(method, key)
    if len(values) == 1 or not all(isinstance(value, int | float) for value in values):
        return ""
    return {min(values): "lowest", max(values): "highest"}.get(best, "")


def _of_best(runs: Sequence[RunResult], *, is_best: bool) -> str:
    gone = sum(run.has_diverged for run in runs)
    if gone:
        return f"diverged in {gone} of {len(runs)}"
    accuracy = np.mean([run.counts.weighted_accuracy for run in runs if run.counts is not None])
    words = f"{np.mean([lowest_loss(run) for run in runs]):.4f}; {100 * accuracy:.2f} %"
    return f"**{words}**" if is_best else words


def binomial_note(result: StudyResult) -> str:
    """A note on the binomial error, which the size of the test split gives to every accuracy of a table."""
    counts = [run.counts for cell in result.cells() for run in result.of(cell) if run.counts is not None]
    accuracy = float(np.mean([each.weighted_accuracy for each in counts]))
    weights = np.ones(counts[0].num_events) if result.weights is None else result.weights
    effective = float(weights.sum() ** 2 / np.square(weights).sum())
    return (
        f"Each cell: mean over the seeds ± standard deviation over the seeds (s.e.: standard error of the mean). "
        f"Accuracies have the weights of events and classes, as in training. The binomial error of one accuracy on "
        f"{len(weights):,} test events, which count as N = {effective:,.0f} of equal weight, sqrt(p (1 - p) / N) at "
        f"p = {accuracy:.4f}, is {points(binomial_error(accuracy, effective))}; it is common to all cells, as all "
        f"predict the same events."
    )


def still_learning(result: StudyResult) -> str:
    """A sentence with the number of runs that were best near their end."""
    runs = [run for cell in result.cells() for run in result.of(cell) if run.curves]
    late = sum(run.numbers["best_epoch"] >= 0.75 * len(run.curves["val_loss"]) for run in runs)
    return (
        f"In {late} of the {len(runs)} runs the validation loss was lowest in the last quarter of the epochs. "
        f"Such runs may still improve: for them the table shows the result after this number of epochs, not the limit "
        f"of the method."
    )


def what_was_left_out(result: StudyResult) -> list[str]:
    """Sentences about runs that diverged, comparisons, steps without effect and lost messages; none if all is well.

    A run that diverged has no records, so that its steps are not among them.
    """
    found = []
    gone = [run.method for run in result.runs if run.has_diverged]
    if gone:
        titles = ", ".join(f"{result.study.title_of(name)} {gone.count(name)}" for name in dict.fromkeys(gone))
        found.append(
            f"{len(gone)} of {len(result.runs)} runs diverged to a loss that is not finite: of {titles}. Tables, "
            "figures and comparisons are of the other runs."
        )
    found += _about_left_out(result)
    refused = _sums(result, "steps_not_finite")
    if refused:
        found.append(
            f"{sum(refused.values()):,.0f} steps had no effect, since a gradient or an update was not finite: of "
            f"{', '.join(f'{title} {number:,.0f}' for title, number in refused.items())}."
        )
    lost, averages = _sums(result, "messages_lost"), _sums(result, "averages_lost")
    if lost:
        # Both sides of a pair count an average that is left out.
        found.append(
            f"The simulated network lost {sum(lost.values()):,.0f} messages, and with them "
            f"{sum(averages.values()) / 2:,.0f} pairwise averages: of "
            f"{', '.join(f'{title} {number:,.0f}' for title, number in lost.items())}."
        )
    return found


def _about_left_out(result: StudyResult) -> list[str]:
    """A sentence for each reason for which comparisons are left out."""
    by_reason: dict[str, list[str]] = {}
    for each, why in left_out(result).items():
        words = measure_of(each.measure).words
        by_reason.setdefault(f"{why[0].upper()}{why[1:]}", []).append(
            f"{result.title(each.this)} against {result.title(each.other)} in {words}"
        )
    return [f"{why}: {'; '.join(dict.fromkeys(pairs))}." for why, pairs in by_reason.items()]


def events_table(result: StudyResult) -> str:
    """The number of events, with repetitions, that each run of a method saw."""
    rows = []
    for cell in result.cells():
        seen = sorted(result.events_seen(cell))
        rows.append([result.title(cell), " to ".join(f"{end:,}" for end in dict.fromkeys(seen[:1] + seen[-1:])) or "-"])
    return markdown_table(["", "events seen by all workers, repetitions included"], rows)


def _sums(result: StudyResult, name: str) -> dict[str, float]:
    """A number of all runs by method, without those where it is 0."""
    found: dict[str, float] = {}
    for run in result.runs:
        title = result.study.title_of(run.method)
        found[title] = found.get(title, 0.0) + run.numbers.get(name, 0.0)
    return {title: number for title, number in found.items() if number}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown.

    Examples:
        >>> print(markdown_table(["a", "b"], [[1, 2]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [header, *rows]
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([body[0], "|" + "---|" * len(header), *body[1:]])
