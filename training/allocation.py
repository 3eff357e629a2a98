"""How many workers the cores and the memory of this process hold."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidatorFunctionWrapHandler

from hep_core.allocation import MIB, CoreLimit, MemoryLimit, core_limit, memory_limit

#: Stands for as many workers as the allocation holds.
AUTO: Final = "auto"
#: Memory of the launcher and of each rank, whose libraries take most; ranks of the demo had 248 MiB
#: each for the perceptron, and about 320 for the recurrent network [bytes].
_MEMORY_OF_LAUNCHER: Final = 104 * MIB
_MEMORY_OF_RANK: Final = 332 * MIB


def memory_of_workers(workers: int) -> int:
    """Return the memory that workers and their launcher need before they hold events [bytes]."""
    return _MEMORY_OF_LAUNCHER + _MEMORY_OF_RANK * workers


def workers_in_allocation(cores: CoreLimit, memory: MemoryLimit) -> int:
    """Return the number of workers of one thread that an allocation holds, at least one."""
    workers_in_memory = (memory.num_bytes - _MEMORY_OF_LAUNCHER) // _MEMORY_OF_RANK
    return max(1, min(int(cores.cores), workers_in_memory))


class WorkersOfAllocation(int):
    """The number of workers that `auto` stands for on this machine."""


def number_of_workers(workers: Any, check_number: ValidatorFunctionWrapHandler) -> int:
    """Return the number of workers that `auto` stands for; any other value as a checked number.

    That of `auto` stays distinct from a number that a config states, also in copies.
    """
    if isinstance(workers, WorkersOfAllocation):
        return workers
    if workers == AUTO:
        return WorkersOfAllocation(workers_in_allocation(core_limit(), memory_limit()))
    stated_number: int = check_number(workers)
    return stated_number
