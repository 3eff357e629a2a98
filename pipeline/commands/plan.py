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
    """Return the state of each stage that `run` includes, up to the stage `until`.

    With `force`, stages that are up to date count as stale, as `run --force` treats them.
    """
    runner = Runner(run_folder)
    names = names_until(runner, until)
    plans = [stage_plan for stage_plan in runner.plan() if stage_plan.stage.name in names]
    if force:
        plans = [_forced(stage_plan) for stage_plan in plans]
    return plans


def _forced(stage_plan: StagePlan) -> StagePlan:
    """Return the plan of a stage as `--force` changes it: what is fresh becomes stale."""
    if stage_plan.state is State.FRESH:
        return stage_plan._replace(state=State.STALE, reasons=["--force"])
    return stage_plan


def names_until(runner: Runner, until: str | None) -> list[str]:
    """List the stages that `run` includes, in order, up to and with a stage; None for all.

    Raises:
        ConfigError: `run` includes no such stage; an optional one may not be asked for.
    """
    names = [stage.name for stage in runner.wanted()]
    if until is None:
        return names
    if until not in names:
        stage = STAGE_OF.get(until)
        reason = f" {stage.wanted_by} does not ask for it." if stage else nearest(until, names)
        raise ConfigError(
            f"--until {until}: `run` includes no such stage under this config.{reason}"
        )
    return names[: names.index(until) + 1]


def accept_versions(run_folder: RunFolder) -> str:
    """Declare all existing versions up to date, in their manifests; returns a line about it."""
    accepted = Runner(run_folder).accept()
    if not accepted:
        return "nothing was stale"
    return f"accepted as up to date: {', '.join(accepted)}"


def lines(plans: Iterable[StagePlan]) -> Iterator[str]:
    """Yield the plan in lines for the terminal: state of each stage, reasons and notes below it."""
    for stage_plan in plans:
        action = "would run" if stage_plan.state.runs else ""
        yield f"{stage_plan.stage.name:<12}{stage_plan.state:<15}{action}".rstrip()
        for reason in stage_plan.reasons:
            yield f"            - {reason}"
        for note in stage_plan.notes:
            yield f"            note: {note}"


def plan_as_json(run_folder: RunFolder, plans: Iterable[StagePlan]) -> list[dict[str, Any]]:
    """Return the plan as JSON content, in the order of the stages.

    `target` is the file that a stage replaces when it has made something new: workflow tools watch
    it.
    """
    return [
        {
            "stage": stage_plan.stage.name,
            "state": stage_plan.state,
            "would_run": stage_plan.state.runs,
            "reasons": redact_all(stage_plan.reasons),
            "notes": redact_all(stage_plan.notes),
            "version": stage_plan.current.name if stage_plan.current else None,
            "target": str(run_folder.store(stage_plan.stage.name).pointer),
        }
        for stage_plan in plans
    ]
