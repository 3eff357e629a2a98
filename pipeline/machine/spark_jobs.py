"""Watches Spark jobs: progress, the end of their tasks, and their failures as our errors."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import psutil

from hep_core.integrity import DamagedOutputError
from hep_core.scarce_memory import is_memory_scarce
from pipeline.errors import SparkJobError
from pipeline.machine.spark_cluster import cluster_error
from pipeline.runs.code_meaning import PACKAGES

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from pipeline.terminal.progress import Bar

_SECONDS_BETWEEN_CHECKS: Final = 0.5
#: Spark kills a Python worker that does not end within two seconds.
_SECONDS_FOR_TASKS_TO_END: Final = 10.0
_SECONDS_FOR_WORKERS_TO_END: Final = 0.5
#: Letters of a cause that a message shows.
MAX_CAUSE_LETTERS: Final = 500
_LOST_EXECUTOR: Final = re.compile(
    r"\((\S+) executor (\S+)\): ExecutorLostFailure \(.*?\) Reason: (.*)"
)
_ADVICE: Final = (
    "Check space and permissions of the run folder and of spark.local.dir; that all executors see "
    "run folder and input files under the paths of the driver; and their memory and logs. --debug "
    "shows all messages of Spark."
)


@contextmanager
def counted(context: SparkContext, bar: Bar, total: int) -> Iterator[Accumulator[int]]:
    """Yield a counter to which Spark tasks add, and show its value on a bar during the block.

    Spark adds the counts of a task when that ends. `total` is the value when all work is done.
    """
    counter = context.accumulator(0)
    with watched(bar, total, lambda: counter.value):
        yield counter


@contextmanager
def watched(bar: Bar, total: int, count: Callable[[], int]) -> Iterator[None]:
    """Show a value on a progress bar, twice a second, while the block runs a Spark job.

    Exceptions of Spark become ours; see `failures_of_spark`. After a failure or an interrupt, the
    job's tasks are ended before the block is left, so that what they wrote can be removed.

    Args:
        bar: The progress bar.
        total: The value when all work is done.
        count: Returns the present value.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - Spark is loaded only by stages that need it

    context = SparkContext._active_spark_context
    job_is_over = threading.Event()

    def watch() -> None:
        """Update the bar until the job is over."""
        while not job_is_over.wait(_SECONDS_BETWEEN_CHECKS):
            bar(count(), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with failures_of_spark(str(getattr(context, "master", ""))):
            yield
    except BaseException:
        # An interrupt is no `Exception`, and its tasks still run too.
        end_tasks(context)
        raise
    finally:
        job_is_over.set()
        watcher.join()
        if is_memory_scarce():
            # Until the next job, they would hold the modules of this one.
            _end_python_workers()


@contextmanager
def failures_of_spark(master: str) -> Iterator[None]:
    """Turn exceptions of Spark in this block into ours, which say what failed and what to do.

    Exceptions of our own code in tasks, which arrive inside those of Spark, keep their message.

    Args:
        master: The URL of the Spark master, for messages.

    Raises:
        UnreachableSparkError: The cluster has ended the application, or never took it.
        SparkJobError: The job or Spark's Java process failed.
        DamagedOutputError: A task found a damaged file.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - see `watched`
    from pyspark.errors import PySparkException  # noqa: PLC0415

    # Spark 4.3 names exceptions of Python in tasks like the second.
    try:
        yield
    except (Py4JError, PySparkException) as error:
        stopped = cluster_error(master, error)
        if stopped is not None:
            raise stopped from error
        if isinstance(error, Py4JNetworkError):
            raise SparkJobError(
                f"Spark's Java process has ended: killed, or without memory? {_ADVICE}"
            ) from error
        cause = _cause(str(error) or type(error).__name__)
        raise _job_error(cause) from error


def _job_error(cause: str) -> Exception:
    """Return the error for a failed job.

    Errors of our own code name their fix and are no fault of Spark, so their message stands alone.

    Args:
        cause: The line about the cause, as `_cause` finds it.
    """
    # In a traceback, our errors have the name of their module before the message.
    packages = "|".join(PACKAGES)
    own_error = re.match(rf"(?:{packages})\.[\w.]*: (.*)", cause)
    if own_error is None:
        return SparkJobError(f"a Spark job failed: {cause[:MAX_CAUSE_LETTERS]}. {_ADVICE}")
    # The path of a damaged file is needed whole, so only other messages are cut.
    damage = DamagedOutputError.from_message(own_error[1])
    return damage or SparkJobError(own_error[1][:MAX_CAUSE_LETTERS])


def end_tasks(context: SparkContext | None) -> None:
    """Cancel all jobs, and wait until no task runs, for at most 10 s.

    Spark reports the failure of one task while others still write.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - see `watched`

    if context is None:
        return
    deadline = time.monotonic() + _SECONDS_FOR_TASKS_TO_END
    # The JVM may have ended before.
    with suppress(Py4JError, OSError):
        while time.monotonic() < deadline:
            context.cancelAllJobs()
            # The scheduler knows it at once, Spark's status tracker up to 0.7 s later.
            num_running = context._jsc.sc().taskScheduler().rootPool().runningTasks()
            _end_python_workers()
            if not num_running:
                break
            time.sleep(_SECONDS_BETWEEN_CHECKS / 10)
        if not str(context.master).startswith("local"):
            # Spark ends Python processes on other hosts just after their tasks.
            time.sleep(_SECONDS_FOR_WORKERS_TO_END)


def _end_python_workers() -> None:
    """Kill the Python processes that run tasks on this host, and wait for their end.

    Spark itself would need two seconds to end them.
    """
    ended = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is None:
                continue
            # Workers are copies of the daemon; what they started, such as an agent, is not.
            daemon = "pyspark.daemon"
            if daemon in process.cmdline() and daemon in parent.cmdline():
                process.kill()
                ended.append(process)
    psutil.wait_procs(ended, timeout=_SECONDS_FOR_TASKS_TO_END)


def _cause(message: str) -> str:
    """Return the most useful line of the message of a Spark failure.

    In order of preference, it is a sentence about a lost executor, the exception of the task, the
    line about the abort of the job, and the first line. An exception that was raised from another
    one comes after it in the text and names the fix, so the last of such a chain is taken.
    """
    lost = _LOST_EXECUTOR.search(message)
    if lost:
        host, executor, reason = lost.groups()
        # A process that SIGKILL ended has the exit code 137.
        killed = " (killed, often for memory)" if re.search(r"\b137\b", reason) else ""
        return f"executor {executor} on {host} was lost: {reason.strip()}{killed}"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    exception = ""
    # The first exception is taken, and after each link of a chain the next one.
    is_next_wanted = True
    for line in lines:
        if is_next_wanted and re.match(r"[\w.]*(Error|Exception|Arrow\w+)\b: ", line):
            exception = line
            is_next_wanted = False
        if line.startswith("The above exception was the direct cause"):
            is_next_wanted = True
    if exception:
        return exception
    return next((line for line in lines if "SparkException" in line), lines[0])
