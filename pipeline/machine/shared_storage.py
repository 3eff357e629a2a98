"""Checks that the executors of a cluster see the files of the driver, before a job fails at the first one."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterable
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

    `folder` exists, or is on object storage, which executors only list; inputs that are URLs are passed over.
    """
    paths = {path.parent: path for path in (Path(each).absolute() for each in inputs if "://" not in each)}
    slots = max(spark.defaultParallelism, 2)

    def problems_of(look: Callable[[int], str]) -> list[str]:
        return sorted(set(spark.parallelize(range(slots), slots).map(look).collect()) - {""})

    if "://" in str(folder):
        if problems := problems_of(_looking(str(folder), paths.values())):
            raise MachineError(
                f"executors of {spark.master} do not reach what they need: {'; '.join(problems[:_MOST_NAMED])}. Give "
                f"them the packages of `.[s3]`, the credentials in their environment (spark.executorEnv.AWS_...) and "
                f"the network; inputs that are no URLs must be on storage that all hosts mount."
            )
        return
    with tempfile.TemporaryDirectory(prefix=".shared-", dir=folder.absolute()) as probe:
        # Executors may run as another user.
        Path(probe).chmod(0o777)
        Path(probe, "driver").touch()
        problems = problems_of(_looking(str(folder.absolute()), paths.values(), Path(probe, "driver")))
    if problems:
        raise MachineError(
            f"the executors of {spark.master} do not share the storage of the driver, {socket.gethostname()}: "
            f"{'; '.join(problems[:_MOST_NAMED])}{'; ...' if len(problems) > _MOST_NAMED else ''}. Put run_dir and the "
            f"inputs on storage that all hosts mount under the same path (NFS, Lustre, CephFS ...), writable by the "
            f"user of the executors."
        )


def _looking(folder: str, inputs: Iterable[Path], written: Path | None = None) -> Callable[[int], str]:
    """What a task does: it returns a problem, or nothing. A closure, since executors have no module of this package.

    `written` is None on object storage, whose library is the executor's own.
    """
    seconds, needed = _TASK_SECONDS, list(inputs)

    def look(number: int) -> str:
        time.sleep(seconds)
        host = socket.gethostname()
        try:
            if written is None:
                import fsspec  # noqa: PLC0415

                system, name = fsspec.core.url_to_fs(folder)
                system.ls(name, refresh=True)
            elif not written.exists():
                return f"{host} does not see {folder}"
            else:
                written.with_name(f"executor-{number}").touch()
        except Exception as error:  # noqa: BLE001 - the driver reports it
            does = "list" if written is None else "write into"
            return f"{host} cannot {does} {folder} ({type(error).__name__}: {error})"
        hidden = [str(path) for path in needed if not path.exists()]
        return f"{host} does not see {hidden[0]}" if hidden else ""

    return look
