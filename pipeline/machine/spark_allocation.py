"""The share of a machine that Spark takes: cores, and memory of its Java processes.

A local Spark is one Java process with a number of slots; the task in a slot runs in a Python
process. What a process may use of the machine is its allocation (`hep_core.allocation`).

In a standalone cluster each host has a worker, which knows the cores and the memory that its host
gives. It starts executors, Java processes with slots, as long as both suffice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hep_core.allocation import MIB, CoreLimit, MemoryLimit, core_limit, memory_limit
from hep_core.scarce_memory import is_memory_scarce
from pipeline.configuration.shell_sections import AUTO, SparkSettings
from pipeline.configuration.spark_masters import standalone_addresses

#: Memory that the driver and the Java process of a small job hold [MiB].
_BASE_MIB: Final = 512
#: Memory of a task that reads or writes events [MiB].
_TASK_MIB: Final = 320
#: The heap of the Java process may grow to this part of the memory, within limits [MiB]. Spark does
#: not start with a smaller one.
_PART_OF_HEAP: Final = 1 / 4
_SMALLEST_HEAP, _LARGEST_HEAP = 512, 2048
#: Memory that an executor asks for each of its tasks: that of Java, and of Python beside it [MiB].
_EXECUTOR_TASK_MIB: Final = 1024
_CORES: Final = "spark.executor.cores"
_MEMORY: Final = "spark.executor.memory"
#: Options of the Java process where memory is scarce: one thread collects garbage, of a small young
#: generation, and returns free memory; one compiler takes the place of two; small stacks.
_OPTIONS_IF_SCARCE: Final = (
    "-XX:+UseSerialGC",
    "-Xmn8m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=20",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=48m",
    "-Xss512k",
)


def jvm_options(memory: MemoryLimit | None = None) -> tuple[str, ...]:
    """Return options of Spark's Java process: none, unless memory is scarce.

    Args:
        memory: The limit of the memory; by default that of this process.
    """
    if is_memory_scarce(memory):
        return _OPTIONS_IF_SCARCE
    return ()


def with_allocation(
    settings: SparkSettings,
    *,
    cores: CoreLimit | None = None,
    memory: MemoryLimit | None = None,
) -> SparkSettings:
    """Return settings of Spark in which `auto` is replaced by what this process may use.

    `local[auto]` gets a slot for each core, or fewer if the memory does not hold their tasks.

    Args:
        settings: The section `spark` of the config.
        cores: The limit of the cores; by default that of this process.
        memory: The limit of the memory; by default that of this process.
    """
    if cores is None:
        cores = core_limit()
    if memory is None:
        memory = memory_limit()
    memory_mib = memory.num_bytes // MIB
    slots_in_memory = (memory_mib - _BASE_MIB) // _TASK_MIB
    num_slots = max(1, min(int(cores.cores), slots_in_memory))
    changes = {"master": settings.master.replace(AUTO, str(num_slots))}
    if settings.driver_memory == AUTO:
        part_of_memory = int(memory_mib * _PART_OF_HEAP)
        heap = min(max(part_of_memory, _SMALLEST_HEAP), _LARGEST_HEAP)
        changes["driver_memory"] = f"{heap}m"
    return settings.model_copy(update=changes)


def executor_properties(master: str, stated: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that let the workers of a standalone cluster limit the tasks.

    By default an executor takes all cores of a worker, and asks for 1 GiB. A worker counts no
    memory but that of Java, and the events are in Python, outside of it. So an executor gets one
    core, and asks for the memory of one whole task: a host runs as many tasks as its cores and its
    memory allow. An executor of several cores asks for the memory of as many tasks.

    Args:
        master: The address of Spark.
        stated: Properties of Spark that the config or the site states, by name.

    Returns:
        Properties that are not stated, by name; none for other masters, whose managers count all
        memory of an executor.
    """
    if not standalone_addresses(master):
        return {}
    num_cores = stated.get(_CORES, "1")
    properties = {_CORES: num_cores}
    # Spark itself refuses cores that are no number.
    if num_cores.isdigit():
        memory_mib = int(num_cores) * _EXECUTOR_TASK_MIB
        properties[_MEMORY] = f"{memory_mib}m"
    return {name: value for name, value in properties.items() if name not in stated}


def slots_of(master: str) -> int | None:
    """Return the number of slots that an address of a local Spark states; None without one.

    Examples:
        >>> slots_of("local[4]"), slots_of("local[auto]"), slots_of("yarn")
        (4, None, None)
    """
    stated = re.match(r"local\[(\d+)", master)
    return int(stated[1]) if stated else None


def heap_bytes(driver_memory: str) -> int:
    """Return an amount of memory such as `512m` in bytes; 0 for `auto`.

    Examples:
        >>> heap_bytes("1k"), heap_bytes("auto")
        (1024, 0)
    """
    if driver_memory == AUTO:
        return 0
    unit = 1024 ** ("kmgt".index(driver_memory[-1]) + 1)
    return int(driver_memory[:-1]) * int(unit)
