"""Hosts for ranks inside the executors of a Spark cluster, without ssh.

Tasks of a barrier job, which all run at the same time, hold one slot of the cluster for each
worker. On each host, one of them starts the programs that mpirun would start there by ssh: mpirun
calls the agent of `training.launching.spark_agent` instead of ssh, and the agent sends the command
to the task. The job ends when the driver closes its connections to the tasks.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext

from hep_core.authenticated_sockets import AuthenticatedListener
from training.errors import LaunchError
from training.launching import spark_agent

#: Time for all tasks to start [s].
_START_SECONDS: Final = 120.0
#: Time for executors to register: those of a new context, or those that replace lost ones [s].
_REGISTER_SECONDS: Final = 30.0
#: Time for a command to end after its agent or the driver is gone [s].
_GRACE_SECONDS: Final = 10.0
#: Time between two checks whether something has ended or come [s].
_LOOK_SECONDS: Final = 0.2
#: Time after which a start says what it waits for [s].
_SILENCE_SECONDS: Final = 10.0


@contextmanager
def spark_hosts(
    spark: SparkContext, workers: int, *, on_wait: Callable[[str], None] = lambda _: None
) -> Iterator[list[str]]:
    """Hold a slot of the cluster for each worker, within the context.

    A Spark job runs in a thread, and its tasks connect to this process. A folder gets a program
    that mpirun calls instead of ssh, with the addresses of the tasks. At the end, the connections
    close, by which the tasks end.

    Python and this code must lie at the same path on all hosts, and the run folder on storage that
    all share.

    `on_wait`: called with a sentence about the wait of a long start.

    Yields:
        Arguments of mpirun, which start the ranks in the slots.

    Raises:
        LaunchError: The cluster has fewer slots than workers, has a number of executors that
            changes, or does not start the tasks.
    """
    require_slots(spark, workers, on_wait)
    token = secrets.token_hex(32)
    bind_address, driver_name = driver_address(spark)
    failures: list[Exception] = []
    with ExitStack() as stack:
        listener = AuthenticatedListener(socket.create_server((bind_address, 0)), token.encode())
        stack.callback(listener.close)
        driver = (driver_name, listener.address[1])
        job = threading.Thread(
            target=_run_job, args=(spark, workers, driver, token, failures), daemon=True
        )
        job.start()
        stack.callback(job.join, _GRACE_SECONDS)
        hosts = _accept_all(listener, workers, failures, stack, on_wait)
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="hep-pipeline-hosts-"))
        )
        # mpirun gets made-up names of the hosts, which only our agent can resolve.
        aliases = {name: f"executors-{index}" for index, name in enumerate(sorted(hosts))}
        hosts_by_alias = {aliases[name]: {**host, "token": token} for name, host in hosts.items()}
        agent = _write_agent(folder, hosts_by_alias)
        slots = ",".join(f"{aliases[name]}:{host['slots']}" for name, host in hosts.items())
        # A daemon of mpirun that leaves its session would outlive the task, so it stays attached.
        # Without tree spawn, mpirun itself calls the agent for all hosts.
        yield [
            "--leave-session-attached",
            *("--prtemca", "plm_ssh_agent", str(agent)),
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *("--host", slots),
        ]


def _write_agent(folder: Path, hosts: dict[str, dict[str, Any]]) -> Path:
    """Write the program that mpirun calls instead of ssh, and return its path.

    `hosts`: address, port and token of each host, by the name that mpirun has for it.
    """
    hosts_file = folder / "hosts.json"
    hosts_file.write_text(json.dumps(hosts), encoding="utf-8")
    command = shlex.join([sys.executable, "-I", spark_agent.__file__, str(hosts_file)])
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    agent.chmod(0o700)
    return agent


def driver_address(spark: SparkContext) -> tuple[str, str]:
    """Return the address at which the driver listens, and its name for the executors."""
    conf = spark.getConf()
    name = conf.get("spark.driver.host") or socket.gethostname()
    return conf.get("spark.driver.bindAddress") or name, name


def require_slots(
    spark: SparkContext, workers: int, on_wait: Callable[[str], None] = lambda _: None
) -> None:
    """Wait until the cluster has a slot for each worker.

    `on_wait`: called with a sentence if executors take more than 10 s to come.

    Raises:
        LaunchError: The slots do not come within 30 s, or the number of executors is not fixed.
    """
    if spark.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise LaunchError(
            "Workers in executors need a fixed number of executors, but "
            "spark.dynamicAllocation.enabled is true. Set it to false in spark.conf, or use the "
            "launcher mpirun or srun."
        )
    is_local = str(spark.master).startswith("local[")
    deadline = time.monotonic() + (0.0 if is_local else _REGISTER_SECONDS)
    report_at = time.monotonic() + _SILENCE_SECONDS
    context = spark._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    # Spark's JVM knows how many tasks the present executors can run together. PySpark's
    # `defaultParallelism` is no such number, since it is never below 2.
    while (slots := context.maxNumConcurrentTasks(profile)) < workers:
        if time.monotonic() >= deadline:
            raise LaunchError(
                f"train.workers is {workers}, but the Spark cluster {spark.master} has {slots} "
                f"slots, and all workers start together. Use at most {slots} workers, or more "
                f"executors."
            )
        if time.monotonic() >= report_at:
            on_wait(
                f"waiting for executors: {spark.master} has {slots} slots of the {workers} for the "
                f"workers"
            )
            report_at = math.inf
        time.sleep(_LOOK_SECONDS)


def _run_job(
    spark: SparkContext,
    workers: int,
    driver: tuple[str, int],
    token: str,
    failures: list[Exception],
) -> None:
    """Run the job whose tasks hold the slots, until they end; an error goes into `failures`."""

    def hold(_: Iterable[int]) -> Iterable[int]:
        _hold_slot(driver, token)
        return ()

    try:
        spark.parallelize(range(workers), workers).barrier().mapPartitions(hold).collect()
    except Exception as error:  # noqa: BLE001 - the thread that waits for the tasks raises it
        failures.append(error)


def _accept_all(
    listener: AuthenticatedListener,
    workers: int,
    failures: list[Exception],
    stack: ExitStack,
    on_wait: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Wait for the connections of all tasks, which close with the stack.

    Returns:
        Name, address, port and number of slots of each host, by its name. Address and port are
        those of the first task of the host, which will run the commands.

    Raises:
        LaunchError: The job failed, as `failures` says, or the tasks did not come in time.
    """
    deadline = time.monotonic() + _START_SECONDS
    report_at = time.monotonic() + _SILENCE_SECONDS
    hosts: dict[str, dict[str, Any]] = {}
    slots: Counter[str] = Counter()
    while slots.total() < workers:
        if failures:
            raise LaunchError(
                f"the Spark job that holds the slots failed: {failures[0]}"[:1000]
            ) from failures[0]
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{slots.total()} of {workers} tasks started within {_START_SECONDS:.0f} s. Other "
                f"jobs may hold the slots of the cluster, or its hosts cannot reach the driver: "
                f"check spark.driver.host."
            )
        if time.monotonic() >= report_at:
            on_wait(
                f"waiting for executors: {slots.total()} of {workers} slots are held; other jobs "
                f"may hold the others"
            )
            report_at = math.inf
        for connection in listener.accept(_LOOK_SECONDS):
            stack.enter_context(connection)
            connection.settimeout(_GRACE_SECONDS)
            greeting = spark_agent.read_line(connection)
            if greeting is None:
                continue
            name = greeting["name"]
            slots[name] += 1
            # The first task of a host serves it.
            if name not in hosts:
                address = connection.getpeername()[0]
                hosts[name] = {"name": name, "address": address, "port": greeting["port"]}
    return {name: {**host, "slots": slots[name]} for name, host in hosts.items()}


def _hold_slot(driver: tuple[str, int], token: str) -> None:
    """Hold the slot of this task until the driver closes the connection; run arriving commands.

    The task tells the driver where it listens for commands. `driver`: host and port. `token`: the
    secret that each connection begins with.
    """
    with socket.create_connection(driver, _GRACE_SECONDS) as to_driver:
        # mpirun's agent comes from the driver's host, so it reaches this address.
        own_address = to_driver.getsockname()[0]
        listener = AuthenticatedListener(socket.create_server((own_address, 0)), token.encode())
        spark_agent.keep_alive(to_driver)
        to_driver.sendall(token.encode())
        greeting = {"name": socket.gethostname(), "port": listener.address[1]}
        spark_agent.write_line(to_driver, greeting)
        while True:
            ready, _, _ = select.select([to_driver, *listener.sockets], [], [], _GRACE_SECONDS)
            if to_driver in ready:
                listener.close()
                return
            for agent in listener.accept_from(ready):
                with agent:
                    _serve(agent, to_driver)


def _serve(agent: socket.socket, to_driver: socket.socket) -> None:
    """Run the command of an agent, as ssh does, and stop it when the agent or the driver is gone.

    The agent gets the output while the command runs, and at the end its exit status.
    """
    agent.settimeout(_GRACE_SECONDS)
    request = spark_agent.read_line(agent)
    if request is None:
        return
    # There is no limit for sending output, since an agent may take its time to read.
    agent.settimeout(None)
    command = ["/bin/sh", "-c", request["command"]]
    # The command never holds the connection itself, but a pipe. Otherwise the connection would stay
    # open after the death of this process, and mpirun would not learn that the slot is lost.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        if process.stdout is None:
            raise AssertionError("a process without an output pipe")
        sender = threading.Thread(
            target=_send_all, args=(process.stdout.fileno(), agent), daemon=True
        )
        sender.start()
        while process.poll() is None:
            # Neither sends more, so a connection that can be read has ended.
            if select.select([agent, to_driver], [], [], _LOOK_SECONDS)[0]:
                _stop(process)
        sender.join(_GRACE_SECONDS)
    agent.settimeout(_GRACE_SECONDS)
    spark_agent.write_status(agent, process.returncode)


def _send_all(output: int, agent: socket.socket) -> None:
    """Send all output of a command to an agent; `output` is the descriptor of its pipe."""
    with suppress(OSError):
        while received := os.read(output, 1 << 16):
            agent.sendall(received)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes of its group; kill it after 10 s."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
