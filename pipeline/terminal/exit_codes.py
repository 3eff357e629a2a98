"""The end of a command: its messages and exit code."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from enum import IntEnum
from importlib import metadata
from types import FrameType
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from hep_core.allocation import killed_for_memory, lack_of_memory, limit_and_advice, memory_limit
from hep_core.plugins import plugin_error
from hep_core.secrets import redact
from pipeline.errors import (
    MISSING_INPUT_ERRORS,
    TEMPORARY_ERRORS,
    USER_ERRORS,
    ConfigError,
    LackOfMemoryError,
    MachineError,
    full_disk_error,
)
from pipeline.runs.provenance import DISTRIBUTION
from pipeline.terminal.output_streams import drop_lost_output, lossy_output

#: Set once the user has asked to stop. The exception of an interrupt can get lost: Python drops
#: exceptions of destructors, and some imports catch all. So the runner checks this before it
#: publishes anything.
stop_requested: Final = threading.Event()
#: Package on PyPI of each module that has another name.
_PACKAGE_OF_MODULE: Final = {
    "py4j": "pyspark",
    "sklearn": "scikit-learn",
    "upath": "universal-pathlib",
}


class SafeConsole(Console):
    """A console that shows no secrets."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like `Console.print`, with secrets in texts replaced by stars."""
        redacted = [redact(text) if isinstance(text, str) else text for text in objects]
        super().print(*redacted, **options)


class ResultConsole(SafeConsole):
    """A console on the standard output, for a text that is the result of the command."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like `SafeConsole.print`.

        Raises:
            MachineError: The output cannot be written.
            typer.Exit: Nobody reads the output any more, as after `| head`.
        """
        super().print(*objects, **options)
        output = lossy_output(sys.stdout)
        error = None if output is None else output.error
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(Exit.USER_ERROR)
        if error is not None:
            raise MachineError(f"the standard output cannot be written ({error}).")


#: Consoles for a result that is text, for what a command has done, and for progress and errors.
out = ResultConsole(highlight=False, soft_wrap=True)
outcomes = SafeConsole(highlight=False, soft_wrap=True)
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
    MAY_PASS = 75
    """Another command holds the run folder, or a Spark cluster does not answer; sysexits.h has this
    number for failures that pass."""
    NOTHING_TO_DO = 99
    """Everything was up to date, where `--exit-code` asks for it; Airflow has this number for
    skipped tasks."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


def with_exit_code(command_line: Callable[[], None]) -> None:
    """Run a command line, and set up the output streams before."""
    drop_lost_output()
    command_line()


def guard(work: Callable[[], None], *, debug: bool) -> None:
    """Run a command; turn errors into messages and exit codes.

    SIGINT and SIGTERM become an interrupt of `work`. With `debug` a traceback is printed too.

    Raises:
        typer.Exit: The command failed, with the exit code.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _interrupt)
    # The kernel also counts processes that were killed before this command.
    killed_before = killed_for_memory()
    if not debug:
        # Spark's gateway logs a traceback for each call that an interrupt or a lost worker breaks;
        # the error suffices.
        logging.getLogger().setLevel(logging.CRITICAL)
    try:
        work()
    except typer.Exit:
        raise
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - it gives the message and the exit code
        if debug:
            err.print(traceback.format_exc(), markup=False)
        num_killed = killed_for_memory() - killed_before
        raise typer.Exit(_explain(error, num_killed=num_killed)) from None


def _explain(error: BaseException, *, num_killed: int) -> Exit:
    """Print what went wrong; returns the exit code.

    The first that applies counts: an interrupt; a missing package, or an error in a plugin; an
    error that the user can fix; a lack of memory; an error of the system, such as a full disk; else
    a bug of ours.

    `num_killed` is the number of processes that the kernel has killed for memory since the start.
    """
    if isinstance(error, KeyboardInterrupt) or stop_requested.is_set():
        return _explain_interrupt()
    error = _missing_extra(error) or plugin_error(error) or error
    if not isinstance(error, USER_ERRORS):
        error = _lack_of_memory(error, num_killed) or error
    if isinstance(error, USER_ERRORS):
        _print_error(str(error))
        # Processes that were killed for memory may be the cause of any error.
        limit = memory_limit()
        if num_killed and str(limit) not in str(error):
            note = f"The kernel has killed {num_killed} process(es) for memory meanwhile: {limit}."
            err.print(escape(note))
        return _exit_code(error)
    system_error = full_disk_error(error)
    if system_error is None and isinstance(error, OSError):
        system_error = error
    if system_error is not None:
        _print_error(f"{system_error}. {_advice_on(system_error)}")
        return Exit.USER_ERROR
    err.print(
        f"[bold red]unexpected error:[/] {escape(f'{type(error).__name__}: {error}')}\n"
        "This is a bug of the pipeline; run again with --debug for the traceback and report it."
    )
    return Exit.BUG


def _advice_on(error: OSError) -> str:
    """Return what to do about an error of the system, such as a full disk."""
    if error.filename is not None:
        return "Check this name, its permissions and its disk."
    if full_disk_error(error) is not None:
        return (
            "Make room on the disks of the run folder and of TMPDIR: `python -m pipeline clean` "
            "removes old versions."
        )
    return "The system names no file; run again with --debug to see what it was asked for."


def _explain_interrupt() -> Exit:
    """Print that the command was interrupted; further signals are ignored from now on."""
    # Ctrl-C also interrupts Spark's workers: their end may arrive as an error before our own
    # interrupt. A second signal must not change the exit code.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    err.print("\ninterrupted; finished stages stay; the same command resumes there")
    return Exit.INTERRUPTED


def _print_error(message: str) -> None:
    """Print an error; brackets in it are text, not markup."""
    err.print(f"[bold red]error:[/] {escape(message)}")


def _exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error that the user can fix.

    A wrong config, an error that may pass, and input that does not exist yet have codes of their
    own.
    """
    if isinstance(error, ConfigError):
        return Exit.USAGE
    if isinstance(error, TEMPORARY_ERRORS):
        return Exit.MAY_PASS
    if isinstance(error, MISSING_INPUT_ERRORS):
        return Exit.NOT_THERE_YET
    return Exit.USER_ERROR


def _lack_of_memory(error: BaseException, num_killed: int) -> LackOfMemoryError | None:
    """Return an error for a lack of memory, if that is the cause; else None.

    Signs are, in this order: processes that the kernel has killed, the error itself, and a pool of
    processes of which one has vanished.
    """
    limit, reason = memory_limit(), lack_of_memory(error)
    if num_killed:
        return LackOfMemoryError(
            f"the kernel has killed {num_killed} process(es) of this command for memory: {limit}. "
            f"{limit.advice}"
        )
    if reason:
        return LackOfMemoryError(
            f"there is no memory for this command ({reason}): {limit_and_advice(reason)}"
        )
    if isinstance(error, BrokenExecutor):
        return LackOfMemoryError(
            f"a process that this command started was killed ({error}), often for memory: {limit}. "
            f"{limit.advice}"
        )
    return None


def _missing_extra(error: BaseException) -> MachineError | None:
    """Return an error that names the extra with the missing module; None for other errors.

    Extras are optional dependencies. The metadata of our package list them in lines such as
    `mlflow>=2; extra == "mlflow"`.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = error.name.split(".")[0]
    package = _PACKAGE_OF_MODULE.get(module, module).replace("_", "-")
    for requirement in metadata.requires(DISTRIBUTION) or ():
        match = re.fullmatch(rf"{re.escape(package)}\b[^;]*; extra == .(\w+).", requirement)
        if match:
            return MachineError(
                f"this command needs {module}. Install it: pip install '{DISTRIBUTION}[{match[1]}]'"
            )
    return None


def _interrupt(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    """Note the wish to stop, and interrupt the main thread, as Ctrl-C does."""
    stop_requested.set()
    raise KeyboardInterrupt


def stop_if_requested() -> None:
    """Raise the interrupt again if it was lost; the runner calls this before it publishes."""
    if stop_requested.is_set():
        raise KeyboardInterrupt
