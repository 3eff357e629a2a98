"""The share of this machine that a local Spark takes: cores, and memory of its Java process.

A local Spark is one Java process with a number of slots; the task in a slot runs in a Python
process. What a process may use of the machine is its allocation (`hep_core.allocation`).
"""

from __future__ import annotations

import re
from typing import Final

from hep_core.allocation import MIB, CoreLimit, MemoryLimit, core_limit, memory_limit
from pipeline.configuration.shell_sections import AUTO, SparkSettings

#: Memory that the driver and the Java process of a small job hold [MiB].
_BASE_MIB: Final = 512
#: Memory of a task that reads or writes events [MiB].
_TASK_MIB: Final = 320
#: The heap of the Java process may grow to this part of the memory, within limits [MiB]. Spark does
#: not start with a smaller one.
_PART_OF_HEAP: Final = 1 / 4
_SMALLEST_HEAP, _LARGEST_HEAP = 512, 2048


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
    limit = memory or memory_limit()
    limit_mib = limit.num_bytes // MIB
    num_slots = max(1, int((cores or core_limit()).cores))
    slots_in_memory = max(1, (limit_mib - _BASE_MIB) // _TASK_MIB)
    changes = {"master": settings.master.replace(AUTO, str(min(num_slots, slots_in_memory)))}
    if settings.driver_memory == AUTO:
        heap = int(limit_mib * _PART_OF_HEAP)
        changes["driver_memory"] = f"{min(max(heap, _SMALLEST_HEAP), _LARGEST_HEAP)}m"
    return settings.model_copy(update=changes)


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
