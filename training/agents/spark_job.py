"""The jobs of a run with agents: places, starts, exchange cycles. Their tasks are short and talk to the local agent.

Tasks prefer the host of their agent. An agent outlives tasks and executors, and ends with the driver (see
`training.agents.lifelines`). The contributions go up in a tree, the joint model goes down by a
broadcast variable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import RDD, BarrierTaskContext, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer

from training.agents.crew import Cluster
from training.agents.lifelines import AgentId
from training.agents.local import AgentStart, Home, ask_agent, start_agent
from training.agents.messages import AbsentError, Install, Reduced, Take
from training.agents.run import train_with_agents
from training.errors import LaunchError
from training.launching.rank import RunSpec
from training.launching.spark_job import driver_address, refuse_impossible
from training.loop.progress import Progress
from training.threads import thread_variables

#: An agent answers within this time, or it is stuck [s].
_MOST_SECONDS: Final = 30.0


def train_on_spark(
    spark: SparkContext,
    spec: RunSpec,
    *,
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
) -> None:
    """Train with agents in the executors of a cluster.

    Python must lie at the same path on all hosts, the features and the run folder on storage that all share.

    Args:
        spark: The running context.
        spec: The run.
        on_progress: Called after each cycle.
        on_loss: Called with a sentence when an agent is lost.

    Raises:
        TrainingError: As `training.agents.run.train_with_agents`, or the cluster has fewer slots than agents.
    """
    refuse_impossible(spark, spec.train.workers)
    try:
        train_with_agents(
            spec,
            partial(SparkCluster, spark),
            address=driver_address(spark),
            on_progress=on_progress,
            on_loss=on_loss,
        )
    except (Py4JJavaError, PySparkException) as error:
        raise LaunchError(f"a Spark job of the training with agents failed: {error}"[:1000]) from error


class SparkCluster(Cluster):
    """The jobs of a run.

    Args:
        spark: The running context.
        home: Driver and folders of the run.
        spec: The run.
    """

    def __init__(self, spark: SparkContext, home: Home, spec: RunSpec) -> None:
        self._spark, self._home, self._spec = spark, home, spec
        self._hosts: list[str] = []

    def start(self, agents: Sequence[AgentId], epoch: int, joint: list[Install]) -> None:
        """Start the agents on the hosts of their partitions, which the first call chooses."""
        if not self._hosts:
            self._hosts = _places(self._spark, self._spec.train.workers)
        starts = {agent: self._start(agent, epoch) for agent in agents}
        home, sent = self._home, self._spark.broadcast(joint)
        self._tasks(starts).foreach(lambda start: start_agent(home, start, sent.value))
        sent.destroy()

    def _start(self, agent: AgentId, epoch: int) -> AgentStart:
        *before, host = self._hosts[: agent.partition + 1]
        environment = thread_variables(self._spec.train.threads) | {"MPI_LOCALRANKID": str(before.count(host))}
        return AgentStart(agent, epoch, str(self._spec.out_dir / "run.json"), environment)

    def reduce(self, takes: dict[AgentId, Take]) -> Reduced:
        """Add the contributions up in a tree over the hosts."""
        home = self._home

        def give(items: Iterable[tuple[AgentId, Take]]) -> Iterator[Reduced]:
            for agent, take in items:
                try:
                    given = ask_agent(home, agent, take, _MOST_SECONDS)
                except AbsentError:
                    continue
                if given is not None:
                    yield Reduced(given.contribution, ((given.agent, given.account),))

        parts = self._tasks({agent: (agent, take) for agent, take in takes.items()}).mapPartitions(give)
        return parts.treeAggregate(Reduced(), Reduced.plus, Reduced.plus)

    def install(self, agents: Collection[AgentId], message: Install) -> int:
        """Broadcast the shard; the agents train while their executors receive it."""
        home, sent = self._home, self._spark.broadcast(message)

        def install(agent: AgentId) -> bool:
            try:
                ask_agent(home, agent, sent.value, _MOST_SECONDS)
            except AbsentError:
                return False
            return True

        reached = self._tasks({agent: agent for agent in agents}).map(install).collect()
        sent.destroy()
        return sum(reached)

    def _tasks(self, items: dict[AgentId, Any]) -> RDD[Any]:
        """One task for each agent, which prefers its host; PySpark itself gives no such preference."""
        spark = self._spark
        jvm: Any = spark._jvm
        serializer: Any = CPickleSerializer()
        pairs = jvm.java.util.ArrayList()
        for agent, item in items.items():
            host = jvm.PythonUtils.toSeq([self._hosts[agent.partition]])
            pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(item)), host))
        tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        made = spark._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), tag)
        return RDD(made.toJavaRDD(), spark, serializer)


def _places(spark: SparkContext, count: int) -> list[str]:
    """The hosts of a number of tasks that run at the same time, as Spark names them; the agents will live there."""

    def place(_: Iterable[int]) -> Iterable[str]:
        context = BarrierTaskContext.get()
        context.barrier()
        yield context.getTaskInfos()[context.partitionId()].address.rpartition(":")[0]

    return spark.parallelize(range(count), count).barrier().mapPartitions(place).collect()
