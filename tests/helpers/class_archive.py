"""Writes an archive of the classes that Spark loads, which saves a third of the start of a JVM.

`make test` calls it once for each environment; tests use it where it is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from command_line import BRIEF_JVM
from pyspark import SparkContext

from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import PipelineError
from pipeline.machine.spark_session import SparkProvider
from pipeline.machine.spark_start import JVM_VARIABLE


def write_archive(path: Path) -> None:
    """Start Spark as the tests do, run a job, and let the JVM write its classes at its end."""
    begun = path.with_suffix(".tmp")
    os.environ[JVM_VARIABLE] = (
        f"{BRIEF_JVM} -XX:ArchiveClassesAtExit={begun} -Xlog:cds=off -Xlog:cds+dynamic=off"
    )
    provider = SparkProvider(SparkSettings(master="local[2]"))
    context = provider.context()
    context.parallelize(range(4), 2).map(lambda index: (index, index)).treeReduce(max)
    assert SparkContext._gateway is not None
    jvm = SparkContext._gateway.proc
    provider.stop()
    jvm.stdin.close()
    jvm.wait()
    begun.rename(path)


if __name__ == "__main__":
    try:
        write_archive(Path(sys.argv[1]))
    except PipelineError as error:
        # A JVM cannot always map its own archive to where it has to lie in memory.
        sys.stderr.write(f"No archive of the classes of Spark ({error}): its tests start slower.\n")
