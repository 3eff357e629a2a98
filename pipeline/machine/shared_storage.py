"""Checks that the executors of a cluster see the files of the driver, before a job fails at the first one."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
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

    Args:
        spark: The context of a cluster.
        folder: An existing folder for outputs, or one on object storage, where nothing is tried.
        inputs: Paths that tasks will read; URLs are passed over.

    Raises:
        MachineError: Executors do not see the folder or an input, or cannot write there; the message names the hosts.
    """
    paths = {path.parent: path for path in (Path(each).absolute() for each in inputs if "://" not in each)}
    slots = max(spark.defaultParallelism, 2)
    is_remote = "://" in str(folder)
    # The library of object storage says itself what it lacks; inputs may lie on disks.
    with nullcontext() if is_remote else tempfile.TemporaryDirectory(prefix=".shared-", dir=folder.absolute()) as probe:
        written = None
        if probe:
            # Executors may run as another user.
            Path(probe).chmod(0o777)
            written = Path(probe, "driver")
            written.touch()
        looks = spark.parallelize(range(slots), slots).map(_looking(written, list(paths.values())))
        problems = sorted(set(looks.collect()) - {""})
    if problems:
        raise MachineError(
            f"the executors of {spark.master} do not share the storage of the driver, {socket.gethostname()}: "
            f"{'; '.join(problems[:_MOST_NAMED])}{'; ...' if len(problems) > _MOST_NAMED else ''}. Put run_dir and the "
            f"inputs on storage that all hosts mount under the same path (NFS, Lustre, CephFS ...), writable by the "
            f"user of the executors."
        )


def _looking(written: Path | None, inputs: list[Path]) -> Callable[[int], str]:
    """What a task does: it returns a problem, or nothing. A closure, since executors have no module of this package.

    Args:
        written: File of the driver in the folder for outputs; None on object storage.
        inputs: Inputs that must be there.
    """
    seconds = _TASK_SECONDS

    def look(number: int) -> str:
        time.sleep(seconds)
        host = socket.gethostname()
        hidden = [str(path) for path in [*([written] if written else []), *inputs] if not path.exists()]
        if hidden:
            return f"{host} does not see {hidden[0]}"
        if written:
            try:
                written.with_name(f"executor-{number}").touch()
            except OSError as error:
                return f"{host} cannot write into {written.parent.parent} ({error})"
        return ""

    return look
