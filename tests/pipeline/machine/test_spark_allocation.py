"""The share of this machine that a local Spark takes."""

from __future__ import annotations

import pytest

from hep_core.allocation import MIB, CoreLimit, MemoryLimit
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_allocation import executor_properties, jvm_options, with_allocation


@pytest.mark.parametrize(
    ("cores", "memory_mib", "master", "heap"),
    [
        (16, 64_000, "local[16]", "2048m"),
        (2, 4_000, "local[2]", "1000m"),
        # A quota of a part of a core is one slot.
        (0.5, 600, "local[1]", "512m"),
        # Fewer slots than cores, since the memory holds no more tasks.
        (16, 2_112, "local[5]", "528m"),
    ],
)
def test_auto_follows_cores_and_memory(
    cores: float, memory_mib: int, master: str, heap: str
) -> None:
    limits = {"cores": CoreLimit(cores, "a job"), "memory": MemoryLimit(memory_mib * MIB, "a job")}

    settings = with_allocation(SparkSettings(), **limits)

    assert (settings.master, settings.driver_memory) == (master, heap)


@pytest.mark.parametrize("master", ["local[3]", "local[*]", "spark://host1:7077", "yarn"])
def test_stated_settings_stay(master: str) -> None:
    settings = SparkSettings(master=master, driver_memory="3g")

    assert with_allocation(settings) == settings


def test_number_of_failures_of_a_task_stays_beside_auto() -> None:
    cores = CoreLimit(2, "a job")

    settings = with_allocation(SparkSettings(master="local[auto,4]"), cores=cores)

    assert settings.master == "local[2,4]"


@pytest.mark.parametrize(
    ("stated", "properties"),
    [
        ({}, {"spark.executor.cores": "1", "spark.executor.memory": "1024m"}),
        # Four tasks in one executor.
        ({"spark.executor.cores": "4"}, {"spark.executor.memory": "4096m"}),
        ({"spark.executor.memory": "512m"}, {"spark.executor.cores": "1"}),
        ({"spark.executor.cores": "2", "spark.executor.memory": "512m"}, {}),
    ],
)
def test_an_executor_asks_its_worker_for_the_memory_of_its_tasks(
    stated: dict[str, str], properties: dict[str, str]
) -> None:
    assert executor_properties("spark://host1:7077", stated) == properties


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "yarn"])
def test_executors_of_managers_that_count_all_memory_are_left_alone(master: str) -> None:
    assert executor_properties(master, {}) == {}


def test_the_jvm_gets_options_only_where_memory_is_scarce() -> None:
    assert "-XX:+UseSerialGC" in jvm_options(MemoryLimit(600 * MIB, "a job"))
    assert jvm_options(MemoryLimit(4000 * MIB, "a job")) == ()
