"""Launchers of ranks and agents. They change no result, so their code makes nothing stale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from training.launching.launcher import launch
from training.launching.mpirun import Hosts, no_hosts
from training.launching.run_spec import RunSpec
from training.settings import TrainSettings

if TYPE_CHECKING:
    from pyspark import SparkContext

StartSpark = Callable[[], "SparkContext"]


def make_launcher(
    spec: RunSpec, start_spark: StartSpark, on_wait: Callable[[str], None]
) -> Callable[..., None]:
    """Return a function that trains a network with the launcher of the config.

    A launcher starts the processes of a training: as tasks of Spark, or as ranks (processes that
    talk by MPI) under mpirun or srun.

    Args:
        spec: The settings of the training and its folder.
        start_spark: Starts Spark; only called if the launcher uses it.
        on_wait: Called with what a long start waits for.
    """
    if spec.train.launcher == "spark-agents":
        from training.launching.agents_on_spark import train_on_spark  # noqa: PLC0415 - loads Spark

        return partial(train_on_spark, start_spark(), spec, on_wait=on_wait)
    hosts = find_hosts(spec.train, start_spark, on_wait)
    return partial(launch, spec, on_wait=on_wait, hosts=hosts)


def find_hosts(
    settings: TrainSettings,
    start_spark: StartSpark,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Hosts:
    """Return a function that finds the hosts on which the ranks of a training run.

    With the launcher `spark` and several ranks, these are hosts of the Spark cluster. Otherwise
    the function names none, and mpirun or srun chooses.
    """
    if settings.launcher != "spark" or settings.workers == 1:
        return no_hosts
    from training.launching.spark_job import spark_hosts  # noqa: PLC0415 - as above

    return partial(spark_hosts, start_spark(), on_wait=on_wait)
