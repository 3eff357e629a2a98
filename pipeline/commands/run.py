"""`run`, and the command of each stage."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands.plan import names_until
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner


def run(
    run_folder: RunFolder,
    names: Sequence[str] = (),
    *,
    until: str | None = None,
    force: bool = False,
) -> bool:
    """Run the named stages if they are stale; returns whether any ran.

    Without names it runs all that the config includes.
    """
    runner = Runner(run_folder)
    return bool(runner.run(names or names_until(runner, until), force=force))
