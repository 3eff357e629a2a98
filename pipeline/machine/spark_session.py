"""The Spark session: it starts when the first stage needs it, and the stages of a run share it."""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hep_core import plugins
from hep_core.scarce_memory import is_memory_scarce
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_cluster import (
    announce_missing_executors,
    check_reachable,
    check_shared_storage,
)
from pipeline.machine.spark_jobs import end_tasks, failures_of_spark
from pipeline.machine.spark_start import end_java, start_spark
from pipeline.runs.code_meaning import PACKAGES, ROOT

if TYPE_CHECKING:
    from pyspark import SparkContext

#: Pieces of work that a task does at most.
_MAX_ITEMS_A_TASK: Final = 8


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
            self._context = start_spark(self._settings, self._folder.name, self._on_jvm_noise)
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
        context.environment[plugins.VARIABLE] = plugins.value_of_variable()
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

    def release(self) -> None:
        """Stop Spark where memory is scarce: the rest of a stage does not need it."""
        if is_memory_scarce():
            self.stop()

    def stop(self) -> None:
        """Stop Spark if it was started, after the end of its tasks; remove its temporary folder.

        A later call of `context` starts Spark anew.
        """
        if self._context is not None:
            end_tasks(self._context)
            self._context.stop()
            self._context, self._has_code = None, False
            if is_memory_scarce():
                end_java()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


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
