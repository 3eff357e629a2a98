"""Continues without lost ranks: MPI's user-level failure mitigation (`mpirun --with-ft ulfm`).

When a rank dies, calls of the others on that communicator raise or wait forever. The first rank that notices revokes
the communicator, so that all notice, and the survivors make a new, smaller one. Measured with Open MPI 5.0.11 on one
host; one of four ranks was killed at a random moment while all repeated one kind of call:

 * `all_reduce_sum`, `barrier` and exchanges raised in 60 of 60 cases (`broadcast` in 8 of 8), and the survivors
   continued;
 * with three such jobs together on two cores, so that ranks wait for a core, Open MPI ended a second rank in 2 of 180
   jobs of exchanges ("Send error after request freed", about an abandoned message), and the others waited forever.
   With synchronous sends this happened in 7 of 240 jobs, with half a second of waiting before the revocation in 1 of
   180, which says little. `train.stall_seconds` ends such a job;
 * averages under the protocol `locked` waited forever in 20 of 20 cases: the lock of a dead rank is never released;
 * averages under the protocol `additive` continued in 39 of 40 cases, without any error: messages to the lost rank are
   lost, `MpiProcess.num_lost` counts it, and the next collective call raises. In one case they waited forever, since
   Open MPI also guards each accumulation by a lock. So ranks that average need a watchdog under both protocols;
 * MPI_Finalize waited forever in 3 of 48 jobs with a lost rank, and in 7 of 20 with windows. So `leave` ends the
   process without it, which worked in 99 of 99 cases.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn, cast

from training.transports.loading import load_mpi
from training.transports.mpi import MpiTransport

if TYPE_CHECKING:
    from mpi4py import MPI


def is_rank_loss(error: BaseException) -> bool:
    """Whether an error of a transport means the loss of another rank."""
    mpi = load_mpi()
    return isinstance(error, mpi.Exception) and error.Get_error_class() in {
        mpi.ERR_PROC_FAILED,
        mpi.ERR_PROC_FAILED_PENDING,
        mpi.ERR_REVOKED,
    }


def survivors(transport: MpiTransport) -> MpiTransport:
    """A transport of the surviving ranks, renumbered from 0; all of them call it together.

    The old transport, its shared vectors and its global clock must not be used any more. They are never freed, since
    that needs all ranks. If another rank is lost meanwhile, the new transport raises as the old one did.
    """
    with transport.process.turn:
        if not transport.comm.Is_revoked():
            transport.comm.Revoke()
        left = cast("MPI.Intracomm", transport.comm.Shrink())
    return MpiTransport(left, protocol=transport.protocol, overlap=transport.overlap, network=transport.network)


def leave(transport: MpiTransport) -> NoReturn:
    """End this process with success when all survivors are ready."""
    transport.process.wait_for_all()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
