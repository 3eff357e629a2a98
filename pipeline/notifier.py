"""How a command ended: the last line of a log, and the JSON for the command of `notify`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

from hep_core.environment import foreign_environment
from hep_core.secrets import redact_all
from pipeline.configuration.credentials import hide_credentials
from pipeline.errors import MISSING_INPUT_ERRORS, FolderInUseError
from pipeline.runs.log import RunLog
from pipeline.runs.outcome import CommandResults
from pipeline.runs.provenance import now
from pipeline.terminal.exit_codes import stop_requested

_TIMEOUT_SECONDS: Final = 60.0
_MAX_ERROR_LETTERS: Final = 200


class _NotificationError(Exception):
    """The command of `notify` says that it failed."""


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
        """Print how a command ended, and run the command of `notify`.

        A failure of the report is printed and changes nothing: the outcome of a command is that of
        its work.

        Args:
            error: The exception that ended the command; None after success.
            results: What the command made or used.
            notifies: Whether the command of `notify`, if the config has one, is run.
        """
        outcome = outcome_of(error)
        time = now()
        if self._prints_outcome:
            phrases = ", ".join([outcome, *results.phrases])
            self._say(f"{time} run {self._log.run_id}: {phrases}")
        if not (notifies and self._command):
            return
        try:
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
        except Exception as failure:  # noqa: BLE001 - an error here would replace that of the command
            self._say(f"warning: the command of `notify` failed: {failure}")

    def _notify(self, content: Mapping[str, Any]) -> None:
        """Run the command of `notify` with the outcome as JSON on its standard input.

        Secrets are left out. The command has ended when its first process has.

        Raises:
            OSError: The command cannot be started.
            subprocess.TimeoutExpired: It takes too long.
            _NotificationError: It ends with another exit code than 0.
        """
        with ExitStack() as stack:
            # Files in memory need no space on a disk, which may be full. A child that the command
            # leaves in the background may hold them open, where it would delay the end of a pipe.
            outcome_file = stack.enter_context(_file_in_memory("outcome"))
            error_output = stack.enter_context(_file_in_memory("errors"))
            outcome_file.write(json.dumps(redact_all(content)).encode())
            outcome_file.seek(0)
            exit_code = subprocess.run(
                self._command,
                # The command reads the outcome from its standard input.
                stdin=outcome_file,
                stdout=subprocess.DEVNULL,
                stderr=error_output,
                # Our own variables would change what a program of the user imports.
                env=foreign_environment(),
                timeout=_TIMEOUT_SECONDS,
                check=False,
            ).returncode
            error_output.seek(0)
            message = error_output.read().decode(errors="replace").strip()
        if exit_code:
            # The end of the error output says most.
            raise _NotificationError(
                f"it ended with code {exit_code}: {message[-_MAX_ERROR_LETTERS:]}"
            )


def _file_in_memory(name: str) -> BinaryIO:
    """Open a new file in memory; `name` is for lists of open files."""
    return open(os.memfd_create(name), "w+b")  # noqa: PTH123 - a descriptor has no path


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
