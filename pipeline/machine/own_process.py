"""Work in a process of its own: the memory that it took is free again when it ends.

Libraries that a stage loads, and memory that they keep, would stay to the end of the command.
"""

from __future__ import annotations

import ctypes
import gc
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import FrameType
from typing import Final

from hep_core.allocation import memory_limit
from hep_core.causes import error_and_causes
from hep_core.scarce_memory import prefer_to_kill
from pipeline.errors import LackOfMemoryError
from pipeline.terminal.exit_codes import stop_requested

#: The request of Linux that a process gets a signal when its parent ends.
_SET_SIGNAL_OF_PARENT: Final = 1


def run_in_own_process(work: Callable[[], None]) -> None:
    """Do work in a copy of this process, which ends with it; wait for that end.

    The copy has all that this process knows, and nothing comes back but an exception. An interrupt
    interrupts the work.

    Raises:
        LackOfMemoryError: The kernel has killed the copy.
        Exception: That of the work, with its causes.
    """
    # Spark or a library would have threads, which a copy lacks; so far this process has neither.
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    # The collector would write to all objects of the copy, and so copy them in memory too.
    gc.freeze()
    process = context.Process(target=_work_and_report, args=(work, sender))
    process.start()
    sender.close()
    try:
        prefer_to_kill(process.ident or 0)
        errors, text = receiver.recv()
        process.join()
    except EOFError:
        # The process was killed before it could report.
        process.join()
        raise _end_without_report(process.exitcode) from None
    except BaseException:
        process.terminate()
        process.join()
        raise
    finally:
        receiver.close()
    if errors:
        error = _with_causes(errors)
        error.add_note(text)
        raise error


def _work_and_report(work: Callable[[], None], sender: Connection) -> None:
    """Do work in this process, and send its exception with the causes of that, and its traceback."""
    signal.signal(signal.SIGINT, _interrupt_once)
    signal.signal(signal.SIGTERM, _interrupt_once)
    _end_with_parent()
    errors: list[BaseException] = []
    text = ""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the other process raises it again
        text = "".join(traceback.format_exception(error))
        errors = [_portable(cause) for cause in error_and_causes(error)]
    sys.stdout.flush()
    sys.stderr.flush()
    sender.send((errors, text))


def _end_with_parent() -> None:
    """Let this process be interrupted when its parent is killed; only Linux can do that."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_SIGNAL_OF_PARENT, signal.SIGTERM)


def _interrupt_once(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
    """Interrupt the work; Ctrl-C comes twice, from the terminal and from the other process."""
    if not stop_requested.is_set():
        stop_requested.set()
        raise KeyboardInterrupt


def _portable(error: BaseException) -> BaseException:
    """Return an exception that another process can read: this one, or one of the same text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - classes of libraries raise errors of any type
        # Some errors of Spark have no text any more.
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error


def _with_causes(errors: list[BaseException]) -> BaseException:
    """Return the first of some exceptions, each with the next as its cause."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def _end_without_report(exit_code: int | None) -> Exception:
    """Return the error for a process that ended before it could report.

    Args:
        exit_code: Its exit code; the negative number of a signal if one ended it.
    """
    if exit_code is None or exit_code >= 0:
        return RuntimeError(f"the process of this stage ended with {exit_code}, without a report")
    limit = memory_limit()
    return LackOfMemoryError(
        f"the process of this stage was ended by signal {-exit_code}, often for memory: {limit}. "
        f"{limit.advice}"
    )
