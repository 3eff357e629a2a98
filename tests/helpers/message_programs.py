"""All-reduces as lists of messages, for events in a simulator and for sockets between hosts.

`message_programs.py RANK ALGORITHM REPEATS SIZES ADDRESS ...` runs one on a host, with sockets that
sleep while they wait, and prints the median time for each size.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import socket
import statistics
import sys
import time
from collections.abc import Callable, Generator

#: What a rank does next: send to a rank a number of bytes, or wait for a number of bytes from a
#: rank.
Action = tuple[str, int, float]
Program = Generator[Action, None, None]
_PORT = 7780


def doubling(rank: int, size: int, nbytes: float) -> Program:
    """Recursive doubling, for any number of ranks."""
    power = 1 << int(math.log2(size))
    extra = size - power
    if rank < 2 * extra and rank % 2 == 0:
        yield "send", rank + 1, nbytes
        yield "wait", rank + 1, nbytes
        return
    if rank < 2 * extra:
        yield "wait", rank - 1, nbytes
    index = rank // 2 if rank < 2 * extra else rank - extra
    distance = 1
    while distance < power:
        partner = index ^ distance
        partner = 2 * partner + 1 if partner < extra else partner + extra
        yield "send", partner, nbytes
        yield "wait", partner, nbytes
        distance *= 2
    if rank < 2 * extra:
        yield "send", rank - 1, nbytes


def ring(rank: int, size: int, nbytes: float) -> Program:
    """Reduce-scatter and all-gather around a ring."""
    for _ in range(2 * (size - 1)):
        yield "send", (rank + 1) % size, nbytes / size
        yield "wait", (rank - 1) % size, nbytes / size


PROGRAMS: dict[str, Callable[[int, int, float], Program]] = {"doubling": doubling, "ring": ring}


def main() -> None:
    rank_text, algorithm, repeats, sizes, *addresses = sys.argv[1:]
    rank = int(rank_text)
    peers = _connect_to_all(rank, addresses)
    medians = {}
    for nbytes in map(int, sizes.split(",")):
        seconds = []
        for _ in range(int(repeats)):
            started = time.perf_counter()
            for action, peer, length in PROGRAMS[algorithm](rank, len(addresses), nbytes):
                if action == "send":
                    peers[peer].sendall(bytes(round(length)))
                else:
                    peers[peer].recv(round(length), socket.MSG_WAITALL)
            seconds.append(time.perf_counter() - started)
        # A rank that begins early waits longer, and then begins late.
        means_of_pairs = [sum(pair) / 2 for pair in itertools.pairwise(seconds[1:])]
        medians[nbytes] = statistics.median(means_of_pairs)
    sys.stdout.write(json.dumps(medians) + "\n")


def _connect_to_all(rank: int, addresses: list[str]) -> dict[int, socket.socket]:
    """A connection to each other rank; ranks connect to those before them."""
    peers = {}
    with socket.create_server(("", _PORT), backlog=len(addresses)) as server:
        for peer in range(rank):
            peers[peer] = _connect(addresses[peer])
            peers[peer].sendall(bytes([rank]))
        while len(peers) < len(addresses) - 1:
            connection, _ = server.accept()
            peer = connection.recv(1)[0]
            peers[peer] = connection
    for connection in peers.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _connect(address: str) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((address, _PORT))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
