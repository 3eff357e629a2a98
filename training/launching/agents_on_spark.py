"""The jobs of a training on Spark alone: hosts, starts, and sums over the agents in the background.

An agent is a process that trains as one worker, on the host of an executor. Each has a connection
to the driver, this process, over which it sends lines of JSON. When all agents have begun a sum, a
Spark job fetches their vectors, adds them up in a tree, and returns the sum by a broadcast variable
(Langer et al. 2018, section 5.2). Its tasks are short and prefer the host of their agent, but reach
it from anywhere.
"""

from __future__ import annotations

import json
import math
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
from operator import itemgetter
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
from training.launching.rank_reports import StartLimit
from training.launching.run_spec import RunSpec
from training.launching.spark_agent import keep_alive, write_line
from training.launching.spark_job import driver_address, require_slots
from training.launching.thread_variables import thread_variables
from training.loop.progress import Progress
from training.loop.summary import CYCLES
from training.transports.basics import Vector
from training.transports.spark import deliver_sum, fetch_vector

#: Longest message of an agent [bytes].
_LONGEST_LINE: Final = 1 << 16
#: Time for which `follow` waits for new connections before it reads messages [s].
_LOOK_SECONDS: Final = 0.05
#: Number of vectors that a task adds up.
_VECTORS_PER_TASK: Final = 4


def train_on_spark(
    spark: SparkContext,
    spec: RunSpec,
    *,
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> None:
    """Train with agents on the hosts of a cluster's executors.

    Python must lie at the same path on all hosts, the features and the run folder on storage that
    all share.

    `on_progress`, `on_loss` and `on_wait`: see `training.launching.launcher.launch`.

    Raises:
        TrainingError: As in `launch`.
    """
    try:
        run = partial(_run_agents, spark)
        launch(spec, on_progress=on_progress, on_loss=on_loss, on_wait=on_wait, run=run)
    except (Py4JError, PySparkException) as error:
        raise LaunchError(
            f"a Spark job of the training with agents failed: {error}"[:1000]
        ) from error


def _run_agents(spark: SparkContext, job: Job) -> tuple[int, str]:
    """Start all agents, and follow them to their end.

    A loss is written into the log in the form of a message of mpirun, which `launch` looks for.

    Returns:
        1 if an agent was lost, else 0; and a description of the agents that did not start in time.
    """
    job.files.log.write_text("", encoding="utf-8")
    # After the loss of a host the cluster may have fewer slots than before.
    require_slots(spark, job.settings.workers, job.on_wait)
    # The callbacks run at the end of the block, also after an error, the last one first.
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
    return int(bool(lost)), limit.missing_ranks


class _Agents:
    """The agents of a run: their start, their messages, and the jobs of their sums.

    A thread for each agent answers its messages. One more thread runs the Spark jobs of the start
    and of the sums, one after the other. The main thread waits in `follow`, to which the others
    send messages.
    """

    def __init__(self, spark: SparkContext, job: Job) -> None:
        self._spark, self._job, self._workers = spark, job, job.settings.workers
        self._hosts: list[str] = []
        """Host of each rank, as Spark names it."""
        self._is_over = False
        """Whether all agents have ended well."""
        self._is_stopped = False
        """Whether the agents shall start no more, or end."""
        self._token = secrets.token_hex(32)
        """Secret that connections of the run begin with."""
        bind_address, self._driver_name = driver_address(spark)
        self._listener = AuthenticatedListener(
            socket.create_server((bind_address, 0)), self._token.encode(), max_waiting=self._workers
        )
        self._lock = threading.Lock()
        """Protects counters and begun sums, which several threads change."""
        self._connections: list[socket.socket] = []
        self._addresses: dict[int, tuple[str, int]] = {}
        """Host and port at which the agent of each rank hands out its vectors."""
        self._counters: Counter[str] = Counter()
        """The counters that the workers share, such as that of the tickets."""
        #: Type and size of the vectors that agents have begun to add up, by sum and rank.
        self._begun_sums: dict[int, dict[int, tuple[str, int]]] = {}
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """Messages for `follow`: the key `progress`, `done` or `lost`; none: an agent is gone."""
        set_group = partial(spark.setJobGroup, self._token[:8], "start and sums of the agents")
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="jobs", initializer=set_group)

    def start(self) -> None:
        """Start each agent in a task; all tasks run at once, and agents stay on their hosts.

        If `stop` is called meanwhile, the agents do not start.
        """
        files = self._job.files
        start = AgentStart(
            driver=(self._driver_name, self._listener.address[1]),
            token=self._token,
            runs=str(files.runs),
            log=str(files.log),
            environment=thread_variables(self._job.settings.threads),
        )
        tasks = self._spark.parallelize(range(self._workers), self._workers).barrier()
        begun = tasks.mapPartitions(partial(_begin_agent, start))
        try:
            self._hosts = self._jobs.submit(begun.collect).result()
        except (Py4JError, PySparkException):
            # The error of a job that `stop` has cancelled says nothing.
            if not self._is_stopped:
                raise

    def follow(self) -> str:
        """Wait for the end of all agents, or for the loss of one.

        Meanwhile new connections get a thread each, and the progress of rank 0 is reported.

        Returns:
            A description of the loss; empty if all agents have ended well.
        """
        working_ranks = set(range(self._workers))
        has_started = False
        while working_ranks:
            for connection in self._listener.accept(_LOOK_SECONDS):
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            if not has_started and len(self._addresses) == self._workers:
                has_started = True
                self._job.files.mark_started()
            while not self._messages.empty():
                message = self._messages.get()
                if "progress" in message:
                    self._job.report_progress(0, Progress(**message["progress"]))
                elif "done" in message:
                    working_ranks.discard(message["rank"])
                elif "lost" in message:
                    return str(message["lost"])
                # An agent that is gone without the message `done` is lost.
                elif message["rank"] in working_ranks:
                    rank = message["rank"]
                    return f"rank {rank} on {self._hosts[rank]} is gone"
        self._is_over = True
        return ""

    def stop(self) -> None:
        """End the start, and `follow`, which then returns a loss."""
        self._is_stopped = True
        self._messages.put({"lost": "the agents were stopped"})
        self._cancel_jobs()

    def close(self) -> None:
        """End all connections and jobs."""
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if not self._is_over:
            self._cancel_jobs()
        self._jobs.shutdown(cancel_futures=True)

    def _cancel_jobs(self) -> None:
        """Cancel the running Spark job of the agents, if there is one."""
        with suppress(Py4JError, OSError):
            self._spark.cancelJobGroup(self._token[:8])

    def _serve(self, connection: socket.socket) -> None:
        """Answer the messages of an agent until it is gone; runs in a thread.

        The first message has the rank, and the port at which it hands out its vectors. `count` adds
        to a counter, and gets its total. `sum` begins a sum. All others are for `follow`.
        """
        rank = -1
        # Errors are those of a broken connection, or of a line that no agent writes. Both end it.
        with (
            suppress(OSError, ValueError, LookupError),
            connection,
            connection.makefile("rb") as lines,
        ):
            keep_alive(connection)
            greeting = json.loads(lines.readline(_LONGEST_LINE))
            rank = greeting["rank"]
            self._addresses[rank] = (connection.getpeername()[0], greeting["port"])
            while line := lines.readline(_LONGEST_LINE):
                message = json.loads(line)
                if "count" in message:
                    counter = message["count"]
                    with self._lock:
                        self._counters[counter] += message["number"]
                        total = self._counters[counter]
                    write_line(connection, {"total": total})
                elif "sum" in message:
                    self._begin_sum(rank, message["sum"], (message["type"], message["size"]))
                else:
                    self._messages.put({"rank": rank, **message})
        self._messages.put({"rank": rank})

    def _begin_sum(self, rank: int, sum_number: int, vector: tuple[str, int]) -> None:
        """Note that an agent has begun a sum; when the last one has, a thread runs its jobs.

        `vector`: type and size of the agent's vector.
        """
        with self._lock:
            vectors = self._begun_sums.setdefault(sum_number, {})
            vectors[rank] = vector
            if len(vectors) == self._workers:
                del self._begun_sums[sum_number]
                self._jobs.submit(self._add_up_or_report, sum_number, set(vectors.values()))

    def _add_up_or_report(self, sum_number: int, vectors: set[tuple[str, int]]) -> None:
        """Run the jobs of a sum; an error counts as the loss of the agents."""
        try:
            self._add_up(sum_number, vectors)
        except Exception as error:  # noqa: BLE001 - the thread that follows the agents reports it
            self._messages.put({"lost": f"a sum over the agents failed: {error}"[:1000]})

    def _add_up(self, sum_number: int, vectors: set[tuple[str, int]]) -> None:
        """Add up the vectors of all agents, and send them the sum; runs in a thread.

        One job fetches and adds, a second one delivers. Their times and bytes become a line of the
        file of cycles. `vectors`: type and size, which must be the same for all agents.
        """
        # Spark pickles the functions with these variables, so they must not refer to `self`.
        token, addresses = self._token.encode(), self._addresses
        ((dtype, size),) = vectors

        def fetch(agent: tuple[int, tuple[str, int]]) -> tuple[int, Vector]:
            rank, address = agent
            return rank, fetch_vector(address, token, sum_number, dtype, size)

        started = time.perf_counter()
        agents = {rank: (rank, addresses[rank]) for rank in range(self._workers)}
        total = _tree_sum(self._parallelize(agents).map(fetch), self._workers)
        reduced = time.perf_counter()
        broadcast = self._spark.broadcast(total)
        self._parallelize(addresses).foreach(
            lambda address: deliver_sum(address, token, sum_number, broadcast.value)
        )
        broadcast.destroy()
        reduce_seconds = reduced - started
        broadcast_seconds = time.perf_counter() - reduced
        cycle = {
            "number": sum_number,
            "seconds": reduce_seconds + broadcast_seconds,
            "reduce_seconds": reduce_seconds,
            "broadcast_seconds": broadcast_seconds,
            "bytes_reduced": total.nbytes * self._workers,
            "bytes_broadcast": total.nbytes * self._workers,
        }
        with (self._job.folder / CYCLES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(cycle) + "\n")

    def _parallelize(self, item_of_rank: dict[int, Any]) -> RDD[Any]:
        """Return one task for each agent, which prefers the agent's host.

        PySpark has no such preference, so this calls `makeRDD` of Spark's JVM, with pairs of a
        pickled item and a list of hosts.
        """
        jvm: Any = self._spark._jvm
        serializer: Any = CPickleSerializer()
        pairs = jvm.java.util.ArrayList()
        for rank, item in sorted(item_of_rank.items()):
            host = jvm.PythonUtils.toSeq([self._hosts[rank]])
            pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(item)), host))
        # In Java, [B is the type of arrays of bytes.
        class_tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        rdd = self._spark._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), class_tag)
        return RDD(rdd.toJavaRDD(), self._spark, serializer)


def _begin_agent(start: AgentStart, _: Iterable[int]) -> Iterable[str]:
    """Start an agent from its task, whose number is the agent's rank.

    Yields:
        The task's host, as Spark names it.
    """
    context = BarrierTaskContext.get()
    # All tasks have started behind the barrier, so all addresses are known.
    context.barrier()
    hosts = [task.address.rpartition(":")[0] for task in context.getTaskInfos()]
    rank = context.partitionId()
    local_rank = hosts[:rank].count(hosts[rank])
    start_agent(start, rank, len(hosts), local_rank)
    yield hosts[rank]


def _tree_sum(vectors: RDD[tuple[int, Vector]], num_vectors: int) -> Vector:
    """Return the sum of numbered vectors, which tasks add up in a tree.

    Each task adds up four vectors whose numbers follow each other. This repeats with the sums until
    four or fewer are left, which this process adds up. The order of the additions is always the
    same, unlike in Spark's own sum, so that runs repeat to the last bit.
    """
    while num_vectors > _VECTORS_PER_TASK:
        num_vectors = math.ceil(num_vectors / _VECTORS_PER_TASK)
        groups = vectors.map(lambda vector: (vector[0] // _VECTORS_PER_TASK, vector))
        vectors = groups.groupByKey(num_vectors, int).mapValues(_sum_in_order)
    return _sum_in_order(vectors.collect())


def _sum_in_order(vectors: Iterable[tuple[int, Vector]]) -> Vector:
    """Return the sum of numbered vectors, added in the order of their numbers."""
    ordered = sorted(vectors, key=itemgetter(0))
    total: Vector = reduce(np.add, [vector for _, vector in ordered])
    return total
