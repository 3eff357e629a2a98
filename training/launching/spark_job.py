"""Hosts for ranks inside the executors of a Spark cluster, without ssh.

Tasks of a barrier job hold one slot for each worker. On each host, one of them starts what mpirun would start there by
ssh: mpirun calls the agent of `training.launching.spark_agent` instead of ssh, and the agent sends the command to the
task. The job ends when the driver closes its connections to the tasks.
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
_LOOK_SECONDS: Final = 0.2
#: Time after which a start says what it waits for [s].
_SILENCE_SECONDS: Final = 10.0


@contextmanager
def spark_hosts(
    spark: SparkContext, workers: int, *, on_wait: Callable[[str], None] = lambda _: None
) -> Iterator[list[str]]:
    """Hold a slot of the cluster for each worker.

    Python and this code must lie at the same path on all hosts, and the run folder on storage that all share.

    `on_wait`: called with what a long start waits for.

    Yields:
        Arguments of mpirun, which start the ranks in the slots.

    Raises:
        LaunchError: The cluster has fewer slots than workers, grows and shrinks, or does not start the tasks.
    """
    refuse_impossible(spark, workers, on_wait)
    token = secrets.token_hex(32)
    bind, name = driver_address(spark)
    failures: list[Exception] = []
    with ExitStack() as stack:
        door = AuthenticatedListener(socket.create_server((bind, 0)), token.encode())
        stack.callback(door.close)
        driver = (name, door.address[1])
        job = threading.Thread(
            target=_run_job, args=(spark, workers, driver, token, failures), daemon=True
        )
        job.start()
        stack.callback(job.join, _GRACE_SECONDS)
        hosts = _accept_all(door, workers, failures, stack, on_wait)
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="hep-pipeline-hosts-"))
        )
        names = {name: f"executors-{place}" for place, name in enumerate(sorted(hosts))}
        table = {names[name]: {**host, "token": token} for name, host in hosts.items()}
        (folder / "hosts.json").write_text(json.dumps(table), encoding="utf-8")
        slots = ",".join(f"{names[name]}:{host['slots']}" for name, host in hosts.items())
        # The program that mpirun calls instead of ssh.
        agent = folder / "agent"
        words = (sys.executable, "-I", spark_agent.__file__, str(folder / "hosts.json"))
        agent.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        agent.chmod(0o700)
        # A daemon that leaves its session would outlive the task.
        yield [
            "--leave-session-attached",
            *("--prtemca", "plm_ssh_agent", str(agent)),
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *("--host", slots),
        ]


def driver_address(spark: SparkContext) -> tuple[str, str]:
    """Where the driver listens, and its name for the executors."""
    conf = spark.getConf()
    name = conf.get("spark.driver.host") or socket.gethostname()
    return conf.get("spark.driver.bindAddress") or name, name


def refuse_impossible(
    spark: SparkContext, workers: int, on_wait: Callable[[str], None] = lambda _: None
) -> None:
    """Refuse clusters without a fixed slot for each worker; `on_wait` is called if executors have to come first."""
    if spark.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise LaunchError(
            "Workers in executors need a fixed number of executors, but spark.dynamicAllocation.enabled is true. "
            "Set it to false in spark.conf, or use the launcher mpirun or srun."
        )
    is_local = str(spark.master).startswith("local[")
    deadline = time.monotonic() + (0.0 if is_local else _REGISTER_SECONDS)
    told_at = time.monotonic() + _SILENCE_SECONDS
    context = spark._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    # Tasks that the executors of this moment can run together; `defaultParallelism` is never below 2.
    while (slots := context.maxNumConcurrentTasks(profile)) < workers:
        if time.monotonic() >= deadline:
            raise LaunchError(
                f"train.workers is {workers}, but the Spark cluster {spark.master} has {slots} slots, and all workers "
                f"start together. Use at most {slots} workers, or more executors."
            )
        if time.monotonic() >= told_at:
            on_wait(
                f"waiting for executors: {spark.master} has {slots} slots of the {workers} for the workers"
            )
            told_at = math.inf
        time.sleep(_LOOK_SECONDS)


def _run_job(
    spark: SparkContext,
    workers: int,
    driver: tuple[str, int],
    token: str,
    failures: list[Exception],
) -> None:
    def hold(_: Iterable[int]) -> Iterable[int]:
        _hold_slot(driver, token)
        return ()

    try:
        spark.parallelize(range(workers), workers).barrier().mapPartitions(hold).collect()
    except Exception as error:  # noqa: BLE001 - the thread that waits for the tasks raises it
        failures.append(error)


def _accept_all(
    door: AuthenticatedListener,
    workers: int,
    failures: list[Exception],
    stack: ExitStack,
    on_wait: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Wait for all tasks; returns address, port and slots of each host. Their connections close with the stack."""
    deadline = time.monotonic() + _START_SECONDS
    told_at = time.monotonic() + _SILENCE_SECONDS
    hosts: dict[str, dict[str, Any]] = {}
    slots: Counter[str] = Counter()
    while slots.total() < workers:
        if failures:
            raise LaunchError(
                f"the Spark job that holds the slots failed: {failures[0]}"[:1000]
            ) from failures[0]
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{slots.total()} of {workers} tasks started within {_START_SECONDS:.0f} s. Other jobs may hold the "
                f"slots of the cluster, or its hosts cannot reach the driver: check spark.driver.host."
            )
        if time.monotonic() >= told_at:
            on_wait(
                f"waiting for executors: {slots.total()} of {workers} slots are held; other jobs may hold the others"
            )
            told_at = math.inf
        for connection in door.accept(_LOOK_SECONDS):
            stack.enter_context(connection)
            connection.settimeout(_GRACE_SECONDS)
            told = spark_agent.read_line(connection)
            if told is None:
                continue
            slots[told["name"]] += 1
            # One task of a host serves it.
            address = connection.getpeername()[0]
            hosts.setdefault(
                told["name"], {"name": told["name"], "address": address, "port": told["port"]}
            )
    return {name: {**host, "slots": slots[name]} for name, host in hosts.items()}


def _hold_slot(driver: tuple[str, int], token: str) -> None:
    """Hold the slot of this task until the driver closes the connection, and run the commands that arrive."""
    with socket.create_connection(driver, _GRACE_SECONDS) as to_driver:
        # mpirun's agent comes from the driver's host.
        door = AuthenticatedListener(
            socket.create_server((to_driver.getsockname()[0], 0)), token.encode()
        )
        spark_agent.keep_alive(to_driver)
        to_driver.sendall(token.encode())
        spark_agent.write_line(to_driver, {"name": socket.gethostname(), "port": door.address[1]})
        while True:
            ready, _, _ = select.select([to_driver, *door.sockets], [], [], _GRACE_SECONDS)
            if to_driver in ready:
                door.close()
                return
            for agent in door.accept_from(ready):
                with agent:
                    _serve(agent, to_driver)


def _serve(agent: socket.socket, to_driver: socket.socket) -> None:
    """Run the command of an agent, as ssh does, and stop it when the agent or the driver is gone."""
    agent.settimeout(_GRACE_SECONDS)
    asked = spark_agent.read_line(agent)
    if asked is None:
        return
    # An agent may take its time to read.
    agent.settimeout(None)
    command = ["/bin/sh", "-c", asked["command"]]
    # The command never holds the connection itself: it would stay open after the death of this process, an executor's,
    # and mpirun would not learn that the slot is lost.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        if process.stdout is None:
            raise AssertionError("a process without an output pipe")
        shown = threading.Thread(
            target=_send_all, args=(process.stdout.fileno(), agent), daemon=True
        )
        shown.start()
        while process.poll() is None:
            if select.select([agent, to_driver], [], [], _LOOK_SECONDS)[0]:
                _stop(process)
        shown.join(_GRACE_SECONDS)
    agent.settimeout(_GRACE_SECONDS)
    spark_agent.write_status(agent, process.returncode)


def _send_all(output: int, agent: socket.socket) -> None:
    with suppress(OSError):
        while part := os.read(output, 1 << 16):
            agent.sendall(part)


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
