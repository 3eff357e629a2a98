"""Cgroups, by which containers, batch systems and systemd limit a group of processes.

A controller limits one resource, such as `cpu` or `memory`. Version 1 of cgroups has a hierarchy of
groups for each controller, version 2 one for all; a host may have both. A group is a folder of the
kernel, with limits in files. The limits of all groups above that of a process hold too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Cgroup(NamedTuple):
    """A group of processes in one hierarchy of cgroups."""

    folder: Path
    """Folder of the group, which holds the files of its limits."""
    mount: Path
    """Folder of the highest group that this process sees."""

    def with_parents(self) -> Iterator[Path]:
        """Yield its folder and those of the groups above it."""
        folder = self.folder
        yield folder
        while folder != self.mount:
            folder = folder.parent
            yield folder


def cgroups(controller: str, proc: Path = Path("/proc/self")) -> list[Cgroup]:
    """Return the cgroups of this process that may limit a resource, `cpu` or `memory`.

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
    """Yield the mounted hierarchies with a controller, of both versions.

    A line of `mountinfo` is: id, parent, device, root, folder, options, `-`, type of file system,
    device, options of the file system.
    """
    text = read_system_file(proc / "mountinfo")
    for line in text.splitlines():
        mounted, _, source = line.partition(" - ")
        mounted_fields = mounted.split(" ")
        root = mounted_fields[3]
        folder = _unescaped(mounted_fields[4])
        file_system, _, options = source.split(" ", 2)
        if file_system == "cgroup2":
            yield _Mount("", root, folder)
        elif file_system == "cgroup" and controller in options.split(","):
            yield _Mount(controller, root, folder)


def _group_name(controller: str, proc: Path) -> str | None:
    """Return the path of the group of this process in the hierarchy of a controller.

    None: it has no group there. A line of the file `cgroup` is `id:controllers:path`; the
    controllers are empty for version 2.
    """
    for line in read_system_file(proc / "cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controller in controllers.split(","):
            return name
    return None


def _unescaped(path: str) -> Path:
    r"""Return a path of mountinfo, which writes spaces as octal numbers (`\040`)."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path))


def read_system_file(path: Path) -> str:
    """Return the text of a file; empty if this host has no such file or shows it to nobody."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    return ""
