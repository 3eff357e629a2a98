"""Measures the network between ranks.

Every rank runs `python -m training.launching.message_probe NETWORK SIZE ...`, with sizes in bytes.
Rank 0 prints one line of JSON: {"measured": [...]}, a list of `Measurement`. A rank that fails
prints {"error": ...} and ends all ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, Final

import numpy as np

from training.launching.measurement import ALL_REDUCE, PUSH, Measurement
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport
from training.transports.pushes import Shard, ShardSelection

#: Time for the repetitions of an operation [s], and their limits.
_SECONDS: Final = 0.4
_MIN_REPETITIONS: Final = 7
_MAX_REPETITIONS: Final = 300


def answer(transport: MpiTransport, measured: Callable[[], Iterable[Any]]) -> None:
    """Call `measured`, print its measurements if this rank is the first, and close the transport.

    A rank that fails prints the error, and ends all ranks.
    """
    try:
        measurements = list(measured())
        if transport.rank == 0:
            sys.stdout.write(json.dumps({"measured": measurements}) + "\n")
        transport.close()
    except BaseException as error:  # noqa: BLE001 - after any error, the other ranks must not wait forever
        sys.stdout.write(json.dumps({"error": str(error) or type(error).__name__}) + "\n")
        sys.stdout.flush()
        transport.abort()


def main(argv: list[str]) -> None:
    """Measure all-reduces, averages and pushes of vectors of these sizes."""
    transport = MpiTransport(network=argv[1] or None)

    def measured() -> Iterator[dict[str, Any]]:
        for nbytes in map(int, argv[2:]):
            for measure in (_all_reduce, _average, _push):
                yield measure(transport, nbytes)._asdict()

    answer(transport, measured)


def _all_reduce(transport: MpiTransport, nbytes: int) -> Measurement:
    """Measure sums of a vector over all ranks; a number has 4 bytes."""
    vector = np.zeros(nbytes // 4, np.float32)
    seconds = _median_seconds(transport, lambda: run_now(transport.all_reduce_sum(vector)))
    return Measurement(ALL_REDUCE, transport.world_size, nbytes, seconds)


def _average(transport: MpiTransport, nbytes: int) -> Measurement:
    """Measure the averages that rank 0 makes with rank 1."""
    vector = np.zeros(nbytes // 4, np.float32)
    shared = run_now(transport.shared_vector(vector))

    def average() -> None:
        if transport.rank == 0:
            run_now(shared.average_with(1))

    seconds = _median_seconds(transport, average)
    run_now(shared.close())
    operation = "sockets"
    if transport.process.is_one_host:
        operation = "memory"
    return Measurement(operation, transport.world_size, nbytes, seconds)


def _push(transport: MpiTransport, nbytes: int) -> Measurement:
    """Measure the pushes that rank 0 makes to a shard of another rank.

    The server's vector has two shards of `nbytes`. Rank 0 changes the second, on another rank.
    """
    change = np.zeros(2 * (nbytes // 4), np.float32)
    server = run_now(transport.parameter_server(change, shards=2))

    def add(shard: Shard) -> None:
        shard.vector += change[shard.elements]

    def push() -> None:
        if transport.rank == 0:
            run_now(server.push(add, ShardSelection(1)))

    seconds = _median_seconds(transport, push)
    run_now(server.close())
    return Measurement(PUSH, transport.world_size, nbytes, seconds)


def _median_seconds(transport: MpiTransport, operation: Callable[[], Any]) -> float:
    """Return the median time of an operation over its repetitions, of the slowest rank [s].

    All ranks call this together. The second call of the operation decides how often it is repeated,
    so that the repetitions take about 0.4 s.
    """
    run_now(transport.barrier())
    # The first call may open connections, so it is not measured.
    operation()
    started = perf_counter()
    operation()
    call_seconds = perf_counter() - started
    repetitions = np.clip(_SECONDS / call_seconds, _MIN_REPETITIONS, _MAX_REPETITIONS)
    # All ranks repeat as often as rank 0.
    repetitions_of_rank_0 = np.array([repetitions])
    run_now(transport.broadcast(repetitions_of_rank_0))
    seconds = []
    for _ in range(int(repetitions_of_rank_0[0])):
        started = perf_counter()
        operation()
        seconds.append(perf_counter() - started)
    run_now(transport.barrier())
    medians = np.zeros(transport.world_size)
    # A rank that begins one call early waits longer in it, and begins the next late. So the times
    # of two calls in a row are averaged.
    means_of_two = np.convolve(seconds, [0.5, 0.5], "valid")
    medians[transport.rank] = np.median(means_of_two)
    run_now(transport.all_reduce_sum(medians))
    return float(medians.max())


if __name__ == "__main__":
    main(sys.argv)
