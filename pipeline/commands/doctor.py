"""`doctor`: what is wrong with this machine, by looking and by a try."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.machine.doctor import Need, Severity, render
from pipeline.run_folder import RunFolder
from training.settings import TrainSettings


def doctor(run_folder: RunFolder, say: Callable[[str], None]) -> bool:
    """Look at the machine and, where nothing is wrong, start the ranks for a short test; whether all is well.

    Args:
        run_folder: The run folder.
        say: Called with each finding.
    """
    findings = run_folder.examine(list(Need))
    say(render(findings))
    has_error = any(finding.severity is Severity.ERROR for finding in findings)
    return not has_error and _can_train(run_folder.config.train, say)


def _can_train(settings: TrainSettings, say: Callable[[str], None]) -> bool:
    from training.errors import LaunchError
    from training.launching.probing import describe_devices, probe_mpi

    say(describe_devices())
    if settings.workers == 1:
        return True
    try:
        say(probe_mpi(settings))
    except LaunchError as error:
        say(f"error: {error}")
        return False
    return True
