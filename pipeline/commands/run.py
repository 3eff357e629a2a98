"""`run`, and the command of each stage."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.commands.plan import names_until
from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner


def run(run_folder: RunFolder, names: Sequence[str] = (), *, until: str | None = None, force: bool = False) -> bool:
    """Run the named stages if they are stale, and print the path of the report; returns whether any ran.

    Without names it runs all that the config includes.
    """
    runner = Runner(run_folder)
    chosen = names or names_until(runner, until)
    ran = runner.run(chosen, force=force)
    if "report" in chosen:
        current = run_folder.store("report").current()
        if current is None:
            raise RunFolderError(f"there is no report in {run_folder.config.run_dir} although its stage has run")
        run_folder.say(f"report: {current.folder / 'report.html'}")
    return bool(ran)
