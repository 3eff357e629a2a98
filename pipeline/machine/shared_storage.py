"""Checks that the executors of a cluster see the files of the driver, before a job fails at the first one."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import MachineError

if TYPE_CHECKING:
    from pyspark import SparkContext

#: A task takes this long, so that tasks reach all executors [s].
_TASK_SECONDS: Final = 0.2
_MOST_NAMED: Final = 3


def refuse_unshared(spark: SparkContext, folder: Path, inputs: Iterable[str] = ()) -> None:
    """Write a file; executors look for it and for one input of each folder, and write beside it.

    A folder on object storage, and inputs that are URLs, are passed over.
    """
    needed = [*{path.parent: path for path in (Path(each).absolute() for each in inputs if "://" not in each)}.values()]
    slots = max(spark.defaultParallelism, 2)
    with ExitStack() as stack:
        probe = None
        if "://" not in str(folder):
            probe = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".shared-", dir=folder.absolute())))
            # Executors may run as another user.
            probe.chmod(0o777)
            needed.append(probe / "driver")
            needed[-1].touch()

        def look(number: int) -> str:
            """A problem, or nothing. A closure, since executors have no module of this package."""
            time.sleep(_TASK_SECONDS)
            host = socket.gethostname()
            if hidden := [str(path) for path in needed if not path.exists()]:
                return f"{host} does not see {hidden[0]}"
            try:
                if probe is not None:
                    (probe / f"executor-{number}").touch()
            except OSError as error:
                return f"{host} cannot write into {error.filename} ({error})"
            return ""

        problems = sorted(set(spark.parallelize(range(slots), slots).map(look).collect()) - {""})
    if problems:
        raise MachineError(
            f"the executors of {spark.master} do not share the storage of the driver, {socket.gethostname()}: "
            f"{'; '.join(problems[:_MOST_NAMED])}{'; ...' if len(problems) > _MOST_NAMED else ''}. Put run_dir and the "
            f"inputs on storage that all hosts mount under the same path (NFS, Lustre, CephFS ...), writable by the "
            f"user of the executors."
        )
