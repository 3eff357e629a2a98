"""The Spark session: it starts when the first stage needs it, and the stages of a run share it."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from pydantic import SecretStr

from hep_core import plugins
from hep_core.environment import IGNORED_BY_LOCAL_SPARK, ignored_names
from hep_core.integrity import DamagedOutputError
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import MachineError, SparkJobError
from pipeline.machine.jvm_messages import stderr_for_jvm
from pipeline.machine.spark_cluster import (
    announce_missing_executors,
    check_reachable,
    check_shared_storage,
    cluster_error,
)
from pipeline.runs.code_meaning import PACKAGES, ROOT

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from pipeline.terminal.progress import Bar

_SECONDS_BETWEEN_CHECKS: Final = 0.5
#: Spark kills a Python worker that does not end within two seconds.
_SECONDS_FOR_TASKS_TO_END: Final = 10.0
_SECONDS_FOR_WORKERS_TO_END: Final = 0.5
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
#: Longest path of a folder with sockets: Linux allows 107 bytes, and names there take 43.
_MAX_FOLDER_LETTERS: Final = 64
#: Letters of a cause that a message shows.
_MAX_CAUSE_LETTERS: Final = 500
#: Pieces of work that a task does at most.
_MAX_ITEMS_A_TASK: Final = 8
#: Further options of the driver's JVM.
JVM_VARIABLE: Final = "HEP_PIPELINE_JVM_OPTIONS"
_LOST_EXECUTOR: Final = re.compile(
    r"\((\S+) executor (\S+)\): ExecutorLostFailure \(.*?\) Reason: (.*)"
)
_ADVICE: Final = (
    "Check space and permissions of the run folder and of spark.local.dir; that all executors see "
    "run folder and input files under the paths of the driver; and their memory and logs. --debug "
    "shows all messages of Spark."
)


class SparkProvider:
    """Starts Spark on first use, hands out the running one afterwards, and stops it at the end."""

    def __init__(
        self, settings: SparkSettings, on_jvm_noise: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_jvm_noise`: called with warnings of the JVM about its own options."""
        self._settings = settings
        self._on_jvm_noise = on_jvm_noise
        self._context: SparkContext | None = None
        """The running Spark; None before the first use and after `stop`."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """Temporary folder for sockets, and for the archive of our code for executors."""
        self._has_code = False
        """Whether the executors of a cluster have got our code."""

    @property
    def is_cluster(self) -> bool:
        """Whether executors are processes of their own, perhaps on other hosts."""
        master = self._settings.master
        return master.startswith("local-cluster") or not master.startswith("local")

    def context(
        self,
        *,
        folder: Path | None = None,
        inputs: Iterable[str] = (),
        show: Callable[[str], None] = lambda _: None,
    ) -> SparkContext:
        """Return the running Spark, which is started if necessary.

        On a cluster, executors get our code first, and are refused if they do not share storage.

        Args:
            folder: A folder that executors must read and write.
            inputs: Paths that executors must read.
            show: Called with what the start waits for.

        Raises:
            MachineError: Spark does not start, or executors do not see a file.
            UnreachableSparkError: The cluster does not answer.
        """
        if self._context is None:
            check_reachable(self._settings.master)
            # It lives as long as the context: executors fetch the code from here at their start.
            self._folder = tempfile.TemporaryDirectory(prefix="hep-pipeline-")
            self._context = _start(self._settings, self._folder.name, self._on_jvm_noise)
        with failures_of_spark(self._settings.master):
            self._prepare(self._context, folder, inputs, show)
        return self._context

    def _prepare(
        self,
        context: SparkContext,
        folder: Path | None,
        inputs: Iterable[str],
        show: Callable[[str], None],
    ) -> None:
        """Give plugins and, on a cluster, our code to the executors, and check their storage.

        The arguments are those of `context`, after the running Spark.
        """
        # Python workers read this variable, and import the plugins themselves.
        context.environment[plugins.VARIABLE] = os.pathsep.join(plugins.loaded())
        if not self.is_cluster:
            return
        if not self._has_code and self._folder is not None:
            files = [str(zip_code(Path(self._folder.name)))]
            files += filter(os.path.isfile, plugins.loaded())
            for file in files:
                context.addPyFile(file)
            self._has_code = True
        if folder is not None:
            with announce_missing_executors(context, show):
                check_shared_storage(context, folder, inputs)

    def num_tasks(self, work_items: int) -> int:
        """Return the number of Spark tasks for a number of pieces of work.

        It is two tasks per slot, since each costs a third of a second. It is more if a task would
        get over 8 pieces, since a retry repeats all of them, and never more than the pieces.
        """
        tasks_of_slots = 2 * self.context().defaultParallelism
        min_tasks = math.ceil(work_items / _MAX_ITEMS_A_TASK)
        num_tasks = min(work_items, max(tasks_of_slots, min_tasks))
        return max(1, num_tasks)

    def stop(self) -> None:
        """Stop Spark if it was started, after the end of its tasks; remove its temporary folder.

        A later call of `context` starts Spark anew.
        """
        if self._context is not None:
            _end_tasks(self._context)
            self._context.stop()
            self._context, self._has_code = None, False
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


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
        _end_tasks(context)
        raise
    finally:
        job_is_over.set()
        watcher.join()


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
        return SparkJobError(f"a Spark job failed: {cause[:_MAX_CAUSE_LETTERS]}. {_ADVICE}")
    # The path of a damaged file is needed whole, so only other messages are cut.
    damage = DamagedOutputError.from_message(own_error[1])
    return damage or SparkJobError(own_error[1][:_MAX_CAUSE_LETTERS])


def _end_tasks(context: SparkContext | None) -> None:
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


def _start(
    settings: SparkSettings, folder: str, on_jvm_noise: Callable[[str], None]
) -> SparkContext:
    """Start the JVM and Spark in it.

    Args:
        settings: The section `spark` of the config.
        folder: A temporary folder for sockets.
        on_jvm_noise: Called with warnings of the JVM about its own options.

    Raises:
        UnreachableSparkError: The cluster does not take the application.
        MachineError: Spark does not start for another reason.
    """
    import pyspark  # noqa: PLC0415 - Spark is loaded only by stages that need it
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    # PySpark prints this at every start with pandas 3; our jobs use no pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    conf = SparkConf().setMaster(settings.master).setAppName("hep-pipeline")
    conf.setAll(list(_properties(settings, folder).items()))
    secrets = [
        (key, value.get_secret_value())
        for key, value in settings.conf.items()
        if isinstance(value, SecretStr)
    ]

    def start() -> SparkContext:
        """Start the JVM unless there is one, and then Spark with its secret settings."""
        if SparkContext._gateway is None:
            # Otherwise PySpark reuses the JVM of an earlier context.
            with stderr_for_jvm(on_jvm_noise) as stderr:
                gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
        # Not before: every user can read the command line of the JVM.
        return SparkContext.getOrCreate(conf.setAll(secrets))

    try:
        with _environment(_jvm_variables(settings, Path(pyspark.__file__).parent)):
            return _away_from_main_thread(start)
    except Exception as cause:
        stopped = cluster_error(settings.master, cause)
        if stopped is not None:
            raise stopped from cause
        reason = f"{type(cause).__name__}: {str(cause).strip()[:_MAX_CAUSE_LETTERS]}"
        raise MachineError(
            f"Spark does not start on {settings.master} ({reason}). Run `python -m pipeline "
            f"doctor`."
        ) from cause


def _properties(settings: SparkSettings, folder: str) -> dict[str, str]:
    """Return Spark's properties by name, without those that are secrets.

    Those of the config (`spark.conf`) come last, and replace ours.

    Args:
        settings: The section `spark` of the config.
        folder: A temporary folder for sockets.
    """
    jvm_options = [
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        os.environ.get(JVM_VARIABLE, ""),
    ]
    properties = {
        "spark.driver.memory": settings.driver_memory,
        # The driver receives the keys of all events; only its memory is the limit.
        "spark.driver.maxResultSize": "0",
        # Floats hardly compress, and compression costs the JVM as much as the transfer.
        "spark.shuffle.compress": "false",
        # Tasks that wait for each other longer than this fail; Spark's default is a year.
        "spark.barrier.sync.timeout": "300",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(jvm_options),
    }
    if settings.master.startswith("local"):
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Readers of hdfs:// in the Python workers need what the JVM must not have.
        for name in ignored_names({"Hadoop": IGNORED_BY_LOCAL_SPARK["Hadoop"]}, os.environ):
            properties[f"spark.executorEnv.{name}"] = os.environ[name]
    if settings.master.startswith("local["):
        # Other users of this machine reach its ports too.
        properties["spark.authenticate"] = "true"
        if len(folder) < _MAX_FOLDER_LETTERS:
            # A stranger at the port of PySpark's accumulators who is silent stops all jobs for
            # ever.
            sockets = "spark.python.unix.domain.socket"
            properties |= {f"{sockets}.enabled": "true", f"{sockets}.dir": folder}
    for key, value in settings.conf.items():
        if not isinstance(value, SecretStr):
            properties[key] = value
    return properties


def _jvm_variables(settings: SparkSettings, spark_home: Path) -> dict[str, str | None]:
    """Return the environment variables that differ between the JVM and this process, by name.

    The JVM runs the Spark of our pyspark, on this machine without the settings of a site (a
    computing centre), on a cluster with them.

    Args:
        settings: The section `spark` of the config.
        spark_home: The folder of the pyspark package.

    Returns:
        Values by name; None means that the variable is removed.
    """
    changes: dict[str, str | None] = {}
    if settings.master.startswith("local"):
        changes |= dict.fromkeys(ignored_names(IGNORED_BY_LOCAL_SPARK, os.environ))
    changes |= {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": settings.executor_python or sys.executable,
        "SPARK_HOME": str(spark_home),
    }
    site_home = os.environ.get("SPARK_HOME")
    if settings.master.startswith("local"):
        # A host name may have no address. Without SPARK_CONF_DIR, Spark's folder is that of
        # pyspark, which has none.
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        changes["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    elif site_home:
        # Since SPARK_HOME changes, the site's settings need a path of their own.
        default_folder = str(Path(site_home, "conf"))
        changes["SPARK_CONF_DIR"] = os.environ.get("SPARK_CONF_DIR", default_folder)
    return changes


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change environment variables of this process during a block; None removes one.

    Afterwards they have their old values, so that a later Spark with other settings, such as one
    on a cluster, does not inherit them.
    """
    original = {name: os.environ.get(name) for name in changes}
    _set_variables(changes)
    try:
        yield
    finally:
        _set_variables(original)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    """Set environment variables of this process; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _away_from_main_thread(start: Callable[[], SparkContext]) -> SparkContext:
    """Call a function that starts Spark in another thread, and return its result.

    In the main thread, PySpark would replace our handler of Ctrl-C, and a Ctrl-C would hang.
    """
    context: Future[SparkContext] = Future()

    def run() -> None:
        """Hand the result or the exception of `start` to the main thread."""
        try:
            context.set_result(start())
        except Exception as error:  # noqa: BLE001 - it is raised again in the main thread
            context.set_exception(error)

    # A daemon, so that an interrupt does not wait for the start of Spark.
    threading.Thread(target=run, daemon=True).start()
    return context.result()


def zip_code(folder: Path) -> Path:
    """Write the Python files of our packages into a ZIP archive in a folder; return its path.

    Executors import the code from it, so they need no checkout.
    """
    archive = folder / "hep_pipeline_code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for package in PACKAGES:
            for source in sorted((ROOT / package).rglob("*.py")):
                file.write(source, source.relative_to(ROOT))
    return archive
