"""The end of a command: its messages and exit code."""

from __future__ import annotations

import atexit
import io
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from enum import IntEnum
from importlib import metadata
from types import FrameType
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from ingestion.plugins import blamed
from ingestion.secrets import redact
from pipeline.errors import NOT_THERE_YET, USER_ERRORS, ConfigError, FolderInUseError, MachineError, out_of_room
from pipeline.runs.provenance import DISTRIBUTION

_SECONDS_BEFORE_AGAIN: Final = 0.05
#: The user has asked to stop. The exception of an interrupt can get lost: Python drops exceptions of destructors, and
#: some imports catch all.
requested: Final = threading.Event()
#: Variables that force colours on help texts and tracebacks, also in files.
_FORCING_COLOURS: Final = ("FORCE_COLOR", "PY_COLORS")
#: Packages whose modules have other names.
_PACKAGE_OF: Final = {"py4j": "pyspark", "sklearn": "scikit-learn", "upath": "universal-pathlib"}
#: Control characters, which move the cursor or change colours; names of files may hold them.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _in_letters(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


class SafeConsole(Console):
    """A console that shows no secrets and no control characters, cuts no line of a file, and colours terminals only."""

    @property
    def is_terminal(self) -> bool:
        """Whether it writes to a terminal, independent of FORCE_COLOR."""
        return super().is_terminal and not self.file.closed and self.file.isatty()

    def print(self, *objects: Any, **options: Any) -> None:
        """Like `Console.print`."""
        shown = (_CONTROL.sub(_in_letters, redact(each)) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **options)


#: Consoles for the result of a command, and for its progress and errors.
out = SafeConsole(highlight=False, soft_wrap=True)
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True)


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    USER_ERROR = 1
    """An error of the input, the run folder or the machine; the message says which."""
    USAGE = 2
    """An error of the command line or the config."""
    BUG = 3
    """A bug of the pipeline."""
    NOT_THERE_YET = 66
    """The input of the command does not exist yet; sysexits.h has this number for missing input."""
    IN_USE = 75
    """Another command holds the run folder; sysexits.h has this number for failures that pass."""
    NOTHING_TO_DO = 99
    """Everything was up to date, where `--exit-code` asks for it; Airflow has this number for skipped tasks."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


def with_exit_code(command_line: Callable[[], None]) -> None:
    """Run a command line; the process ends with its exit code, after an interrupt too.

    Characters that the encoding of the terminal lacks become escapes. Files, such as logs of ranks, get no colours.
    """
    for name in _FORCING_COLOURS:
        os.environ.pop(name, None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        command_line()
    except SystemExit as end:
        if requested.is_set():
            # Python 3.11 may end by SIGINT whatever the exit code is, if an interrupt comes during an import.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(end.code or 0))
        raise


def guard(work: Callable[[], None], *, debug: bool) -> None:
    """Run a command; turn errors into messages and exit codes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _not_lost
    if not debug:
        # Spark's gateway logs a traceback for each call that an interrupt or a lost worker breaks; the error suffices.
        logging.getLogger().setLevel(logging.CRITICAL)
    try:
        work()
    except typer.Exit:
        raise
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - it is said, and is the exit code
        if debug:
            err.print(traceback.format_exc(), markup=False)
        code = _explain(error)
        sys.stdout.flush()
        sys.stderr.flush()
        raise typer.Exit(code) from None


def _explain(error: BaseException) -> Exit:
    """Print what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt) or requested.is_set():
        # A terminal also interrupts Spark's workers: their end may reach us as an error before our own interrupt.
        # A further signal must not change the exit code.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        err.print("\ninterrupted; finished stages stay; the same command resumes there")
        return Exit.INTERRUPTED
    error = _missing_extra(error) or blamed(error) or error
    if isinstance(error, USER_ERRORS):
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        if isinstance(error, ConfigError):
            return Exit.USAGE
        if isinstance(error, FolderInUseError):
            return Exit.IN_USE
        return Exit.NOT_THERE_YET if isinstance(error, NOT_THERE_YET) else Exit.USER_ERROR
    if of_system := out_of_room(error) or (error if isinstance(error, OSError) else None):
        err.print(f"[bold red]error:[/] {escape(str(of_system))}. Check this name, its permissions and its disk.")
        return Exit.USER_ERROR
    err.print(
        f"[bold red]unexpected error:[/] {escape(f'{type(error).__name__}: {error}')}\n"
        "This is a bug of the pipeline; run again with --debug for the traceback and report it."
    )
    return Exit.BUG


def _missing_extra(error: BaseException) -> MachineError | None:
    """The error for a module that an extra of this package installs."""
    name = (getattr(error, "name", None) or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    package = _PACKAGE_OF.get(name, name).replace("_", "-")
    for line in metadata.requires(DISTRIBUTION) or () if name else ():
        extra = re.fullmatch(rf"{re.escape(package)}\b[^;]*; extra == .(\w+).", line)
        if extra:
            return MachineError(f"this command needs {name}. Install it: pip install '{DISTRIBUTION}[{extra[1]}]'")
    return None


def _not_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Resend an interrupt that Python has dropped, as it drops all exceptions of destructors."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(_SECONDS_BEFORE_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    requested.set()
    raise KeyboardInterrupt


def stop_if_requested() -> None:
    """Raise the interrupt again if it was lost; the runner asks before it publishes anything."""
    if requested.is_set():
        raise KeyboardInterrupt
