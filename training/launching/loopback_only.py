"""Runs mpirun in a network namespace that has nothing but loopback.

mpirun listens on all addresses, and a stranger who connects and stays stops it. In a network
namespace of Linux, no other host can reach it.

The arguments are a folder that the program must be able to read, and mpirun with its arguments.
Without the right to make a namespace, or if the folder cannot be read from one, mpirun runs as it
is. A site's settings of its network do not count.
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
#: Constants of Linux: CLONE_NEWUSER and CLONE_NEWNET of unshare.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
#: Constants of Linux: the request SIOCSIFFLAGS, and the flag IFF_UP of an interface.
_SET_FLAGS, _UP = 0x8914, 0x1


def is_here_alone(arguments: Sequence[str]) -> bool:
    """Return whether mpirun starts all ranks on this host.

    It does if no argument may name hosts, and no variable shows an allocation of a batch system.
    """
    names_hosts = any(_OTHER_HOSTS.search(argument) for argument in arguments)
    is_in_allocation = any(_ALLOCATION.match(variable) for variable in os.environ)
    return not names_hosts and not is_in_allocation


def without_network(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the words before mpirun on a command line that isolate a run on this host.

    There are none for several hosts, and on systems other than Linux. `folder`: the program must be
    able to read it.
    """
    if sys.platform != "linux" or not is_here_alone(arguments):
        return []
    return [*MODULE_COMMAND, "training.launching.loopback_only", str(folder)]


def main(argv: list[str]) -> None:
    """Isolate this process if possible, then replace it by mpirun.

    A new network namespace needs rights, which a new user namespace gives. So the network alone is
    tried first, then both.
    """
    _, folder, *command = argv
    for namespaces in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK):
        if _can_isolate(namespaces, Path(folder)):
            _isolate(namespaces)
            break
    mpirun, *arguments = command
    # The environment below gives mpirun another home folder, so that it reads no parameters of the
    # user. The ranks get theirs back.
    if "HOME" in os.environ:
        arguments = ["-x", f"HOME={os.environ['HOME']}", *arguments]
    # The Open MPI beside this Python is not that of a site.
    variables = one_host_mpi_environment(
        os.environ, own_mpi=Path(mpirun).parent == Path(sys.executable).parent
    )
    # This Python ignores these signals, and ranks would inherit that. At a limit of file sizes they
    # would then wait forever.
    for ignored_signal in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_signal, signal.SIG_DFL)
    os.execvpe(mpirun, [mpirun, *arguments], variables)  # noqa: S606 - the launcher's own command, without a shell


def _can_isolate(namespaces: int, folder: Path) -> bool:
    """Return whether a process can enter new namespaces and read the folder from them.

    An attempt cannot be undone, so a child process tries, and its exit status is the answer.
    """
    trial = os.fork()
    if not trial:
        # This is the child.
        with suppress(OSError):
            _isolate(namespaces)
            next(folder.iterdir(), None)
            os._exit(0)
        os._exit(1)
    return os.waitpid(trial, 0)[1] == 0


def _isolate(namespaces: int) -> None:
    """Move this process into new namespaces, with loopback as its only network.

    In a new user namespace, the user and group keep their numbers.

    Raises:
        OSError: The system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(namespaces):
        raise OSError(ctypes.get_errno(), "unshare")
    if namespaces & _NEW_USER:
        # Linux allows a map of groups only after setgroups is denied.
        process = Path("/proc/self")
        (process / "setgroups").write_text("deny", encoding="ascii")
        (process / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        (process / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    # In a new network namespace loopback is down. The bytes are ifreq: 16 for the name, then flags.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


if __name__ == "__main__":
    main(sys.argv)
