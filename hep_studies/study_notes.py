"""Notes on a study: what makes its numbers unsafe to quote, and the mishaps of its runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from hep_studies.cells import Cell
from hep_studies.comparisons import edges_of_claim
from hep_studies.judging import JudgedClaim
from hep_studies.measures import measure_of
from hep_studies.study import key_label
from hep_studies.study_result import StudyResult
from training.loop.effective_share import SMALL_EFFECTIVE_SHARE

#: Sentences of `notes` by the number of a run that they count.
_COUNTED: Final = {
    "has_diverged": "{total} of {num_runs} runs diverged to a loss that is not finite: of "
    "{by_method}. Tables and figures are of the other runs.",
    "steps_not_finite": "{total} steps had no effect, since a gradient or an update was not "
    "finite: of {by_method}.",
    # Both sides of a pair count an average that is left out.
    "averages_lost": "Workers left out {total} averages, counted on both sides of a pair: of "
    "{by_method}.",
}
#: Steps between two sums, measured over simulated or the reverse, may differ by this factor.
_LARGEST_RATIO_OF_STEPS: Final = 1.25
#: A method whose test accuracy at its best is below that of one worker by more is broken.
_FAR_BEHIND: Final = 0.1


def cautions(result: StudyResult, claims: Sequence[JudgedClaim]) -> list[str]:
    """Return what a reader must know before quoting a number of the study; often nothing.

    It is about best settings at the edge of a sweep, checks of the times that other work disturbed,
    sums that the simulator makes more or less often than ranks, and methods that are far worse than
    one worker.
    """
    return [
        *_about_edges(result, claims),
        *_about_time_checks(result),
        *_about_checks_of_sums(result),
        *_about_broken_methods(result),
    ]


def _about_edges(result: StudyResult, claims: Sequence[JudgedClaim]) -> list[str]:
    """Return a sentence on the best values of compared cells that are at an edge of those tried."""
    titles_by_edge: defaultdict[str, list[str]] = defaultdict(list)
    for judged in claims:
        for comparison in judged.comparisons:
            for cell in (comparison.treatment, comparison.control):
                edges = edges_of_claim(result, cell, judged.claim)
                best = result.best_combination(cell, judged.claim.tuning.best_in).plain_values
                for key, edge in edges.items():
                    text = f"{key_label(key)} {best[key]}, the {edge} tried"
                    titles_by_edge[text].append(result.study.title_of(cell.method))
    if not titles_by_edge:
        return []
    texts = []
    for edge, titles in titles_by_edge.items():
        texts.append(f"{edge} ({'; '.join(dict.fromkeys(titles))})")
    sentence = (
        f"Best of those tried, at an edge: {', '.join(texts)}. A better value may lie beyond, so "
        "that no headline quotes claims on them."
    )
    return [sentence]


def methods_with_unchecked_times(result: StudyResult) -> dict[str, str]:
    """Return the methods with a check of the times that says nothing, each with the reason."""
    return {check.method: check.refused for check in result.checks if check.refused}


def _about_time_checks(result: StudyResult) -> list[str]:
    """Return a sentence for each reason why checks of times say nothing, such as the load.

    There is none if no claim depends on times.
    """
    rows = [row for claim in result.study.claims for row in claim.rows()]
    if not any(measure_of(row.measure).depends_on_times for row in rows):
        return []
    methods_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for method, reason in methods_with_unchecked_times(result).items():
        methods_by_reason[reason].append(method)
    checked_methods = {check.method for check in result.checks}
    sentences = []
    for reason, methods in methods_by_reason.items():
        titles = "; ".join(result.study.title_of(method) for method in methods)
        if set(methods) == checked_methods:
            titles = "all methods"
        sentences.append(
            f"Times of {titles} are in no headline, since their check is not used: {reason}."
        )
    return sentences


def _about_checks_of_sums(result: StudyResult) -> list[str]:
    """Return a sentence for each method whose workers sum up less or more often than simulated.

    What a method with a joint model learns depends on the steps between two sums.
    """
    sentences = []
    for check in result.checks:
        measured, simulated = check.steps_per_cycle, check.simulated_steps_per_cycle
        # A method without a joint model has neither number.
        if check.refused or not simulated:
            continue
        if max(measured, simulated) > _LARGEST_RATIO_OF_STEPS * min(measured, simulated):
            sentences.append(
                f"Ranks of this machine take {measured:.1f} steps between two sums of "
                f"{result.study.title_of(check.method)}, simulated workers {simulated:.1f}. What "
                "the method learns depends on them, so that ranks would learn otherwise."
            )
    return sentences


def _about_broken_methods(result: StudyResult) -> list[str]:
    """Return a sentence for each method that is far worse than one worker at its best values.

    Without `best_of` the values are those of the source, which may be meant to fail. A study of
    situations says in their table which methods miss the accuracy in which of them.
    """
    single_worker = result.study.single_worker
    if not result.study.best_of or result.study.situations or single_worker is None:
        return []
    sentences = []
    for cell in result.cells():
        baseline = result.matching_cell(cell, {"method": single_worker})
        if baseline is None:
            continue
        accuracy = result.numbers(cell, "test_accuracy").mean()
        accuracy_of_one = result.numbers(baseline, "test_accuracy").mean()
        if accuracy < accuracy_of_one - _FAR_BEHIND:
            text = measure_of("test_accuracy").text
            sentences.append(
                f"A broken baseline: {result.title(cell)} has {text(accuracy)} where one worker "
                f"has {text(accuracy_of_one)}{_about_rate(result, cell)}. It shows no strength of "
                "another method."
            )
    return sentences


def _about_rate(result: StudyResult, cell: Cell) -> str:
    """Return what a method made of its best learning rate, if that is another rate."""
    rates = [run.numbers.get("learning_rate_in_effect") for run in result.finished_runs(cell)]
    rate = result.best_combination(cell).plain_values.get("train.learning_rate")
    if rate is None or not rates or rates[0] in (None, rate):
        return ""
    return f", at the learning rate {rate:g}, which the number of workers makes {rates[0]:g}"


def notes(result: StudyResult, claims: Sequence[JudgedClaim] = ()) -> list[str]:
    """Return sentences about the mishaps of runs; none if all is well.

    They are about runs that diverged, steps without effect, lost averages, joint models with too
    few sums, and cells that cannot be compared.
    """
    sentences = []
    for counter, template in _COUNTED.items():
        counts = _counts_by_method(result, counter)
        if not counts:
            continue
        by_method = ", ".join(f"{title} {count:,.0f}" for title, count in counts.items())
        sentence = template.format(
            total=f"{sum(counts.values()):,.0f}", num_runs=len(result.runs), by_method=by_method
        )
        sentences.append(sentence)
    sentences += _notes_on_sums(result)
    for judged in claims:
        for comparison in judged.comparisons:
            if comparison.obstacle:
                treatment = result.title(comparison.treatment)
                control = result.title(comparison.control)
                sentences.append(
                    f"Not compared, {comparison.obstacle}: {treatment} against {control}."
                )
    return list(dict.fromkeys(sentences))


def _notes_on_sums(result: StudyResult) -> list[str]:
    """Return a sentence for each method whose joint model got a small part of the workers' steps.

    What such runs learn depends on how often the machine lets all workers come to a sum. Of several
    such cells of a method, the sentence has the one with the smallest part, and their number.
    """
    shares_by_method: defaultdict[str, dict[Cell, float]] = defaultdict(dict)
    for cell in result.cells():
        share = result.numbers(cell, "effective_share").mean()
        if share < SMALL_EFFECTIVE_SHARE:
            shares_by_method[cell.method][cell] = share
    sentences = []
    for method, shares in shares_by_method.items():
        cell = min(shares, key=shares.__getitem__)
        sums = result.numbers(cell, "sums").mean()
        steps = result.numbers(cell, "steps_per_cycle").mean()
        sentence = (
            f"{result.title(cell)}: the joint model got {shares[cell]:.0%} of the workers' steps, in "
            f"{sums:,.0f} sums with {steps:.0f} steps of a worker between two of a shard; the "
            f"pull undid the rest. More interruptions of the workers mean fewer sums."
        )
        if len(shares) > 1:
            sentence += (
                f" So it is in {len(shares)} cells of {result.study.title_of(method)}, with up to "
                f"{max(shares.values()):.0%}."
            )
        sentences.append(sentence)
    return sentences


def _counts_by_method(result: StudyResult, counter: str) -> dict[str, float]:
    """Return the sum of a counter over the runs of each method, by title, where it is not 0.

    `has_diverged` counts the runs that diverged.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    for run in result.runs:
        count = run.has_diverged if counter == "has_diverged" else run.numbers.get(counter, 0)
        counts[result.study.title_of(run.method)] += count
    return {title: count for title, count in counts.items() if count}
