"""The Spark session: started when the first stage needs it, shared by the stages of a run, stopped at the end."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.config import SparkSettings
from pipeline.errors import MachineError
from pipeline.fingerprint import ROOT

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from pipeline.progress import Bar

_PACKAGES: Final = ("ingestion", "features")
_SECONDS_BETWEEN_LOOKS: Final = 0.5
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


class SparkProvider:
    """Starts Spark on first use.

    Args:
        settings: Where it runs.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._context: SparkContext | None = None

    def context(self) -> SparkContext:
        """The running context.

        Raises:
            MachineError: Spark does not start.
        """
        if self._context is None:
            self._context = _start(self._settings)
        return self._context

    def num_tasks(self, work_items: int) -> int:
        """Tasks for so many pieces of work: few, since a Spark task costs a third of a second; at most 8 pieces each.

        A retried task repeats all its pieces, hence the limit.
        """
        return max(1, min(work_items, max(2 * self.context().defaultParallelism, -(-work_items // 8))))

    def stop(self) -> None:
        """Stop Spark if it was started."""
        if self._context is not None:
            self._context.stop()
            self._context = None


@contextmanager
def counted(context: SparkContext, bar: Bar, total: int) -> Iterator[Accumulator[int]]:
    """A counter for Spark tasks whose value is shown on a progress bar while the job runs."""
    done = context.accumulator(0)
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_SECONDS_BETWEEN_LOOKS):
            bar(done.value, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield done
    finally:
        finished.set()
        watcher.join()


def _start(settings: SparkSettings) -> SparkContext:
    import pyspark  # noqa: PLC0415 - Spark is loaded only by stages that need it
    from pyspark.sql import SparkSession  # noqa: PLC0415

    is_local = settings.master.startswith("local")
    builder = (
        SparkSession.builder.master(settings.master)
        .appName("hep-pipeline")
        .config("spark.driver.memory", settings.driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}")
    )
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings.executor_python or sys.executable
    if settings.master.startswith("local"):
        # A Spark of another version in SPARK_HOME, or a host name that does not resolve, must not matter here.
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    try:
        context = builder.getOrCreate().sparkContext
    except Exception as cause:
        raise MachineError(
            f"Spark does not start on {settings.master} ({type(cause).__name__}: {str(cause).strip()[:500]}). "
            f"Run `python -m pipeline doctor`."
        ) from cause
    if not is_local or settings.master.startswith("local-cluster"):
        _ship_code(context)
    return context


def _ship_code(context: SparkContext) -> None:
    """Send the packages that tasks import to the executors, which need not have a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "hep_pipeline_code.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for package in _PACKAGES:
                for source in sorted((ROOT / package).rglob("*.py")):
                    file.write(source, source.relative_to(ROOT))
        context.addPyFile(str(archive))
