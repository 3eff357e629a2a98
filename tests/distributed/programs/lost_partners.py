"""What ranks do when the connections of one of them break, for test_transports.py."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from training.transports import kernels
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport
from training.transports.pushes import Shard, ShardSelection


def break_connections(averages: int, nap: float) -> dict[str, Any]:
    """The last rank leaves a request of each other rank unanswered, and loses all its connections.

    They break while averages of the others are under way. Then all begin averages over broken
    connections, and the others average with each other. In the end it loses its connections while
    it has the lock of a server.
    """
    transport = MpiTransport(shares_memory=False)
    last = transport.world_size - 1
    is_lost = transport.rank == last
    vector: Any = run_now(transport.shared_vector(np.full(3, float(transport.rank), np.float32)))
    if is_lost:
        # Its thread takes no request while it waits for this.
        kernels.lock(vector._head)
    run_now(transport.barrier())
    if is_lost:
        time.sleep(nap)
        for connection in vector.memory._peers.all():
            connection.shutdown(socket.SHUT_RDWR)
        kernels.unlock(vector._head)
    else:
        run_now(vector.begin_average_with(last))
        run_now(vector.drain())
    first = vector.counts.lost
    for _ in range(averages):
        run_now(vector.begin_average_with(0 if is_lost else last))
        run_now(vector.drain())
    run_now(transport.barrier())
    lost = vector.counts.lost
    # In turn: averages of a pair that cross each other leave a part of the difference.
    for turn in range(last):
        for _ in range(averages if transport.rank == turn else 0):
            run_now(vector.begin_average_with(1 - transport.rank))
            run_now(vector.drain())
        run_now(transport.barrier())
    averaged = np.empty(3, np.float32)
    run_now(vector.read(averaged))
    run_now(vector.close())
    result = {
        "first": first,
        "then": lost - first,
        "vector": averaged.tolist(),
        "counts": asdict(vector.counts),
    }
    server: Any = run_now(transport.parameter_server(np.zeros(100, np.float32)))
    if is_lost:
        run_now(server._lock(0))
    run_now(transport.barrier())
    if is_lost:
        for connection in server._memory._peers.all():
            connection.shutdown(socket.SHUT_RDWR)
    else:
        run_now(server.push(_add_one, ShardSelection(indices=np.arange(100))))
    run_now(transport.barrier())
    out = np.zeros(100, np.float32)
    if not is_lost:
        run_now(server.pull(out))
    run_now(server.close())
    transport.close()
    return result | {"pushed": np.unique(out).tolist()}


def _add_one(shard: Shard) -> None:
    shard.vector += 1
