"""The page of claims: what the sources claim, subject by subject, and what the stored results of studies say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from training.studies.judging import JudgedClaim, counted, judge, together
from training.studies.measures import measure_of
from training.studies.study_page import CHECK_HEADINGS, RULE, check_rows
from training.studies.study_result import StudyResult
from training.studies.tables import (
    CLAIM_HEADINGS,
    MARKS,
    claim_row,
    edges_of_sweep,
    markdown_table,
    still_learning,
    what_was_left_out,
)

_MADE: Final = (
    "Made by `{}` from the stored results of the studies; nothing here is typed in by hand. The page of each study has "
    "its tables, figures and every comparison."
)
_SUBJECTS: Final = (
    "A subject is *confirmed* if each of its claims is, and *refuted* if one is. Claims about times hold for the "
    "simulated cluster, and stay undecided where its times were not checked. Where that check misses by "
    "more than 25 %, or was made on a busy machine, the verdict says so."
)
_CHECKS: Final = (
    "Time per batch of MPI ranks that share a machine, measured and predicted by the simulator. The last column has "
    "the number of cores that other work kept busy meanwhile."
)


class _Found(NamedTuple):
    """A claim with its study."""

    result: StudyResult
    judged: JudgedClaim

    @property
    def warning(self) -> str:
        """What is wrong with the times that it compares."""
        return self.result.warning if measure_of(self.judged.claim.measure).of_time else ""


def render(results: Mapping[str, StudyResult], *, command: str, more: Sequence[str] = ()) -> str:
    """The page.

    Args:
        results: The results, by the link to the page of each study.
        command: The command that makes the page.
        more: Further sections.
    """
    # Studies that only time come after those that learn.
    ordered = sorted(results.items(), key=lambda item: item[1].study.times_only is not None)
    subjects: dict[tuple[str, str], list[_Found]] = {}
    for _, result in ordered:
        for each in judge(result)[1]:
            subject = each.claim.topic or result.study.title
            subjects.setdefault((result.study.source, subject), []).append(_Found(result, each))
    named = {f"[{result.name}]({link})": result for link, result in ordered}
    links = {result.name: link for link, result in named.items()}
    summary = [[subject, *_together(found)] for (_, subject), found in subjects.items()]
    parts = ["# What the sources claim, and what came out", _MADE.format(command)]
    parts += [markdown_table(["Subject", "verdict", "claims"], summary)]
    for (source, subject), found in subjects.items():
        rows = [[links[result.name], *claim_row(each, result)] for result, each in found]
        parts += [f"## {subject}", f"Source: {source}.", markdown_table(["Study", *CLAIM_HEADINGS], rows)]
    parts += [*more, "## How a claim is judged", RULE, _SUBJECTS, "## Events and seeds", _samples(named)]
    limits = [f"- {link}: {' '.join(words)}" for link, result in named.items() if (words := _limits(result))]
    parts += ["## Limits", "\n".join(limits)] if limits else []
    parts += ["## Check of the simulator", _checks(named)]
    return "\n\n".join(parts) + "\n"


def _together(found: Sequence[_Found]) -> list[str]:
    """The verdict on a subject, and how many claims have each."""
    verdicts = [each.judged.verdict for each in found]
    warnings = dict.fromkeys(each.warning for each in found if each.warning)
    return ["; ".join([MARKS[together(verdicts)], *warnings]), counted(verdicts)]


def _samples(named: Mapping[str, StudyResult]) -> str:
    header = ["Study", "workers", "train", "val", "test", "events", "seeds", "runs", "made", "code of the runs"]
    rows: list[list[Any]] = []
    for link, result in named.items():
        study, data = result.study, result.data
        counts = {split: "-" if study.times_only else f"{rows[-1]:,}" for split, rows in data["counts"].items()}
        most = max(study.train_settings(method, {}, 1).workers for method in study.methods)
        workers = study.vary.get("train.workers") or [most]
        rows.append([link, ", ".join(map(str, workers)), *counts.values()])
        rows[-1] += [", ".join(filter(None, [data["sample_note"], data.get("digest", "")]))]
        rows[-1] += [len({run.seed for run in result.runs}), f"{len(result.runs):,}", result.made["created"][:10]]
        rows[-1] += ["; ".join(sorted({run.made_with for run in result.runs}))]
    return markdown_table(header, rows)


def _limits(result: StudyResult) -> list[str]:
    learns = result.study.times_only is None
    return [*([still_learning(result), *edges_of_sweep(result)] if learns else []), *what_was_left_out(result)]


def _checks(named: Mapping[str, StudyResult]) -> str:
    rows = [[link, *row, _busy(result)] for link, result in named.items() for row in check_rows(result)]
    if not rows:
        return "No time of these studies was checked against a measurement."
    return f"{_CHECKS}\n\n{markdown_table(['Study', 'method', *CHECK_HEADINGS, 'busy cores'], rows)}"


def _busy(result: StudyResult) -> str:
    machine = result.made["machine"]
    return f"{machine['load']:.1f} of {machine['cores']}"
