"""Connections between ranks: sockets that only the ranks of a job can open.

Each rank listens on the address by which the other hosts reach it, for the time of `connect`. The
addresses travel over MPI, as does a random token that each connection must show first.
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
_CONNECT_SECONDS: Final = 10.0
#: Time after which a silent host counts as lost [s].
_SILENCE_SECONDS: Final = 30
_LOOPBACK: Final = "127.0.0.1"


class Peers(NamedTuple):
    """Connections of one rank."""

    asking: dict[int, socket.socket]
    """Connections over which this rank sends requests, by the rank that answers."""
    serving: list[socket.socket]
    """Connections over which other ranks send requests to this one."""

    def all(self) -> list[socket.socket]:
        """Return all connections, those for requests of others first."""
        return [*self.serving, *self.asking.values()]

    def close(self) -> None:
        """Close all connections."""
        for connection in self.all():
            connection.close()


def connect(process: MpiProcess, *, servers: Sequence[int], network: str | None) -> Peers:
    """Connect all ranks to the servers with which they share no memory, all ranks together.

    It tries one network after the other, until all ranks can connect over it.

    Args:
        process: This rank.
        servers: The ranks that answer requests.
        network: Interface of rank 0, or network as address/length, to use; None: the first that
            reaches all.

    Raises:
        LaunchError: No network connects all; the message has the problems of all ranks.
    """
    comm = process.comm
    # All ranks get the token of rank 0.
    token = comm.bcast(secrets.token_bytes(_TOKEN_BYTES))
    all_problems: list[str] = []
    for address in _candidate_addresses(comm, network):
        # Without a problem of any rank, this network is the one.
        peers, problem = _try_connect(process, address, token, servers=servers)
        problems = sorted(set(filter(None, comm.allgather(problem))))
        if not problems:
            return peers
        peers.close()
        all_problems += problems
    if not all_problems:
        all_problems = ["rank 0 has no IPv4 address that leads to all"]
    raise LaunchError(
        f"the workers cannot connect to each other for their averages: {'; '.join(all_problems)}. "
        f"Set train.algorithm.network to the interface or the network between the hosts (now "
        f"{network or 'null: any'}), for example 10.0.0.0/24, and allow TCP there."
    )


def _candidate_addresses(comm: MPI.Intracomm, network: str | None) -> list[str]:
    """Return the addresses of this rank to try, in the same order on all ranks.

    For each address of rank 0, a rank takes the address from which its host would send there. An
    address of rank 0 is left out if a host cannot reach it, or if two hosts would send from the
    same address.
    """
    mpi = load_mpi()
    host = comm.Split_type(mpi.COMM_TYPE_SHARED)
    is_one_host = host.size == comm.size
    # The lowest rank of a host stands for the host.
    first_rank_of_host = host.bcast(comm.rank)
    host.Free()
    if is_one_host:
        return [_LOOPBACK]
    candidates: list[str] = []
    for address_of_rank_0 in comm.bcast(_host_addresses(network) if comm.rank == 0 else None):
        address = _address_towards(address_of_rank_0)
        address_by_host = dict(comm.allgather((first_rank_of_host, address)))
        # An address that several hosts have, such as that of a bridge for containers, leads to none
        # of the others.
        distinct_addresses = set(address_by_host.values())
        if "" not in distinct_addresses and len(distinct_addresses) == len(address_by_host):
            candidates.append(address)
    return candidates


def _host_addresses(network: str | None) -> list[str]:
    """Return the IPv4 addresses of this host in a network, or of an interface.

    Those in a network, and all for None, are of interfaces that are up, the fastest first. None
    leaves out loopback.

    `network`: name of an interface, or a network as address/length; None: any.

    Raises:
        LaunchError: The text is neither.
    """
    states = psutil.net_if_stats()
    addresses_by_interface = {}
    for name, entries in psutil.net_if_addrs().items():
        ipv4 = [entry.address for entry in entries if entry.family is socket.AF_INET]
        addresses_by_interface[name] = sorted(ipv4)
    if network in states:
        return addresses_by_interface.get(network, [])

    interfaces = [name for name, state in states.items() if state.isup]
    interfaces.sort(key=lambda name: -states[name].speed)
    addresses: list[str] = []
    for interface in interfaces:
        addresses += addresses_by_interface.get(interface, [])
    if network is None:
        return [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    try:
        allowed = ipaddress.IPv4Network(network, strict=False)
    except ValueError as cause:
        raise LaunchError(
            f"train.algorithm.network: '{network}' is no network of IPv4, and rank 0 has no such "
            f"interface, only {', '.join(sorted(states))}"
        ) from cause
    return [address for address in addresses if ipaddress.ip_address(address) in allowed]


def _address_towards(address: str) -> str:
    """Return the address from which this host sends to another one; empty if it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing; the kernel only chooses the route.
            # Any port will do; 9 is that of the protocol "discard".
            probe.connect((address, 9))
        except OSError:
            return ""
        local_address: str = probe.getsockname()[0]
        return local_address


def _try_connect(
    process: MpiProcess, address: str, token: bytes, *, servers: Sequence[int]
) -> tuple[Peers, str]:
    """Connect all ranks over one network, all ranks together.

    Each rank listens, tells all others its address and port over MPI, connects to the servers, and
    accepts the ranks that connect to it. A new connection sends the token first.

    Args:
        process: This rank.
        address: Address of this host at which the rank listens.
        token: Random bytes that only the ranks of this job know.
        servers: The ranks that answer requests.

    Returns:
        The connections so far, and the problem of this rank; empty if it has none.
    """
    comm = process.comm
    deadline = time.monotonic() + _CONNECT_SECONDS
    peers = Peers({}, [])
    # All ranks of other hosts connect to a server.
    num_clients = comm.size - process.host.size if comm.rank in servers else 0
    try:
        server = socket.create_server((address, 0), backlog=max(num_clients, 1))
        listener = AuthenticatedListener(server, token, max_waiting=num_clients)
    except OSError as error:
        # The other ranks wait here for an address; None tells them that this network fails.
        comm.allgather(None)
        return peers, f"rank {comm.rank} cannot listen at {address}: {error}"
    with closing(listener):
        server_addresses = comm.allgather(listener.address)
        # Another rank cannot listen, and reports its problem itself.
        if None in server_addresses:
            return peers, ""
        # First ask, then accept: the connections of others wait in the queue of the listener.
        try:
            for rank in servers:
                if rank in process.on_host:
                    continue
                connection = socket.create_connection(
                    server_addresses[rank], _remaining_seconds(deadline)
                )
                peers.asking[rank] = connection
                connection.sendall(token)
            while len(peers.serving) < num_clients:
                if time.monotonic() > deadline:
                    num_missing = num_clients - len(peers.serving)
                    raise TimeoutError(f"{num_missing} connections did not come")
                peers.serving.extend(listener.accept(_remaining_seconds(deadline)))
        except OSError as error:
            return peers, f"rank {comm.rank} at {address}: {error}"
    for connection in peers.all():
        _set_options(connection)
    return peers, ""


def _remaining_seconds(deadline: float) -> float:
    """Return the time until a deadline [s], at least a millisecond: 0 would mean not to wait."""
    return max(0.001, deadline - time.monotonic())


def _set_options(connection: socket.socket) -> None:
    """Make a socket send small messages at once, and notice a host that falls silent.

    Data that the host does not confirm within `_SILENCE_SECONDS` break the connection. Without any
    data, the kernel asks the host for a sign of life after a third of this time.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
