"""The page of a comparison: tables, sentences and figures in one Markdown file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from training.studies.drawing import Drawn
from training.studies.results import Comparison
from training.studies.statistics import LEVEL, MARGIN
from training.studies.tables import (
    MODEL_NAMES,
    accuracy_table,
    binomial_note,
    judged,
    markdown_table,
    overall,
    rate_table,
    still_learning,
    verdict_table,
    work_table,
)

_TABLE: Final = {"hlf": " (thesis, table 4.2)", "particles": " (thesis, table 4.3)", "inclusive": ""}
_THESIS: Final = (
    "Migliorini's thesis (Padova 2020, tables 4.2 and 4.3) gives, on another and larger sample and without a spread "
    "over seeds, 91.68 % for AR-SGD with the high-level features and 91.50 to 91.88 % for the six others, and 94.06 % "
    "and 93.89 to 94.13 % with the particles. Those numbers are of other events and cannot be compared with these."
)
_RULE: Final = (
    "Differences are paired: the same seed, the same test events. Seeds and events both count as samples, so that a "
    "verdict holds for other seeds and other events of this kind; an analysis of variance gives both parts of the "
    f"error. *Better* and *worse*: a difference at {100 * LEVEL:g} %. *Equivalent*: two one-sided tests show it below "
    f"{100 * MARGIN:g} points at {100 * LEVEL:g} %. Both probabilities p are corrected for the number of comparisons "
    "in the table (Holm); the intervals are not. *Undecided*: neither; the seeds or test events that would decide are "
    "given for a true difference as large as the measured one."
)
_RATES: Final = (
    "Lowest validation loss and test accuracy, means over the seeds. In bold: the rate with the lowest loss, which all "
    "other tables and figures use."
)
_AGAIN: Final = (
    "All tables and figures are made from `comparison.json`; the same command draws them again without training."
)


def render(comparison: Comparison, drawn: Sequence[Drawn], *, folder: str) -> str:
    """The page.

    Args:
        comparison: Results of the comparison.
        drawn: The figures.
        folder: Folder of the figures, relative to the page.
    """
    parts = [f"# Comparison of optimisers: {comparison.name}", _about(comparison)]
    for model in comparison.models:
        parts += [f"## {MODEL_NAMES[model]}", *_results(comparison, model)]
        parts += [_figure(each, folder) for each in drawn if each.model == model]
    parts += ["## Agreement of the workers", *(_figure(each, folder) for each in drawn if each.model is None)]
    parts += ["## How it was made", _made(comparison)]
    return "\n\n".join(parts) + "\n"


def _about(comparison: Comparison) -> str:
    chosen, train = comparison.settings["compare"], comparison.settings["train"]
    seeds = "; ".join(
        f"{model} {_range([run.seed for run in comparison.runs if run.model == model])}" for model in comparison.models
    )
    lengths = ", ".join(f"{chosen['epochs'][model]} ({model})" for model in comparison.models)
    rates = " or ".join(f"{rate:g}" for rate in sorted({run.learning_rate for run in comparison.runs}))
    scaled = (
        ", multiplied by the number of workers for AR-SGD (linear rule)"
        if train["optimizer"] == "sgd" and train["scale_learning_rate"]
        else ", each for every method"
    )
    slow = f"tau {chosen['tau']}, alpha 1, beta {chosen['beta']:g}"
    return (
        f"Made by `{comparison.made['command']}`; nothing here is typed in by hand.\n\n"
        f"Every method trains on the same events: {chosen['workers']} workers (MPI ranks), {chosen['batch_size']} "
        f"events per worker and step (sequential SGD: one worker), epochs: {lengths}. The same seed means the same "
        f"initial weights and, for the same number of workers, the same "
        f"order of events for every method; seeds: {seeds}. Each worker's optimiser is {train['optimizer']} with "
        f"learning rate {rates}{scaled}. SwarmSGD takes {chosen['local_steps']} local steps between averages; SlowMo "
        f"has {slow}, with the exact average of all models before each outer step or without it (no avg.). Of each "
        f"run the average model of the epoch with the lowest validation loss is taken, and predicts the test split "
        f"once.\n\n{_THESIS}"
    )


def _results(comparison: Comparison, model: str) -> list[str]:
    judgements = judged(comparison, model)
    return [
        f"### Test accuracy{_TABLE[model]}",
        accuracy_table(comparison, model),
        binomial_note(comparison, model),
        still_learning(comparison, model),
        "### What may be said",
        _RULE,
        verdict_table(judgements),
        overall(judgements),
        "### Learning rates",
        _RATES,
        rate_table(comparison, model),
        "### What the methods did",
        work_table(comparison, model),
    ]


def _figure(drawn: Drawn, folder: str) -> str:
    return f"### {drawn.title}\n\n![{drawn.title}]({folder}/{drawn.stem}.png)\n\n{drawn.caption}"


def _made(comparison: Comparison) -> str:
    made, data = comparison.made, comparison.data
    machine = made["machine"]
    codes = sorted({run.made_with for run in comparison.runs})
    classes = data["classes"]
    events = markdown_table(
        ["Events", *classes, "all"], [[split, *counts, sum(counts)] for split, counts in data["counts"].items()]
    )
    rows: list[list[Any]] = [
        ["command", f"`{made['command']}`"],
        ["made", made["created"]],
        ["machine", f"{machine['cpu']}, {machine['cores']} core(s)"],
        ["code of the runs", "; ".join(codes)],
        ["features", data["version"]],
        ["sample", data["sample_note"]],
        *([name, version] for name, version in made["packages"].items()),
    ]
    return f"{events}\n\n{markdown_table(['', ''], rows)}\n\n{_AGAIN}"


def _range(numbers: Sequence[int]) -> str:
    """Seeds in words.

    Examples:
        >>> _range([3, 1, 2, 1])
        '1 to 3'
    """
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
