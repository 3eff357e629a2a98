"""The jobs of a training on Spark alone: places, starts, and sums over the agents in the background.

Tasks are short and prefer the host of their agent, but reach it from anywhere. The vectors go up in a tree, the sum
goes down by a broadcast variable (Langer et al. 2018, section 5.2).
"""

from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial, reduce
from typing import Any, Final

import numpy as np
from py4j.protocol import Py4JError
from pyspark import RDD, BarrierTaskContext, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer

from hep_core.authenticated_sockets import AuthenticatedListener
from training.errors import LaunchError
from training.launching.agent_process import AgentStart, start_agent
from training.launching.launcher import Job, launch
from training.launching.launcher_log import RULE
from training.launching.rank import RunSpec
from training.launching.rank_reports import StartLimit
from training.launching.spark_agent import keep_alive, write_line
from training.launching.spark_job import driver_address, refuse_impossible
from training.loop.progress import Progress
from training.loop.summary import CYCLES
from training.threads import thread_variables
from training.transports.basics import Vector
from training.transports.spark import deliver_sum, fetch_vector

_LONGEST_LINE: Final = 1 << 16
_LOOK_SECONDS: Final = 0.05
#: Number of vectors that a task adds up.
_FAN_IN: Final = 4


def train_on_spark(
    spark: SparkContext,
    spec: RunSpec,
    *,
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> None:
    """Train with agents on the hosts of a cluster's executors.

    Python must lie at the same path on all hosts, the features and the run folder on storage that all share.

    `on_progress`, `on_loss` and `on_wait`: as of `training.launching.launcher.launch`.
    """
    refuse_impossible(spark, spec.train.workers, on_wait)
    try:
        run = partial(_run_agents, spark)
        launch(spec, on_progress=on_progress, on_loss=on_loss, on_wait=on_wait, run=run)
    except (Py4JError, PySparkException) as error:
        raise LaunchError(
            f"a Spark job of the training with agents failed: {error}"[:1000]
        ) from error


def _run_agents(spark: SparkContext, job: Job) -> tuple[int, str]:
    job.files.log.write_text("", encoding="utf-8")
    with ExitStack() as stack:
        stack.callback(job.files.end_ranks_here)
        agents = _Agents(spark, job)
        stack.callback(agents.close)
        limit = StartLimit(job.files, job.settings, agents.stop, job.on_wait)
        stack.callback(limit.end)
        agents.start()
        lost = agents.follow()
    if lost:
        with job.files.log.open("a", encoding="utf-8") as file:
            file.write(f"{RULE}\n{lost}\n{RULE}\n")
    return int(bool(lost)), limit.late


class _Agents:
    def __init__(self, spark: SparkContext, job: Job) -> None:
        self._spark, self._job, self._workers = spark, job, job.settings.workers
        self._hosts: list[str] = []
        self._is_over = False
        self._token = secrets.token_hex(32)
        bind, self._name = driver_address(spark)
        self._door = AuthenticatedListener(
            socket.create_server((bind, 0)), self._token.encode(), max_waiting=self._workers
        )
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._addresses: dict[int, tuple[str, int]] = {}
        self._counters: Counter[str] = Counter()
        #: By number of the sum and rank: type and size of the vectors.
        self._begun: dict[int, dict[int, tuple[str, int]]] = {}
        self._news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        begin = partial(spark.setJobGroup, self._token[:8], "sums over the agents")
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="sums", initializer=begin)

    def start(self) -> None:
        """Start an agent in each of some tasks that run at the same time; it stays on the host of its task."""
        driver, files = (self._name, self._door.address[1]), self._job.files
        variables = thread_variables(self._job.settings.threads)
        begin = partial(
            _begin_agent,
            AgentStart(driver, self._token, str(files.runs), str(files.log), variables),
        )
        tasks = self._spark.parallelize(range(self._workers), self._workers).barrier()
        self._hosts = tasks.mapPartitions(begin).collect()

    def follow(self) -> str:
        """Wait for the end of all agents; returns what was lost before it, or nothing."""
        at_work, has_started = set(range(self._workers)), False
        while at_work:
            for connection in self._door.accept(_LOOK_SECONDS):
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            if not has_started and len(self._addresses) == self._workers:
                has_started = True
                self._job.files.mark_started()
            while not self._news.empty():
                news = self._news.get()
                if "progress" in news:
                    self._job.tell(0, Progress(**news["progress"]))
                elif "done" in news:
                    at_work.discard(news["rank"])
                elif "lost" in news:
                    return str(news["lost"])
                elif news["rank"] in at_work:
                    return f"rank {news['rank']} on {self._hosts[news['rank']]} is gone"
        self._is_over = True
        return ""

    def stop(self) -> None:
        self._news.put({"lost": "the agents were stopped"})

    def close(self) -> None:
        self._door.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if not self._is_over:
            with suppress(Py4JError, OSError):
                self._spark.cancelJobGroup(self._token[:8])
        self._jobs.shutdown(cancel_futures=True)

    def _serve(self, connection: socket.socket) -> None:
        rank = -1
        # A line that an agent does not write ends the connection.
        with (
            suppress(OSError, ValueError, LookupError),
            connection,
            connection.makefile("rb") as lines,
        ):
            keep_alive(connection)
            said = json.loads(lines.readline(_LONGEST_LINE))
            rank = said["rank"]
            self._addresses[rank] = (connection.getpeername()[0], said["port"])
            while line := lines.readline(_LONGEST_LINE):
                said = json.loads(line)
                if "count" in said:
                    with self._lock:
                        self._counters[said["count"]] += said["number"]
                        total = self._counters[said["count"]]
                    write_line(connection, {"total": total})
                elif "sum" in said:
                    self._begin(rank, said["sum"], (said["type"], said["size"]))
                else:
                    self._news.put({"rank": rank, **said})
        self._news.put({"rank": rank})

    def _begin(self, rank: int, number: int, vector: tuple[str, int]) -> None:
        """An agent has begun a sum; the last one starts the jobs."""
        with self._lock:
            begun = self._begun.setdefault(number, {})
            begun[rank] = vector
            if len(begun) == self._workers:
                self._jobs.submit(self._add_up, number, set(self._begun.pop(number).values()))

    def _add_up(self, number: int, vectors: set[tuple[str, int]]) -> None:
        """Add up the vectors of all agents, and give them the sum; in a thread."""
        try:
            token, agents, (vector,) = self._token.encode(), self._addresses, vectors
            began = time.perf_counter()
            tasks = self._tasks({rank: (rank, agents[rank]) for rank in range(self._workers)})
            total = _tree_sum(
                tasks.map(lambda task: (task[0], fetch_vector(task[1], token, number, *vector))),
                self._workers,
            )
            reduced = time.perf_counter()
            sent = self._spark.broadcast(total)
            self._tasks(agents).foreach(lambda agent: deliver_sum(agent, token, number, sent.value))
            sent.destroy()
            seconds = {
                "reduce_seconds": reduced - began,
                "broadcast_seconds": time.perf_counter() - reduced,
            }
            nbytes = dict.fromkeys(
                ("bytes_reduced", "bytes_broadcast"), total.nbytes * self._workers
            )
            with (self._job.folder / CYCLES).open("a", encoding="utf-8") as file:
                content = {"number": number, "seconds": sum(seconds.values()), **seconds, **nbytes}
                file.write(json.dumps(content) + "\n")
        except Exception as error:  # noqa: BLE001 - the thread that follows the agents says it
            self._news.put({"lost": f"a sum over the agents failed: {error}"[:1000]})

    def _tasks(self, items: dict[int, Any]) -> RDD[Any]:
        """One task for each agent, which prefers its host; PySpark itself gives no such preference."""
        jvm: Any = self._spark._jvm
        serializer: Any = CPickleSerializer()
        pairs = jvm.java.util.ArrayList()
        for rank, item in sorted(items.items()):
            host = jvm.PythonUtils.toSeq([self._hosts[rank]])
            pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(item)), host))
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        made = self._spark._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), tag)
        return RDD(made.toJavaRDD(), self._spark, serializer)


def _begin_agent(start: AgentStart, _: Iterable[int]) -> Iterable[str]:
    """Start an agent from its task; gives the task's host, as Spark names it."""
    context = BarrierTaskContext.get()
    context.barrier()
    hosts, rank = (
        [task.address.rpartition(":")[0] for task in context.getTaskInfos()],
        context.partitionId(),
    )
    start_agent(start, rank, len(hosts), hosts[:rank].count(hosts[rank]))
    yield hosts[rank]


def _tree_sum(vectors: RDD[tuple[int, Vector]], count: int) -> Vector:
    """The sum of numbered vectors, in a tree; in the order of the numbers, unlike Spark's own, so that runs repeat."""
    while count > _FAN_IN:
        count = -(-count // _FAN_IN)
        groups = vectors.map(lambda each: (each[0] // _FAN_IN, each)).groupByKey(count, int)
        vectors = groups.mapValues(_sum_in_order)
    return _sum_in_order(vectors.collect())


def _sum_in_order(vectors: Iterable[tuple[int, Vector]]) -> Vector:
    total: Vector = reduce(
        np.add, (vector for _, vector in sorted(vectors, key=lambda each: each[0]))
    )
    return total
