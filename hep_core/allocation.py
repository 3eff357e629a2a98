"""The share of its host that a process may use: cores and memory, and processes killed for memory.

The lowest limit counts: that of the host, of the kernel (affinity, cgroups, `ulimit`), or of the
batch system that runs the job.
"""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hep_core.batch_systems import MEMORY_REQUESTS, granted_cores, granted_memory
from hep_core.causes import error_and_causes
from hep_core.cgroups import cgroups, read_system_file

MIB: Final = 2**20
#: The folder in which the kernel describes this process.
_PROC: Final = Path("/proc/self")
_ADDRESS_SPACE: Final = "`ulimit -v`"
_HOST: Final = "the host"
#: Messages of libraries to which the system gave no memory or threads, and of batch systems about a
#: process killed for its memory.
_LACK: Final = re.compile(
    r"bad_alloc|cannot allocate memory|can't allocate memory|unable to allocate|out ?of ?memory"
    r"|failed to map segment|can't start new thread|unable to create (new )?native thread"
    r"|insufficient memory|not reserve enough space|oom[- _]?kill",
    re.IGNORECASE,
)
#: Messages of libraries to which a GPU gave no memory.
_LACK_OF_GPU: Final = re.compile(
    r"\b(CUDA|HIP|MPS|XPU)( error:| backend)? out of memory"
    r"|(cuda|hip)Error(MemoryAllocation|OutOfMemory)"
)


class CoreLimit(NamedTuple):
    """A limit of the cores that a process may use, and what sets it."""

    cores: float
    """A quota of CPU time may be a part of a core."""
    source: str
    """Such as "the CPU affinity of this process"."""

    def __str__(self) -> str:
        return f"{self.source} allows {self.cores:g} core(s)"


class MemoryLimit(NamedTuple):
    """A limit of memory [bytes], and what sets it."""

    num_bytes: int
    source: str
    """Such as "the cgroup /sys/fs/cgroup/job_7"."""

    def __str__(self) -> str:
        return f"{self.source} allows {self.num_bytes // MIB:,} MiB"

    @property
    def is_of_host(self) -> bool:
        """Whether it is all of the host's memory: nothing below limits this process."""
        return self.source == _HOST

    @property
    def advice(self) -> str:
        """A sentence that says what to do if the limit does not suffice."""
        if self.source == _ADDRESS_SPACE:
            return (
                "This limit counts addresses, of which libraries and Java reserve many times what "
                "they use: `ulimit -v unlimited`, and a cgroup instead if memory must be limited."
            )
        more_memory = "Allow this command more memory"
        for batch_system, request in MEMORY_REQUESTS.items():
            if self.source.startswith(batch_system):
                more_memory += f" (add {request})"
        return (
            f"{more_memory}, or less work at once: fewer workers (train.workers), "
            f"cores (spark.master: local[1]) or rows in memory (train.reader: petastorm)."
        )


def usable_cores() -> int:
    """Return the number of cores that this process may use; like Java, a part of a core is one."""
    return max(1, math.ceil(core_limit().cores))


def core_limit(*, proc: Path = _PROC, environment: Mapping[str, str] = os.environ) -> CoreLimit:
    """Return the lowest limit of the cores of this process, and what sets it.

    Limits are its affinity, the quotas of its cgroups, and what a batch system grants.

    Args:
        proc: The folder in which the kernel describes the process.
        environment: The variables of its environment.
    """
    limits = [_affinity(), *_cpu_quotas(proc)]
    limits += [CoreLimit(grant.amount, grant.source) for grant in granted_cores(environment)]
    return min(limits, key=lambda limit: limit.cores)


def _affinity() -> CoreLimit:
    """Return the cores on which the kernel may run this process; by default those of the host."""
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_allowed = len(os.sched_getaffinity(0))
        if num_allowed != num_cores:
            return CoreLimit(num_allowed, "the CPU affinity of this process")
    return CoreLimit(num_cores, _HOST)


def _cpu_quotas(proc: Path) -> Iterator[CoreLimit]:
    """Yield the CPU quotas of the cgroups of a process and of all groups above them."""
    for group in cgroups("cpu", proc):
        for folder in group.with_parents():
            yield CoreLimit(_cpu_quota(folder), f"the cgroup {folder}")


def _cpu_quota(folder: Path) -> float:
    """Return the number of cores that the CPU quota of a cgroup allows; infinite without a quota.

    A quota is CPU time per period, both in microseconds.
    """
    quota, _, period = read_system_file(folder / "cpu.max").partition(" ")
    if not quota:
        quota = read_system_file(folder / "cpu.cfs_quota_us")
        period = read_system_file(folder / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        # No quota is "max" in version 2, and -1 in version 1.
        return math.inf
    return int(quota) / int(period)


def memory_limit(*, proc: Path = _PROC, environment: Mapping[str, str] = os.environ) -> MemoryLimit:
    """Return the lowest limit of the memory of this process, and what sets it.

    Limits are the host's memory, its cgroups, its addresses, and what a batch system grants.

    Args:
        proc: The folder in which the kernel describes the process.
        environment: The variables of its environment.
    """
    limits = [_memory_of_host(proc.parent), *_cgroup_limits(proc)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(MemoryLimit(address_space, _ADDRESS_SPACE))
    limits += [MemoryLimit(grant.amount, grant.source) for grant in granted_memory(environment)]
    return min(limits, key=lambda limit: limit.num_bytes)


def _memory_of_host(proc: Path) -> MemoryLimit:
    """Return the memory of the host, by the kernel's `meminfo`, else by the number of pages."""
    meminfo = read_system_file(proc / "meminfo")
    total = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    if total is None:
        return MemoryLimit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _HOST)
    return MemoryLimit(int(total[1]) * 1024, _HOST)


def _cgroup_limits(proc: Path) -> Iterator[MemoryLimit]:
    """Yield the memory limits of the cgroups of a process and of all groups above them.

    The file is `memory.max` in version 2, where "max" means no limit, and `memory.limit_in_bytes`
    in version 1.
    """
    for group in cgroups("memory", proc):
        for folder in group.with_parents():
            for file in ("memory.max", "memory.limit_in_bytes"):
                limit = read_system_file(folder / file)
                if limit.isdigit():
                    yield MemoryLimit(int(limit), f"the cgroup {folder}")


def killed_for_memory(*, proc: Path = _PROC) -> int:
    """Number of processes in the cgroup of this process that the kernel has killed for memory.

    The kernel counts them as `oom_kill` in a file whose name depends on the version of cgroups. The
    count is that since the group was made.
    """
    killed = 0
    for group in cgroups("memory", proc):
        for file in ("memory.events", "memory.oom_control"):
            count = re.search(
                r"^oom_kill (\d+)$", read_system_file(group.folder / file), re.MULTILINE
            )
            if count:
                killed += int(count[1])
    return killed


def limit_and_advice(reason: str) -> str:
    """Name the limit of the memory that is used up according to a message, and the remedy.

    Examples:
        >>> limit_and_advice("OutOfMemoryError: CUDA out of memory.").partition(".")[0]
        'it is that of the GPU'
    """
    if _LACK_OF_GPU.search(reason):
        return (
            "it is that of the GPU. Lower train.batch_size, end other programs on this GPU "
            "(nvidia-smi lists them), or set train.device: cpu."
        )
    limit = memory_limit()
    return f"{limit}. {limit.advice}"


def line_about_memory(text: str, *, of_host: bool = False) -> str:
    """The first line of a text that says there was no memory; empty without one.

    With `of_host`, lines about the memory of a GPU do not count.
    """
    for line in text.splitlines():
        if _LACK.search(line) and not (of_host and _LACK_OF_GPU.search(line)):
            return line.strip()
    return ""


def lack_of_memory(error: BaseException | None) -> str:
    """The line of an error, or of one of its causes, that says there was no memory; else empty.

    The type of an error (MemoryError) or its errno may say so too.

    Examples:
        >>> lack_of_memory(ImportError("libtorch_cpu.so: failed to map segment from shared object"))
        'ImportError: libtorch_cpu.so: failed to map segment from shared object'
        >>> lack_of_memory(ValueError("no number"))
        ''
    """
    for cause in error_and_causes(error):
        line = line_about_memory(str(cause))
        has_type = isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM
        if has_type and not line:
            line = str(cause) or "no memory"
        if line:
            return f"{type(cause).__name__}: {line}"
    return ""
