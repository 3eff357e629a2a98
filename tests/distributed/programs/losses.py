"""Ranks that lose one of them, for test_ulfm.py."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from training.transports import ulfm
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.transports.mpi_shared_vector import MpiSharedVector
from training.transports.socket_shared_vector import SocketSharedVector


def lose(finish: Callable[[object], None], doing: str, victims: list[int], protocol: Any = "additive") -> NoReturn:
    """Repeat an action while ranks are killed one after the other; continue without them."""
    transport = MpiTransport(protocol=protocol, overlap="inline")
    world_rank, losses, averages_lost = transport.rank, [], 0
    vector = np.full(2013, float(transport.rank), np.float32)
    for victim in victims:
        shared = run_now(transport.share(vector))
        losses.append(until_lost(transport, shared, doing, vector, dies=transport.rank == victim))
        averages_lost += shared.counts.lost
        transport = ulfm.survivors(transport)
        vector.fill(1)
        run_now(transport.all_reduce_sum(vector))
    shared = run_now(transport.share(vector))
    for _ in range(100):
        run_now(shared.average_with((transport.rank + 1) % transport.world_size))
    run_now(transport.count("samples", 1))
    run_now(transport.barrier())
    finish(
        {
            "from": world_rank,
            "rank": transport.rank,
            "world": transport.world_size,
            "losses": losses,
            "averages_lost": averages_lost,
            "sum": float(vector[0]),
            "samples": run_now(transport.count("samples", 0)),
        }
    )
    ulfm.leave(transport)


def until_lost(
    transport: MpiTransport, shared: MpiSharedVector | SocketSharedVector, doing: str, vector: Vector, *, dies: bool
) -> str:
    """Continue until the loss of a rank shows; return how it did."""
    rank, ranks = transport.rank, transport.world_size
    neighbours = sorted({(rank + 1) % ranks, (rank - 1) % ranks})
    out = np.empty_like(vector)
    deadline = time.monotonic() + 40
    try:
        run_now(transport.barrier())
        seconds = 0.05 + 0.2 * random.Random(f"{doing} {rank} of {ranks}").random()
        dies_at = time.monotonic() + seconds if dies else math.inf
        if dies and doing != "average":
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while time.monotonic() < deadline:
            if doing == "all_reduce":
                run_now(transport.all_reduce_sum(out))
            elif doing == "broadcast":
                run_now(transport.broadcast(out))
            elif doing == "barrier":
                run_now(transport.barrier())
            elif doing == "exchange":
                run_now(transport.begin_exchange(vector, neighbours))
            elif average_and_ask(transport, shared, neighbours[0], vector, dies_at=dies_at):
                return "num_lost"
    except Exception as error:
        if ulfm.is_rank_loss(error):
            return "error"
        raise
    raise AssertionError("nothing showed that a rank was lost")


def average_and_ask(
    transport: MpiTransport,
    shared: MpiSharedVector | SocketSharedVector,
    partner: int,
    vector: Vector,
    *,
    dies_at: float,
) -> bool:
    """Average some times, and die at a moment between two averages; returns whether MPI knows of a loss."""
    for _ in range(20):
        run_now(shared.add(vector))
        run_now(shared.average_with(partner))
        if time.monotonic() > dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1e-3)
    with transport.process.turn:
        is_known = transport.process.num_lost() > 0
    if is_known and isinstance(shared, SocketSharedVector):
        # The rank may have died after the last of those averages.
        run_now(shared.average_with(partner))
    return is_known
