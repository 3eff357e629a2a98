"""The share of its host that a process may use: cores and memory, and processes killed for memory.

Containers, batch systems and systemd limit a group of processes by cgroups. A controller limits one
resource, such as `cpu` or `memory`. Version 1 of cgroups has a hierarchy of groups for each
controller, version 2 one for all; a host may have both. A group is a folder of the kernel, with
limits in files. The limits of all groups above that of a process hold too.
"""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 2**20
_ADDRESS_SPACE: Final = "`ulimit -v`"
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


class MemoryLimit(NamedTuple):
    """A limit of memory [bytes], and what sets it."""

    num_bytes: int
    source: str
    """Such as "the cgroup /sys/fs/cgroup/job_7"."""

    def __str__(self) -> str:
        return f"{self.source} allows {self.num_bytes // MIB:,} MiB"

    @property
    def advice(self) -> str:
        """A sentence that says what to do if the limit does not suffice."""
        if self.source == _ADDRESS_SPACE:
            return (
                "This limit counts addresses, of which libraries and Java reserve many times what "
                "they use: `ulimit -v unlimited`, and a cgroup instead if memory must be limited."
            )
        return (
            "Allow this command more memory, or less work at once: fewer workers (train.workers), "
            "cores (spark.master: local[1]) or rows in memory (train.reader: petastorm)."
        )


class Cgroup(NamedTuple):
    """A group of processes in one hierarchy of cgroups."""

    folder: Path
    """Folder of the group, which holds the files of its limits."""
    mount: Path
    """Folder of the highest group that this process sees."""

    def with_parents(self) -> Iterator[Path]:
        """Its folder and those of the groups above it."""
        folder = self.folder
        yield folder
        while folder != self.mount:
            folder = folder.parent
            yield folder


def usable_cores(proc: Path = Path("/proc/self")) -> int:
    """Number of cores that this process may use, by its affinity and the quotas of its cgroups.

    Like Java, it counts a part of a core as one. `proc` is the folder in which the kernel describes
    the process.
    """
    cores: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    for group in cgroups("cpu", proc):
        for folder in group.with_parents():
            cores = min(cores, _cpu_quota(folder))
    return max(1, math.ceil(cores))


def _cpu_quota(folder: Path) -> float:
    """Number of cores that the CPU quota of a cgroup allows; infinite without a quota.

    A quota is CPU time per period, both in microseconds.
    """
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        # No quota is "max" in version 2, and -1 in version 1.
        return math.inf
    return int(quota) / int(period)


def memory_limit(proc: Path = Path("/proc/self")) -> MemoryLimit:
    """The lowest limit of the memory of this process: of the host, its cgroups or its addresses."""
    limits = [_memory_of_host(proc.parent), *_cgroup_limits(proc)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(MemoryLimit(address_space, _ADDRESS_SPACE))
    return min(limits)


def _memory_of_host(proc: Path) -> MemoryLimit:
    """The memory of the host, by the kernel's `meminfo`, else by the system's number of pages."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    if total is None:
        return MemoryLimit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the host")
    return MemoryLimit(int(total[1]) * 1024, "the host")


def _cgroup_limits(proc: Path) -> Iterator[MemoryLimit]:
    """The memory limits of the cgroups of a process and of all groups above them.

    The file is `memory.max` in version 2, where "max" means no limit, and `memory.limit_in_bytes`
    in version 1.
    """
    for group in cgroups("memory", proc):
        for folder in group.with_parents():
            for file in ("memory.max", "memory.limit_in_bytes"):
                limit = _read(folder / file)
                if limit.isdigit():
                    yield MemoryLimit(int(limit), f"the cgroup {folder}")


def killed_for_memory(proc: Path = Path("/proc/self")) -> int:
    """Number of processes in the cgroup of this process that the kernel has killed for memory.

    The kernel counts them as `oom_kill` in a file whose name depends on the version of cgroups. The
    count is that since the group was made.
    """
    killed = 0
    for group in cgroups("memory", proc):
        for file in ("memory.events", "memory.oom_control"):
            count = re.search(r"^oom_kill (\d+)$", _read(group.folder / file), re.MULTILINE)
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
    while error is not None:
        line = line_about_memory(str(error))
        has_type = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        if has_type and not line:
            line = str(error) or "no memory"
        if line:
            return f"{type(error).__name__}: {line}"
        error = error.__cause__ or error.__context__
    return ""


def cgroups(controller: str, proc: Path = Path("/proc/self")) -> list[Cgroup]:
    """The cgroups of this process that may limit the resource of a controller (`cpu`, `memory`).

    For each mounted hierarchy of the controller, the path of the group below the mount is the
    folder of its limits.
    """
    groups = []
    for mount in _mounts(controller, proc):
        name = _group_name(mount.controller, proc)
        if name is None:
            continue
        folder = mount.folder
        # In a container, the highest group that is seen may be that of the container itself.
        if Path(name).is_relative_to(mount.root):
            folder /= Path(name).relative_to(mount.root)
        if folder.is_dir():
            groups.append(Cgroup(folder, mount.folder))
    return groups


class _Mount(NamedTuple):
    """A folder at which a hierarchy of cgroups is mounted."""

    controller: str
    """Name of the controller; empty for version 2, which has one hierarchy for all."""
    root: str
    """Path of the group, within the hierarchy, that the folder shows."""
    folder: Path


def _mounts(controller: str, proc: Path) -> Iterator[_Mount]:
    """The mounted hierarchies with a controller, of both versions.

    A line of `mountinfo` is: id, parent, device, root, folder, options, `-`, type of file system,
    device, options of the file system.
    """
    for line in _read(proc / "mountinfo").splitlines():
        mounted, _, source = line.partition(" - ")
        _, _, _, root, folder, *_ = mounted.split(" ")
        file_system, _, options = source.split(" ", 2)
        if file_system == "cgroup2":
            yield _Mount("", root, _unescaped(folder))
        elif file_system == "cgroup" and controller in options.split(","):
            yield _Mount(controller, root, _unescaped(folder))


def _group_name(controller: str, proc: Path) -> str | None:
    """Path of the group of this process in the hierarchy of a controller; None if it has none.

    A line of the file `cgroup` is `id:controllers:path`; the controllers are empty for version 2.
    """
    for line in _read(proc / "cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controller in controllers.split(","):
            return name
    return None


def _unescaped(path: str) -> Path:
    r"""A path of mountinfo, which writes spaces as octal numbers (`\040`)."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path))


def _read(path: Path) -> str:
    """Text of a file of the kernel; empty if this host has no such file or shows it to nobody."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    return ""
