"""How a command ends: what is said, and the exit code."""

from __future__ import annotations

import atexit
import errno
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
from types import FrameType
from typing import Any, Final, NoReturn

import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape

from ingestion.secrets import redact
from pipeline.errors import NOT_THERE_YET, USER_ERRORS, ConfigError, FolderInUseError, cannot_write
from pipeline.runs.space import out_of_room
from pipeline.terminal.interrupts import requested

_SECONDS_BEFORE_AGAIN: Final = 0.05
#: Errors of the system that come from a name or from permissions.
_OF_THE_MACHINE: Final = frozenset({errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
_WIDTH_OF_FILES: Final = 1000
#: What moves the cursor or changes colours, as names of files may.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _in_letters(control: re.Match[str]) -> str:
    return ascii(control[0])[1:-1]


class SafeConsole(Console):
    """A console that shows no secrets and no control characters, and cuts no line of a file."""

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        """Of the terminal; a file has room."""
        found = super().size
        return found if self.is_terminal or "COLUMNS" in os.environ else found._replace(width=_WIDTH_OF_FILES)

    def print(self, *objects: Any, **options: Any) -> None:
        """Like `Console.print`."""
        shown = (_CONTROL.sub(_in_letters, redact(each)) if isinstance(each, str) else each for each in objects)
        super().print(*shown, **options)


#: What a command tells, and where its progress and errors go.
out = SafeConsole(highlight=False, soft_wrap=True)
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True)


class Exit(IntEnum):
    """What the exit status means."""

    OK = 0
    USER_ERROR = 1
    """Input, run folder or machine; the message says which."""
    USAGE = 2
    """Command line or config."""
    BUG = 3
    """An error that we did not foresee."""
    NOT_THERE_YET = 66
    """What the command reads has not come yet; sysexits.h has this number for missing input."""
    IN_USE = 75
    """Another command holds the run folder; sysexits.h has this number for what may be tried again."""
    NOTHING_TO_DO = 99
    """Everything was up to date, where `--exit-code` asks for it; Airflow has this number for skipped tasks."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


def with_exit_code(command_line: Callable[[], None]) -> None:
    """Run a command line; the process ends with its exit code, after an interrupt too.

    Letters that the terminal's encoding lacks are shown as escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        command_line()
    except SystemExit as end:
        if requested.is_set():
            _end_with(int(end.code or 0))
        raise


def _end_with(code: int) -> NoReturn:
    """End the process with this exit code, once all is cleaned up.

    Where an interrupt falls into `exec` or `eval` of a string, as every import of a namedtuple has one, Python 3.11
    remembers it as unhandled, and in the end kills itself by SIGINT whatever the exit code is.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def guard(work: Callable[[], None], *, debug: bool) -> None:
    """Run a command; turn errors into messages and exit codes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _not_lost
    if not debug:
        # Spark's gateway logs a traceback for every call that an interrupt or a lost worker breaks; the error says it.
        logging.getLogger().setLevel(logging.CRITICAL)
    try:
        work()
    except typer.Exit:
        raise
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - it is said, and is the exit code
        if debug:
            err.print(traceback.format_exc(), markup=False)
        _leave(_explain(error))


def _explain(error: BaseException) -> Exit:
    """Say what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt) or requested.is_set():
        # A terminal interrupts Spark's workers too: their end may reach us as an error before our own interrupt does.
        # Whatever comes now must not end the process otherwise.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        err.print("\ninterrupted; finished stages stay; the same command resumes there")
        return Exit.INTERRUPTED
    if isinstance(error, USER_ERRORS):
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        return _of_user_error(error)
    no_room = out_of_room(error)
    if no_room:
        err.print(f"[bold red]error:[/] {escape(str(cannot_write('a file', no_room)))}")
        return Exit.USER_ERROR
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        err.print(f"[bold red]error:[/] {escape(str(error))}. Check this name and its permissions.")
        return Exit.USER_ERROR
    err.print(
        f"[bold red]unexpected error:[/] {escape(f'{type(error).__name__}: {error}')}\n"
        "This is a bug of the pipeline; run again with --debug for the traceback and report it."
    )
    return Exit.BUG


def _of_user_error(error: BaseException) -> Exit:
    if isinstance(error, ConfigError):
        return Exit.USAGE
    if isinstance(error, FolderInUseError):
        return Exit.IN_USE
    return Exit.NOT_THERE_YET if isinstance(error, NOT_THERE_YET) else Exit.USER_ERROR


def _leave(code: Exit) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    raise typer.Exit(code)


def _not_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that Python has dropped, as it does with exceptions raised in destructors."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(_SECONDS_BEFORE_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    requested.set()
    raise KeyboardInterrupt
