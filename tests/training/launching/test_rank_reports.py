"""What becomes of the messages of mpirun and srun."""

from __future__ import annotations

import pytest

from training.launching.rank_reports import told_of_loss

RULE = "-" * 74
KILLED = f"""[host1:17298] plm:ssh: Warning: setpgid(17301,17301) failed in parent with errno=Permission denied(13)
{RULE}
prterun noticed that process rank 1 with PID 17449 on node host2 exited on
signal 9 (Killed).
{RULE}
"""
DAEMON = """------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries.

  Local host:    host1
  Remote host:   host2
  Daemon exit status: 255

------------------------------------------------------------
"""
ABORT = f"""some words of a rank
{RULE}
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 1.
{RULE}
"""


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (KILLED, "prterun noticed that process rank 1 with PID 17449 on node host2 exited on signal 9 (Killed)."),
        (DAEMON, "Local host: host1 Remote host: host2 Daemon exit status: 255"),
        (ABORT, "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 1."),
        ("some words\nrank 1 on host2 is gone\n", "some words rank 1 on host2 is gone"),
        ("", ""),
    ],
)
def test_the_message_of_a_lost_rank_began_in_the_middle_of_that_of_mpirun(log: str, told: str) -> None:
    assert told_of_loss(log).endswith(told)


def test_a_long_log_without_a_message_of_mpirun_gives_its_last_lines_from_their_beginning() -> None:
    told = told_of_loss("".join(f"line {number} {'of a rank ' * 15}\n" for number in range(50)))
    assert told.startswith("line 47 of a rank")
    assert told.endswith(" ...")
    assert len(told) <= 404
