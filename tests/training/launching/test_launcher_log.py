"""The cause of a loss in the log of mpirun, srun or the driver of agents."""

from __future__ import annotations

import pytest

from training.launching.launcher_log import drop_noise, names_signal, parse_rank_loss

RULE = "-" * 74
SETPGID = "[host1:17298] plm:ssh: Warning: setpgid(17301,17301) failed in parent with errno=Permission denied(13)"
KILLED = f"""{SETPGID}
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
ABORT = f"""{RULE}
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
  Proc: [[8842,1],0]
  Errorcode: 1

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{RULE}
"""
PEER = f"""{RULE}
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

Although this local MPI process will likely now behave unpredictably
(it may even hang or crash), the root cause of this problem is the
failure of the peer -- that is what you need to investigate.  For
example, there may be a core file that you can examine.  More
generally: such peer hangups are frequently caused by application bugs
or other external events.

  Local host: host1
  Local PID:  8437
  Peer hostname: host2
{RULE}
"""
LOST_DAEMON = f"""{RULE}
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host1-17@0,0] on node host1
  Remote daemon: [prterun-host1-17@0,1] on node host2
{RULE}
"""
SILENT = "Timeout, server host2 not responding."
EXECUTOR = "the executor on host3 (10.0.0.3) is lost: its connection ended before the program"
SRUN = "srun: error: host2: task 1: Killed"
#: What srun prints when it ends all ranks after the first that ended badly.
BYSTANDERS = """srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-host1: error: *** STEP 1.0 ON host1 CANCELLED AT 2026-11-29T11:07:50 ***
srun: error: host1: tasks 0,3: Terminated
srun: error: host3: task 2: Killed
srun: Force Terminated StepId=1.0
"""
#: What SLURM prints when MPI notices the loss of a rank before srun does.
NOTICED_BY_MPI = """srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
slurmstepd-host1: error: *** STEP 1.0 ON host1 CANCELLED AT 2026-11-29T11:08:41 ***
"""
#: Then the other ranks end by themselves.
EXIT_OF_OTHER = "srun: error: host1: task 0: Exited with exit code 14"
EXIT_CODE = "srun: error: host2: task 1: Exited with exit code 1"
NO_MODULE = "ModuleNotFoundError: No module named 'mpi4py'"
NO_LIBRARY = "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open it"
NO_MEMORY = "srun: error: host2: task 1: Out Of Memory"
CRASH = "srun: error: host2: task 1: Segmentation fault (core dumped)"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            KILLED,
            "prterun noticed that process rank 1 with PID 17449 on node host2 exited on signal 9 (Killed).",
        ),
        (DAEMON, "Local host: host1 Remote host: host2 Daemon exit status: 255"),
        ("some lines\nrank 1 on host2 is gone\n", "some lines rank 1 on host2 is gone"),
        ("", ""),
        (ABORT + KILLED, "on node host2 exited on signal 9 (Killed)."),
        (f"{ABORT}{PEER}{SETPGID}\n{SILENT}\n{LOST_DAEMON}", SILENT),
        (f"{ABORT}{LOST_DAEMON}{EXECUTOR}\n", EXECUTOR),
        (ABORT + PEER + LOST_DAEMON, "on node host2"),
        (
            ABORT + PEER,
            "unexpectedly disconnected. Local host: host1 Local PID: 8437 Peer hostname: host2",
        ),
        (f"{EXIT_CODE}\n{BYSTANDERS}", EXIT_CODE),
        (f"Traceback\n{NO_MODULE}\n{EXIT_CODE}\n{BYSTANDERS}", NO_MODULE),
        (f"{EXIT_CODE}\n{BYSTANDERS}{NO_MODULE}\n", NO_MODULE),
        (f"{NO_LIBRARY}\n{EXIT_CODE}\n{BYSTANDERS}", NO_LIBRARY),
        (f"{SRUN}\n{BYSTANDERS}", SRUN),
        (f"{NOTICED_BY_MPI}{SRUN}\n{EXIT_OF_OTHER}\n", SRUN),
        (f"{NOTICED_BY_MPI}{EXIT_CODE}\n{EXIT_OF_OTHER}\n", EXIT_CODE),
        (f"{EXIT_OF_OTHER}\n{BYSTANDERS}{CRASH}\n", CRASH),
        (f"{ABORT}srun: error: Node failure on host2\n", "srun: error: Node failure on host2"),
        (
            f"{ABORT}ssh: connect to host host2 port 22: No route to host\n{DAEMON}",
            "No route to host",
        ),
        (f"{SETPGID}\n{ABORT}", "exactly when Open MPI kills them."),
        (f"{SETPGID}\n", ""),
    ],
)
def test_the_cause_of_a_loss_comes_before_its_consequences(log: str, cause: str) -> None:
    assert parse_rank_loss(log).endswith(cause)


@pytest.mark.parametrize(
    ("log", "is_crash"),
    [
        (f"{CRASH}\n{BYSTANDERS}", True),
        (f"{NOTICED_BY_MPI}{SRUN}\n{EXIT_OF_OTHER}\n", True),
        (f"{EXIT_OF_OTHER}\n{BYSTANDERS}{CRASH}\n", True),
        (KILLED, True),
        (f"{NO_MODULE}\n{EXIT_CODE}\n{BYSTANDERS}", False),
        (f"{NO_MEMORY}\n{BYSTANDERS}", False),
        (f"{NOTICED_BY_MPI}{EXIT_CODE}\nsrun: error: host1: task 0: Killed\n", False),
    ],
    ids=["crash", "killed", "crash noticed by MPI", "mpirun", "no module", "no memory", "abort"],
)
def test_a_rank_that_srun_ends_after_another_is_no_crash(log: str, *, is_crash: bool) -> None:
    assert names_signal(log) is is_crash


def test_a_long_log_without_a_message_of_mpirun_gives_its_last_lines_from_their_beginning() -> None:
    lines = [f"line {index} {'of a rank ' * 15}\n" for index in range(50)]

    cause = parse_rank_loss("".join(lines))

    assert cause.startswith("line 47 of a rank")
    assert cause.endswith(" ...")
    assert len(cause) <= 404


def test_noise_is_no_output_of_a_rank() -> None:
    log = f"{SETPGID}\n\nKilled by signal 15.\nImportError: no torch\n"

    assert drop_noise(log) == "ImportError: no torch"
