"""Runs mpirun in a network namespace that has nothing but loopback.

mpirun listens on all addresses, and a stranger who connects and stays stops it. The arguments are a
folder that the program must be able to read, and mpirun with its arguments. Without the right to make a
namespace, or if the folder cannot be read from one, mpirun runs as it is. A site's settings of its
network do not count.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hep_core.environment import MODULE_COMMAND, one_host_mpi_environment

#: Arguments that may lead mpirun to other hosts, and variables of an allocation or a list of hosts.
_OTHER_HOSTS: Final = re.compile(r"host|file|^-H$|dvm|plm|ras")
_ALLOCATION: Final = re.compile(r"(SLURM_JOB|PBS_|LSB_|FLUX_|PE_HOST|.*hostfile$)")
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 0x1


def is_here_alone(arguments: Sequence[str]) -> bool:
    """Whether mpirun starts all ranks on this host."""
    names_hosts = any(_OTHER_HOSTS.search(argument) for argument in arguments)
    is_in_allocation = any(_ALLOCATION.match(variable) for variable in os.environ)
    return not names_hosts and not is_in_allocation


def without_network(arguments: Sequence[str], folder: Path) -> list[str]:
    """Arguments before mpirun that isolate a run on this host; none for several hosts."""
    if sys.platform != "linux" or not is_here_alone(arguments):
        return []
    return [*MODULE_COMMAND, "training.launching.loopback_only", str(folder)]


def main(argv: list[str]) -> None:
    """Replace this process by the program."""
    _, folder, *command = argv
    for namespaces in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK):
        if _can_isolate(namespaces, Path(folder)):
            _isolate(namespaces)
            break
    mpirun, *arguments = command
    # mpirun reads parameters of the user from the home folder, which the ranks get back.
    if "HOME" in os.environ:
        arguments = ["-x", f"HOME={os.environ['HOME']}", *arguments]
    # The Open MPI beside this Python is not that of a site.
    variables = one_host_mpi_environment(
        os.environ, own_mpi=Path(mpirun).parent == Path(sys.executable).parent
    )
    # This Python ignores these signals, and ranks would inherit that: at a limit of file sizes they
    # would wait forever.
    for ignored_signal in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_signal, signal.SIG_DFL)
    os.execvpe(mpirun, [mpirun, *arguments], variables)  # noqa: S606 - the launcher's own command, without a shell


def _can_isolate(namespaces: int, folder: Path) -> bool:
    """Whether a process can read the folder from new namespaces.

    An attempt that fails cannot be undone, so another process tries.
    """
    trial = os.fork()
    if not trial:
        with suppress(OSError):
            _isolate(namespaces)
            next(folder.iterdir(), None)
            os._exit(0)
        os._exit(1)
    return os.waitpid(trial, 0)[1] == 0


def _isolate(namespaces: int) -> None:
    """Move this process into new namespaces, with loopback as its network."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(namespaces):
        raise OSError(ctypes.get_errno(), "unshare")
    if namespaces & _NEW_USER:
        process = Path("/proc/self")
        (process / "setgroups").write_text("deny", encoding="ascii")
        (process / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        (process / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


if __name__ == "__main__":
    main(sys.argv)
