"""A Spark cluster before a job: does its master answer, are there executors, do all share the storage."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.configuration.spark_masters import standalone_addresses
from pipeline.errors import ConfigError, MachineError, UnreachableSparkError

if TYPE_CHECKING:
    from pyspark import SparkContext

_SECONDS_TO_CONNECT: Final = 5.0
_SECONDS_BETWEEN_LOOKS: Final = 0.5
#: So long a task of `refuse_unshared` takes, so that tasks reach all executors [s].
_SECONDS_TO_LOOK: Final = 0.2
#: What Spark says after the master has not taken the application, or has removed it.
_STOPPED: Final = re.compile(
    r"masters are unresponsive|stopped SparkContext|SparkContext was (shut down|stopped)"
)


def refuse_unreachable(master: str) -> None:
    """Refuse a standalone cluster none of whose masters answers; Spark would wait for minutes.

    Raises:
        ConfigError: No host has such a name.
        UnreachableSparkError: Nobody listens, or the host is silent.
    """
    problems: list[str] = []
    unknown: list[str] = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=_SECONDS_TO_CONNECT).close()
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                unknown.append(host)
            problems.append(f"{host}: {error.strerror}")
        except UnicodeError:
            # The name has an empty part, or one of more than 63 letters.
            unknown.append(host)
            problems.append(f"{host}: no name of a host")
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if problems and len(unknown) == len(problems):
        raise ConfigError(
            f"spark.master is {master}, but no host is called {', '.join(unknown)}. Correct the name."
        )
    if problems:
        raise UnreachableSparkError(
            f"no Spark master answers at {master} ({'; '.join(problems)}). Start it, or correct spark.master; "
            f"`spark.master: local[*]` uses this machine alone."
        )


def stopped_by_cluster(master: str, error: object) -> UnreachableSparkError | None:
    """The error for a Spark that its cluster has ended or never took; None for other errors."""
    if not standalone_addresses(master) or not _STOPPED.search(str(error)):
        return None
    return UnreachableSparkError(
        f"the Spark master at {master} does not take this application, or has ended it. Is this the port of the "
        f"master (7077; 8080 is its web page), has its Spark the version of this pyspark, do all executors die? Its "
        f"log and page say more."
    )


@contextmanager
def telling_of_executors(context: SparkContext, show: Callable[[str], None]) -> Iterator[None]:
    """While no executor has come, say so: without one, Spark keeps a job waiting for ever and says nothing."""
    job_is_over = threading.Event()

    def look() -> None:
        # The driver counts as one.
        while context._jsc.sc().getExecutorMemoryStatus().size() < 2:
            show(
                f"waiting for an executor of {context.master}: its workers may be down, busy with other applications, "
                f"or too small for spark.executor.memory and spark.executor.cores"
            )
            if job_is_over.wait(_SECONDS_BETWEEN_LOOKS):
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        job_is_over.set()


def refuse_unshared(spark: SparkContext, folder: Path, inputs: Iterable[str] = ()) -> None:
    """Write a file; executors look for it and for one input of each folder, and write beside it.

    A folder on object storage, and inputs that are URLs, are passed over.
    """
    needed = [
        *{
            path.parent: path
            for path in (Path(each).absolute() for each in inputs if "://" not in each)
        }.values()
    ]
    slots = max(spark.defaultParallelism, 2)
    with ExitStack() as stack:
        probe = None
        if "://" not in str(folder):
            probe = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=".shared-", dir=folder.absolute())
                )
            )
            # Executors may run as another user.
            probe.chmod(0o777)
            needed.append(probe / "driver")
            needed[-1].touch()

        def look(number: int) -> str:
            """A problem, or nothing. A closure, since executors have no module of this package."""
            time.sleep(_SECONDS_TO_LOOK)
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
            f"{'; '.join(problems[:3])}{'; ...' if len(problems) > 3 else ''}. Put run_dir and the "
            f"inputs on storage that all hosts mount under the same path (NFS, Lustre, CephFS ...), writable by the "
            f"user of the executors."
        )
