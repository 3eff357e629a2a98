"""The page of a study: what the source claims and what came out, tables and figures in one Markdown file."""

from __future__ import annotations

from typing import Any, Final

from training.studies.judging import counted, judge
from training.studies.statistics import LEVEL, MARGIN
from training.studies.study_result import StudyResult
from training.studies.tables import (
    CLAIM_HEADINGS,
    best_table,
    binomial_note,
    claim_row,
    events_table,
    markdown_table,
    still_learning,
    study_table,
    verdict_table,
    what_was_left_out,
)

RULE: Final = (
    "Differences are paired: the same seed and, for the test accuracy, the same test events. Seeds and events both "
    "count as samples, so that a verdict holds for other seeds and other events of this kind. Times and rates compare "
    f"by their ratio, seed by seed. *Better* and *worse*: a difference at {100 * LEVEL:g} %. *Equivalent*: two "
    f"one-sided tests show it below {100 * MARGIN:g} points (times: below 10 %, where nothing else is said) at "
    f"{100 * LEVEL:g} %. Both probabilities p are corrected for the number of comparisons in the same measure (Holm); "
    "the intervals are not. *Undecided*: neither; the seeds or test events that would decide are given for a true "
    "difference as large as the measured one. A claim is *confirmed* or *refuted* if each of its comparisons, or one, "
    "is significantly so; a claim of a share of them is *refuted* if that share can no longer be so. A claim about "
    "simulated times, or shares of time, needs a difference from the claimed one beyond what the check of the "
    "simulator misses: the measured ratio of two methods, or, for shares and for unlike numbers of workers, a measured "
    "time."
)
#: Headings of `check_rows`, after that of the method.
CHECK_HEADINGS: Final = ("workers", "measured [ms]", "predicted [ms]", "error")
_BEST: Final = (
    "Lowest validation loss and test accuracy, means over the seeds. In bold: the one with the lowest loss, which all "
    "other tables and figures use."
)
_AGAIN: Final = (
    "All tables and figures are made from `result.json`; the same command draws them again without training."
)


def render(result: StudyResult, *, folder: str) -> str:
    """The page.

    Args:
        result: The result of the study.
        folder: Folder of the figures, relative to the page.
    """
    study = result.study
    judged, claims = judge(result)
    parts = [f"# {study.title}", _about(result)]
    if claims:
        counts = counted([each.verdict for each in claims])
        rows = markdown_table(CLAIM_HEADINGS, [claim_row(each, result) for each in claims])
        parts += ["## What the source claims, and what came out", f"{counts}.", rows]
    for table in study.tables:
        parts += [f"## {table.title}", study_table(result, table)]
    learns = study.times_only is None
    if learns:
        parts += [binomial_note(result), still_learning(result), "## Events seen", events_table(result)]
    parts += what_was_left_out(result)
    for figure in study.figures:
        title = f"{figure.title} ({result.warning})" if result.warning else figure.title
        parts += [f"## {title}", f"![{figure.title}]({folder}/{figure.name}.png)", figure.caption]
    if judged:
        parts += ["## Every comparison", RULE, verdict_table(judged, result)]
    if study.best_of:
        parts += [
            f"## Sweep of {', '.join(key.rpartition('.')[2] for key in study.best_of)}",
            _BEST,
            best_table(result),
        ]
    if result.is_simulated:
        parts += ["## Check of the simulator", _checks(result)]
    parts += ["## How it was made", _made(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(result: StudyResult) -> str:
    study, seeds = result.study, sorted({run.seed for run in result.runs})
    shows = f", {', '.join(study.shows.values())}" if study.shows else ""
    span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    how = "virtual workers of the simulator" if result.is_simulated else "MPI ranks of this machine"
    return (
        f"Source: {study.source}{shows}. Made by `{result.made['command']}` in the form *{result.form}*; nothing here "
        f"is typed in by hand.\n\n{study.about.strip()}\n\nWorkers are {how}. The same seed means the same initial "
        f"weights and, for the same number of workers, the same order of events for every method; seeds: {span}."
    )


def _checks(result: StudyResult) -> str:
    if not result.checks:
        return "The computing times of the cluster are given, not measured: nothing was checked on this machine."
    cluster, given = result.cluster or {}, result.study.cluster
    cores = "one such core for each worker"
    if "step_seconds" in given:
        cores = f"machines on which a step takes {1e3 * given['step_seconds']:.3g} ms"
    about = (
        f"Time per batch of MPI ranks on {result.made['machine']['cores']} core(s) of this machine, measured and "
        f"predicted. A step takes {1e3 * cluster['step_seconds']:.3g} ms + {1e6 * cluster['event_seconds']:.3g} us per "
        f"event with a log-normal spread of {cluster['jitter']:.2g}, measured on one core; messages between processes "
        f"here have a latency of {1e6 * cluster['latency_seconds']:.3g} us. The simulated cluster has {cores}, "
        f"and the network of the study: 10 Gb/s with a latency of 50 us where it says nothing else. A "
        f"check that misses by more than 25 % stands in the titles of the figures."
    )
    if result.is_busy:
        about += (
            f" Other work kept {result.made['machine']['load']:.1f} of these cores busy, so that neither column is a "
            f"time of this machine."
        )
    return f"{about}\n\n{markdown_table(['', *CHECK_HEADINGS], check_rows(result))}"


def check_rows(result: StudyResult) -> list[list[Any]]:
    """Measured and predicted times, a row for each check."""
    return [
        [
            result.study.title_of(each.method),
            each.workers,
            f"{1e3 * each.measured:.3g}",
            f"{1e3 * each.predicted:.3g}",
            f"{100 * (each.predicted / each.measured - 1):+.0f} %",
        ]
        for each in result.checks
    ]


def _made(result: StudyResult) -> str:
    made, data = result.made, result.data
    machine, classes = made["machine"], data["classes"]
    events = markdown_table(["Rows", *classes, "all"], [[split, *counts] for split, counts in data["counts"].items()])
    rows: list[list[Any]] = [
        ["command", f"`{made['command']}`"],
        ["made", made["created"]],
        ["machine", f"{machine['cpu']}, {machine['cores']} core(s)"],
        ["code of the runs", "; ".join(sorted({run.made_with for run in result.runs}))],
        ["events", data["version"]],
        *([["digest of the events", data["digest"]]] if data.get("digest") else []),
        ["sample", data["sample_note"]],
        *([name, version] for name, version in made["packages"].items()),
    ]
    return f"{events}\n\n{markdown_table(['', ''], rows)}\n\n{_AGAIN}"
