"""Going on without the ranks that were lost: MPI's user-level failure mitigation (`mpirun --with-ft ulfm`).

Where a rank dies, calls of the others on that communicator raise, or would wait for ever; one that has noticed revokes
it, so that all notice, and those that are left make a new, smaller one. Measured with Open MPI 5.0.11 on one host, one
of four ranks killed at a random moment while all did nothing else:

 * `all_reduce_sum`, `barrier` and exchanges raised in all of 60 cases (`broadcast` in 8 of 8), and `survivors` went on;
 * with three such jobs at once on two cores, so that ranks wait for a core, Open MPI ended a second rank in 2 of 180
   jobs of exchanges ("Send error after request freed": a message that was given up), and the others waited for ever;
   with synchronous sends it was 7 of 240, with half a second of waiting before revoking 1 of 180, which tells little.
   `train.stall_seconds` ends such a job;
 * averages under the protocol `locked` hung for ever in all of 20: a lock of a dead rank is never given back;
 * averages under the protocol `additive` went on in 39 of 40, without any error: what is sent to the lost rank is lost
   with it, `num_lost` tells, and the next collective call raises. In the other one they hung, for Open MPI guards each
   accumulation by a lock as well. So ranks that average need a watchdog, whatever the protocol;
 * MPI_Finalize hung in 3 of 48 jobs that had lost a rank, in 7 of 20 that had windows. So `leave` ends the process
   without it, which was well in 99 of 99.
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
    """Whether an error of a transport says that another rank is gone."""
    mpi = load_mpi()
    return isinstance(error, mpi.Exception) and error.Get_error_class() in {
        mpi.ERR_PROC_FAILED,
        mpi.ERR_PROC_FAILED_PENDING,
        mpi.ERR_REVOKED,
    }


def num_lost(transport: MpiTransport) -> int:
    """How many ranks are gone, as far as is known here."""
    with transport.process.turn:
        return transport.process.num_lost()


def survivors(transport: MpiTransport) -> MpiTransport:
    """A transport of those that are left, with ranks from 0 again; all of them together.

    The old transport, its shared vectors and its global clock must not be used any more; they are never given back,
    since that takes all ranks. If one more is lost meanwhile, the new transport raises as the old one did.
    """
    with transport.process.turn:
        if not transport.comm.Is_revoked():
            transport.comm.Revoke()
        left = cast("MPI.Intracomm", transport.comm.Shrink())
    return MpiTransport(left, protocol=transport.protocol, overlap=transport.overlap)


def leave(transport: MpiTransport) -> NoReturn:
    """End this process with success, when all survivors are ready to."""
    transport.process.wait_for_all()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
