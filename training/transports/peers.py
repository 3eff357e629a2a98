"""Connections between ranks: sockets that only the ranks of a job can open.

Each rank listens on the address by which the other hosts reach it, for the time of `connect`. The addresses travel over
MPI, as does a random token that each connection must show first.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from hep_core.authenticated_sockets import AuthenticatedListener
from training.errors import LaunchError
from training.transports.basics import MpiProcess, load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

_TOKEN_BYTES: Final = 32
#: Time for all ranks to connect over one network [s].
_PATIENCE: Final = 10.0
#: Time after which a silent host counts as lost [s].
_SILENCE: Final = 30
_LOOPBACK: Final = "127.0.0.1"


class Peers(NamedTuple):
    """Connections of one rank."""

    asking: dict[int, socket.socket]
    """Those for requests of this rank, by partner."""
    serving: list[socket.socket]
    """Those for requests of partners."""

    def all(self) -> list[socket.socket]:
        """All connections."""
        return [*self.serving, *self.asking.values()]

    def close(self) -> None:
        """Close all connections."""
        for each in self.all():
            each.close()


def connect(process: MpiProcess, *, servers: Sequence[int], network: str | None) -> Peers:
    """Connect all ranks to the servers with which they share no memory, all ranks together.

    `network`: interface of rank 0, or network as address/length, to use; None: the first that reaches all.
    """
    comm = process.comm
    token = comm.bcast(secrets.token_bytes(_TOKEN_BYTES))
    tried: list[str] = []
    for own in _own_addresses(comm, network):
        found, problem = _try(process, own, token, servers=servers)
        problems = sorted(set(filter(None, comm.allgather(problem))))
        if not problems:
            return found
        found.close()
        tried += problems
    raise LaunchError(
        f"the workers cannot connect to each other for their averages: "
        f"{'; '.join(tried) or 'rank 0 has no IPv4 address that leads to all'}. Set train.algorithm.network to the "
        f"interface or the network between the hosts (now {network or 'null: any'}), for example 10.0.0.0/24, and "
        f"allow TCP there."
    )


def _own_addresses(comm: MPI.Intracomm, network: str | None) -> list[str]:
    """Addresses of this rank to try, in the same order on all ranks.

    For each address of rank 0, a rank takes the one from which its host would send there.
    """
    mpi = load_mpi()
    host = comm.Split_type(mpi.COMM_TYPE_SHARED)
    is_one_host, first_of_host = host.size == comm.size, host.bcast(comm.rank)
    host.Free()
    if is_one_host:
        return [_LOOPBACK]
    chosen: list[str] = []
    for address in comm.bcast(_addresses(network) if comm.rank == 0 else None):
        own = _address_towards(address)
        all_own = dict(comm.allgather((first_of_host, own)))
        # An address that several hosts have, such as that of a bridge for containers, leads to none of the others.
        if "" not in all_own.values() and len(set(all_own.values())) == len(all_own):
            chosen.append(own)
    return chosen


def _addresses(network: str | None) -> list[str]:
    """The addresses of this host in a network or of an interface; None: all that are up, the fastest first."""
    states = psutil.net_if_stats()
    names = [name for name, state in states.items() if state.isup]
    names.sort(key=lambda name: -states[name].speed)
    own = {
        (name, each.address)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family is socket.AF_INET
    }
    found = [address for name in names for each, address in sorted(own) if each == name]
    if network is None:
        return [address for address in found if not ipaddress.ip_address(address).is_loopback]
    if network in states:
        return [address for name, address in own if name == network]
    try:
        wanted = ipaddress.IPv4Network(network, strict=False)
    except ValueError as cause:
        raise LaunchError(
            f"train.algorithm.network: '{network}' is no network of IPv4, and rank 0 has no such interface, only "
            f"{', '.join(sorted(states))}"
        ) from cause
    return [address for address in found if ipaddress.ip_address(address) in wanted]


def _address_towards(address: str) -> str:
    """The address from which this host sends to another one; empty if it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; the kernel only chooses the route.
            probe.connect((address, 9))
        except OSError:
            return ""
        own: str = probe.getsockname()[0]
        return own


def _try(
    process: MpiProcess, own: str, token: bytes, *, servers: Sequence[int]
) -> tuple[Peers, str]:
    comm, deadline = process.comm, time.monotonic() + _PATIENCE
    others = [rank for rank in servers if rank not in process.on_host]
    found = Peers({}, [])
    expected = comm.size - process.host.size if comm.rank in servers else 0
    try:
        door = AuthenticatedListener(
            socket.create_server((own, 0), backlog=max(expected, 1)), token, max_waiting=expected
        )
    except OSError as error:
        comm.allgather(None)
        return found, f"rank {comm.rank} cannot listen at {own}: {error}"
    with closing(door):
        all_addresses = comm.allgather(door.address)
        if None in all_addresses:
            return found, ""
        try:
            for rank in others:
                found.asking[rank] = socket.create_connection(all_addresses[rank], _left(deadline))
                found.asking[rank].sendall(token)
            while len(found.serving) < expected:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{expected - len(found.serving)} connections did not come")
                found.serving.extend(door.accept(_left(deadline)))
        except OSError as error:
            return found, f"rank {comm.rank} at {own}: {error}"
    for each in found.all():
        _tune(each)
    return found, ""


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _tune(connection: socket.socket) -> None:
    """Send small messages at once, and notice a host that falls silent."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
