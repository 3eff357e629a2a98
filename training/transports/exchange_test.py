"""What `doctor` tries: one-sided MPI, and averages through MPI's windows and through sockets with a computing partner.

`mpirun -n 2 python -m training.transports.exchange_test OVERLAP NETWORK` prints the result as one line of JSON. A rank
that fails prints {"error": ...} and ends all ranks.
"""

from __future__ import annotations

import json
import statistics
import sys
from time import perf_counter
from typing import Any, Final, Literal, cast

import numpy as np

from training.errors import LaunchError
from training.transports.basics import run_now
from training.transports.loading import load_mpi
from training.transports.mpi import MpiTransport, Overlap
from training.transports.self_test import self_test

#: Parameters of the network of the high-level features.
PARAMETERS: Final = 2013
#: Time of a step between averages [s], and the time for all steps.
_STEP_SECONDS: Final = 1e-3
_SECONDS: Final = 0.3


def main(argv: list[str]) -> None:
    """Test and measure, all ranks together; rank 0 prints."""
    overlap, network = cast("Overlap", argv[1]), argv[2] or None
    comm = load_mpi().COMM_WORLD
    try:
        found: dict[str, Any] = self_test(comm)._asdict()
        auto = MpiTransport(overlap=overlap, network=network)
        found |= {"auto": auto.protocol, "overlap": auto.overlap}
        auto.close()
        if not found["problems"]:
            found["averages"] = {way: _seconds(way, overlap, network) for way in ("locked", "sockets")}
        if comm.rank == 0:
            sys.stdout.write(json.dumps(found) + "\n")
    except BaseException as error:  # noqa: BLE001 - after any error, the other ranks must not wait forever
        sys.stdout.write(json.dumps({"error": str(error) or type(error).__name__}) + "\n")
        sys.stdout.flush()
        comm.Abort(1)


def _seconds(way: Literal["locked", "sockets"], overlap: Overlap, network: str | None) -> float | str:
    """Median time of an average of rank 0 with rank 1, which computes [s]; or the reason why there is none."""
    transport = MpiTransport(protocol=way, overlap=overlap, network=network)
    try:
        shared = run_now(transport.share(np.zeros(PARAMETERS, np.float32)))
    except LaunchError as error:
        return str(error)
    out, times = np.empty(PARAMETERS, np.float32), []
    if transport.rank == 0:
        # The first one loads machine code.
        run_now(shared.average_with(1))
    run_now(transport.barrier())
    deadline = perf_counter() + _SECONDS
    while perf_counter() < deadline:
        _compute()
        run_now(shared.read(out))
        if transport.rank == 0:
            started = perf_counter()
            run_now(shared.average_with(1))
            times.append(perf_counter() - started)
    run_now(transport.barrier())
    run_now(shared.close())
    transport.close()
    return statistics.median(times) if times else 0.0


def _compute() -> None:
    """A step outside MPI."""
    numbers, end = np.ones(1000), perf_counter() + _STEP_SECONDS
    while perf_counter() < end:
        np.sqrt(numbers, out=numbers)


if __name__ == "__main__":
    main(sys.argv)
