"""Starts the JVM and Spark in it, with the properties and variables of this pipeline."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from hep_core.environment import IGNORED_BY_LOCAL_SPARK, ignored_names
from hep_core.scarce_memory import prefer_to_kill
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import MachineError
from pipeline.machine.jvm_messages import stderr_for_jvm
from pipeline.machine.spark_allocation import executor_properties, jvm_options, with_allocation
from pipeline.machine.spark_cluster import cluster_error
from pipeline.machine.spark_jobs import MAX_CAUSE_LETTERS
from pipeline.runs.code_meaning import ROOT

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
#: Longest path of a folder with sockets: Linux allows 107 bytes, and names there take 43.
_MAX_FOLDER_LETTERS: Final = 64
#: Further options of the driver's JVM.
JVM_VARIABLE: Final = "HEP_PIPELINE_JVM_OPTIONS"


def start_spark(
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
    settings = with_allocation(settings)
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
            # This process reports a lack of memory, so another one has to end.
            prefer_to_kill(gateway.proc.pid)
            SparkContext._ensure_initialized(gateway=gateway)
        # The JVM also knows the properties that the site states.
        stated = dict(SparkConf(_jvm=SparkContext._jvm).getAll()) | dict(conf.getAll())
        conf.setAll(list(executor_properties(settings.master, stated).items()))
        # Not before: every user can read the command line of the JVM.
        return SparkContext.getOrCreate(conf.setAll(secrets))

    try:
        with _environment(_jvm_variables(settings, Path(pyspark.__file__).parent)):
            return _away_from_main_thread(start)
    except Exception as cause:
        stopped = cluster_error(settings.master, cause)
        if stopped is not None:
            raise stopped from cause
        reason = f"{type(cause).__name__}: {str(cause).strip()[:MAX_CAUSE_LETTERS]}"
        raise MachineError(
            f"Spark does not start on {settings.master} ({reason}). Run `python -m pipeline "
            f"doctor`."
        ) from cause


def end_java() -> None:
    """End the JVM after Spark has stopped; otherwise it lives as long as this process."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    # It ends when nothing can come any more.
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _properties(settings: SparkSettings, folder: str) -> dict[str, str]:
    """Return Spark's properties by name, without those that are secrets.

    Those of the config (`spark.conf`) come last, and replace ours.

    Args:
        settings: The section `spark` of the config.
        folder: A temporary folder for sockets.
    """
    java_options = [
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        *jvm_options(),
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
        "spark.driver.extraJavaOptions": " ".join(java_options),
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
