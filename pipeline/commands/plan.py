"""`plan`, and `run --dry-run`: which stages would run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hep_core.secrets import redact_all
from pipeline.errors import ConfigError, nearest
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, StagePlan, State
from pipeline.stages.table import STAGE_OF


def plan(
    run_folder: RunFolder, *, until: str | None = None, force: bool = False
) -> list[StagePlan]:
    """The state of each stage that `run` includes."""
    runner = Runner(run_folder)
    names = names_until(runner, until)
    plans = [each for each in runner.plan() if each.stage.name in names]
    if not force:
        return plans
    return [
        each._replace(state=State.STALE, reasons=["--force"]) if each.state is State.FRESH else each
        for each in plans
    ]


def names_until(runner: Runner, until: str | None) -> list[str]:
    """Names of the stages that `run` includes, up to one of them."""
    names = [stage.name for stage in runner.wanted()]
    if until is None:
        return names
    if until not in names:
        stage = STAGE_OF.get(until)
        why = f" {stage.wanted_by} does not ask for it." if stage else nearest(until, names)
        raise ConfigError(f"--until {until}: `run` includes no such stage under this config.{why}")
    return names[: names.index(until) + 1]


def accept(run_folder: RunFolder) -> str:
    """Declare all existing versions up to date; returns a line about it."""
    accepted = Runner(run_folder).accept()
    return f"accepted as up to date: {', '.join(accepted)}" if accepted else "nothing was stale"


def lines(plans: Iterable[StagePlan]) -> Iterator[str]:
    """For the terminal."""
    for each in plans:
        will = "would run" if each.state.runs else ""
        yield f"{each.stage.name:<12}{each.state:<15}{will}".rstrip()
        yield from (f"            - {reason}" for reason in each.reasons)
        yield from (f"            note: {note}" for note in each.notes)


def as_json(plans: Iterable[StagePlan]) -> list[dict[str, Any]]:
    """The plan as JSON content, in the order of the stages."""
    return [
        {
            "stage": each.stage.name,
            "state": each.state,
            "would_run": each.state.runs,
            "reasons": redact_all(each.reasons),
            "notes": redact_all(each.notes),
            "version": None if each.current is None else each.current.name,
        }
        for each in plans
    ]
