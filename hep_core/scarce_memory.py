"""What processes do differently where memory is scarce: they take longer and hold less.

Results are the same. Where memory is not scarce, nothing here has an effect.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from hep_core.allocation import MIB, MemoryLimit, memory_limit

#: Below this limit, processes hold less memory at the cost of time [bytes].
_SCARCE: Final = 1536 * MIB
#: There is one heap for all threads. More than this at its end, and blocks that are larger than the
#: second size, go back to the system at once [bytes].
_NUM_HEAPS: Final = 1
_HEAP_END: Final = 128 * 1024
_LARGE_BLOCK: Final = 64 * 1024
#: This for `mallopt` of glibc, by its numbers of the parameters in malloc.h: M_ARENA_MAX,
#: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
_PARAMETERS: Final = {-8: _NUM_HEAPS, -1: _HEAP_END, -3: _LARGE_BLOCK}
#: The same for the processes that this one starts. Arrow takes its memory from malloc too, since
#: its own allocator keeps what is freed.
_VARIABLES: Final = {
    "MALLOC_ARENA_MAX": str(_NUM_HEAPS),
    "MALLOC_TRIM_THRESHOLD_": str(_HEAP_END),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGE_BLOCK),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
#: Added to the share of the memory by which the kernel chooses whom to kill, in thousandths.
_SCORE_OF_CHILDREN: Final = "500"


def is_memory_scarce(limit: MemoryLimit | None = None) -> bool:
    """Return whether memory is scarce.

    Args:
        limit: The limit of the memory; by default that of this process.
    """
    if limit is None:
        limit = memory_limit()
    return limit.num_bytes < _SCARCE


def return_freed_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it starts, return freed memory to the system at once.

    Without glibc, or where memory is not scarce, nothing changes.

    Args:
        environment: The variables of its environment, which get the parameters of malloc and
            Arrow; those that are set stay. Arrow reads its own when it is imported.
    """
    if not is_memory_scarce():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _PARAMETERS.items():
            mallopt(parameter, value)
    for name, setting in _VARIABLES.items():
        environment.setdefault(name, setting)


def prefer_to_kill(process_id: int) -> None:
    """Let the kernel kill a process, and those that it starts, rather than this one.

    This process survives a lack of memory, and can name the limit or start the other one again.
    """
    # The process may have ended, and other systems than Linux have no such file.
    with suppress(OSError):
        Path(f"/proc/{process_id}/oom_score_adj").write_text(_SCORE_OF_CHILDREN, encoding="ascii")
