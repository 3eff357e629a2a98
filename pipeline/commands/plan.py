"""`plan`: which stages would run, and why."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State


def plan(run_folder: RunFolder, *, accept: bool = False) -> Iterator[str]:
    """Look at each stage, or accept what is there; yields lines for the terminal.

    Args:
        run_folder: The run folder.
        accept: Declare what is there up to date, as it is.
    """
    runner = Runner(run_folder)
    if accept:
        accepted = runner.accept()
        yield f"accepted as they are: {', '.join(accepted)}" if accepted else "nothing was stale"
        return
    for each in runner.plan():
        will = "would run" if each.state is not State.FRESH else ""
        yield f"{each.stage.name:<12}{each.state:<15}{will}"
        yield from (f"            - {reason}" for reason in each.reasons)
        yield from (f"            note: {note}" for note in each.notes)
