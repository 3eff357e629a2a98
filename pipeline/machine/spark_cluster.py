"""Checks of a Spark cluster before a job: of its master, its executors, and the shared storage."""

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
#: Problems of executors that a message names.
_MAX_PROBLEMS: Final = 3
_SECONDS_BETWEEN_CHECKS: Final = 0.5
#: Duration of a task of `check_shared_storage`, so that tasks reach all executors.
_SECONDS_A_TASK: Final = 0.2
#: Messages of Spark after the master has not taken the application, or has removed it.
_STOPPED: Final = re.compile(
    r"masters are unresponsive|stopped SparkContext|SparkContext was (shut down|stopped)"
)


def check_reachable(master: str) -> None:
    """Refuse a standalone cluster none of whose masters answers; Spark would wait for minutes.

    It opens a TCP connection to each master in turn, and returns after the first that answers.
    Other kinds of masters, such as `local[auto]`, have no address and pass.

    Raises:
        ConfigError: No host has such a name.
        UnreachableSparkError: Nobody listens, or the host is silent.
    """
    problems: list[str] = []
    unknown_hosts: list[str] = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=_SECONDS_TO_CONNECT).close()
        except socket.gaierror as error:
            # EAI_AGAIN is a failure of the name server, which says nothing about the name.
            if error.errno != socket.EAI_AGAIN:
                unknown_hosts.append(host)
            problems.append(f"{host}: {error.strerror}")
        except UnicodeError:
            # The name has an empty part, or one of more than 63 letters.
            unknown_hosts.append(host)
            problems.append(f"{host}: no name of a host")
        except OSError as error:
            problems.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    if problems and len(unknown_hosts) == len(problems):
        hosts = ", ".join(unknown_hosts)
        raise ConfigError(
            f"spark.master is {master}, but no host is called {hosts}. Correct the name."
        )
    if problems:
        raise UnreachableSparkError(
            f"no Spark master answers at {master} ({'; '.join(problems)}). Start it, or correct "
            f"spark.master; `spark.master: local[auto]` uses this machine alone."
        )


def cluster_error(master: str, error: object) -> UnreachableSparkError | None:
    """Return the error for an application that its cluster has ended or never took.

    Args:
        master: The URL of the master.
        error: What Spark raised. Its text shows whether the master is the cause.

    Returns:
        None for other errors, and for a Spark without a standalone cluster.
    """
    if not standalone_addresses(master) or not _STOPPED.search(str(error)):
        return None
    return UnreachableSparkError(
        f"the Spark master at {master} does not take this application, or has ended it. Is this "
        f"the port of the master (7077; 8080 is its web page), has its Spark the version of this "
        f"pyspark, do all executors die? Its log and page say more."
    )


@contextmanager
def announce_missing_executors(
    context: SparkContext, show: Callable[[str], None]
) -> Iterator[None]:
    """Call `show` during a block, twice a second, as long as no executor has come.

    An executor is a process of the cluster that runs tasks. Without one, Spark waits for ever and
    prints nothing.
    """
    job_is_over = threading.Event()

    def watch() -> None:
        """Show the message until an executor has come or the block ends."""
        # The driver counts as an executor.
        while context._jsc.sc().getExecutorMemoryStatus().size() < 2:
            show(
                f"waiting for an executor of {context.master}: its workers may be down, busy with "
                f"other applications, or too small for spark.executor.memory and "
                f"spark.executor.cores"
            )
            if job_is_over.wait(_SECONDS_BETWEEN_CHECKS):
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        job_is_over.set()


def check_shared_storage(spark: SparkContext, folder: Path, inputs: Iterable[str] = ()) -> None:
    """Refuse executors that do not share the storage of the driver (this process).

    The driver makes a temporary folder with one file in `folder`. A Spark job of one short task
    per slot then checks on the executors that this file and one input of each folder exist, and
    that they can write beside the file. Folders and inputs that are URLs are passed over.

    Args:
        spark: The running Spark.
        folder: The folder that executors must read and write.
        inputs: Paths that executors must read.

    Raises:
        MachineError: An executor does not see a file, or cannot write.
    """
    with ExitStack() as stack:
        needed = _example_files([Path(path).absolute() for path in inputs if "://" not in path])
        probe = None
        if "://" not in str(folder):
            probe_dir = tempfile.TemporaryDirectory(prefix=".shared-", dir=folder.absolute())
            probe = Path(stack.enter_context(probe_dir))
            # Executors may run as another user.
            probe.chmod(0o777)
            (probe / "driver").touch()
            needed.append(probe / "driver")

        def problem_on_executor(task: int) -> str:
            """Return a sentence about a problem; empty if there is none.

            It runs on an executor, which has no module of ours, so it is a closure.
            """
            time.sleep(_SECONDS_A_TASK)
            host = socket.gethostname()
            hidden = [str(path) for path in needed if not path.exists()]
            if hidden:
                return f"{host} does not see {hidden[0]}"
            try:
                if probe is not None:
                    (probe / f"executor-{task}").touch()
            except OSError as error:
                return f"{host} cannot write into {error.filename} ({error})"
            return ""

        slots = max(spark.defaultParallelism, 2)
        answers = spark.parallelize(range(slots), slots).map(problem_on_executor).collect()
    problems = sorted(set(answers) - {""})
    if problems:
        examples = "; ".join(problems[:_MAX_PROBLEMS])
        if len(problems) > _MAX_PROBLEMS:
            examples += "; ..."
        raise MachineError(
            f"the executors of {spark.master} do not share the storage of the driver, "
            f"{socket.gethostname()}: {examples}. Put run_dir and the inputs on storage that all "
            f"hosts mount under the same path (NFS, Lustre, CephFS ...), writable by the user of "
            f"the executors."
        )


def _example_files(paths: Iterable[Path]) -> list[Path]:
    """Return one of the paths in each folder that holds any."""
    file_of_folder = {path.parent: path for path in paths}
    return list(file_of_folder.values())
