"""Studies of fast and slow links whose runs take given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from example_study import STUDY, example_result, example_run, example_study

from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

LINKS = "situation.links"
SITUATIONS = {
    "links": {"fast": {"cluster.latency_seconds": 1e-6}, "slow": {"cluster.latency_seconds": 1e-2}}
}
ONE_WORKER = {**STUDY["methods"]["sgd"], "fixed": [LINKS]}


def timed_runs(
    method: str, seconds: Sequence[float], *, end: float = 0.9, **values: Any
) -> list[RunResult]:
    """Runs of four epochs of the same time, one for each seed; three have the accuracy `end`.

    `seconds`: the time until the middle one of these three.
    """
    runs = []
    for seed, time in enumerate(seconds, start=1):
        run = example_run(method, seed, values=values)
        changes = {"val_accuracy": [0.5, end, end, end], "seconds": [time / 3] * 4}
        runs.append(replace(run, curves={**run.curves, **changes}))
    return runs


def result_of(runs: Sequence[RunResult], **study: Any) -> StudyResult:
    """The result of a study of fast and slow links, with other settings."""
    methods = {**STUDY["methods"], "sgd": ONE_WORKER}
    defaults = {"situations": SITUATIONS, "vary": {LINKS: ["fast", "slow"]}, "methods": methods}
    settings = example_study(**{**defaults, **study})
    return example_result(settings, runs)


def tied_result() -> StudyResult:
    """AR-SGD is as fast as AD-PSGD over fast links; over slow ones it takes ten times as long."""
    fast: dict[str, Any] = {LINKS: "fast"}
    slow: dict[str, Any] = {LINKS: "slow"}
    return result_of(
        [
            *timed_runs("sgd", (8.0, 8.1, 7.9, 8.0)),
            *timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **fast),
            *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.0), **fast),
            *timed_runs("ar-sgd", (10.0, 11.0, 10.0, 11.0), **slow),
            *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.1), **slow),
        ]
    )
