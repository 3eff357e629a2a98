"""How a command ended: the last line of a log, and the JSON for the command of `notify`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hep_core.secrets import redact_all
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import MISSING_INPUT_ERRORS, FolderInUseError
from pipeline.runs.log import RunLog
from pipeline.runs.outcome import CommandResults
from pipeline.runs.provenance import now
from pipeline.terminal.exit_codes import stop_requested

_TIMEOUT_SECONDS: Final = 60.0
_MAX_ERROR_LETTERS: Final = 200


class Notifier:
    """Says how a command ended: in a last line of output, and to the command of `notify`.

    Args:
        command: The command of `notify` and its arguments; empty if there is none.
        run_dir: The run folder.
        log: The log of the command.
        say: Called with a line for the terminal.
        prints_outcome: Whether a line about the outcome ends the output, as in a file.
    """

    def __init__(
        self,
        command: Sequence[str],
        run_dir: Path,
        log: RunLog,
        *,
        say: Callable[[str], None],
        prints_outcome: bool,
    ) -> None:
        self._command = command
        self._run_dir = run_dir
        self._log = log
        self._say = say
        self._prints_outcome = prints_outcome

    def report(
        self, error: BaseException | None, results: CommandResults, *, notifies: bool
    ) -> None:
        """Print how a command ended, and start the command of `notify`.

        Args:
            error: The exception that ended the command; None after success.
            results: What the command made or used.
            notifies: Whether the command of `notify`, if the config has one, is started.
        """
        outcome = outcome_of(error)
        time = now()
        if self._prints_outcome:
            phrases = ", ".join([outcome, *results.phrases])
            self._say(f"{time} run {self._log.run_id}: {phrases}")
        if notifies and self._command:
            self._notify(
                {
                    "time": time,
                    "run": self._log.run_id,
                    "run_dir": str(self._run_dir.absolute()),
                    "command": " ".join(hide_credentials(argument) for argument in sys.argv[1:]),
                    "outcome": outcome,
                    "message": "" if error is None else str(error),
                    "log": str(self._log.path.absolute()),
                    **results.values,
                }
            )

    def _notify(self, content: Mapping[str, Any]) -> None:
        """Start the command of `notify` with the outcome as JSON on its standard input.

        Secrets are left out. A failure of the command is printed and changes nothing.
        """
        problem = ""
        try:
            process = subprocess.run(
                self._command,
                # The command reads the outcome from its standard input.
                input=json.dumps(redact_all(content)),
                text=True,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        else:
            if process.returncode:
                # The end of the error output says most.
                message = process.stderr.strip()[-_MAX_ERROR_LETTERS:]
                problem = f"it ended with code {process.returncode}: {message}"
        if problem:
            self._say(f"warning: the command of `notify` failed: {problem}")


def outcome_of(error: BaseException | None) -> str:
    """Return a phrase for how a command with this error ended; None means success.

    A command that finds no input yet, as in a nightly run before new data, did not fail.
    """
    if error is None:
        return "done"
    if isinstance(error, FolderInUseError):
        return "waits for another run"
    # After Ctrl-C, which also ends the JVM, Spark may fail first.
    if isinstance(error, KeyboardInterrupt) or stop_requested.is_set():
        return "interrupted"
    if isinstance(error, MISSING_INPUT_ERRORS):
        return "waits for its input"
    return f"failed ({type(error).__name__})"
