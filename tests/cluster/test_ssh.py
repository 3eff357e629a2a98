"""Open MPI over hosts that ssh connects; between them is TCP."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cluster_runs import LONG, AddRow, HostRuns, LocalResults, finished_output
from clusters import Ssh, missing
from network_hosts import Network
from training_runs import flat_weights, records, summary

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        bool(missing("sshd", "ssh", "ssh-keygen")), reason="no sshd here (Debian: openssh-server)"
    ),
]

SLOWMO = "train.slowmo.tau=6"
METHODS = ("ar-sgd", "ad-psgd", "swarm-sgd")
#: ssh notices a silent host within seconds instead of a minute.
QUICK = {
    "PRTE_MCA_plm_ssh_args": "-o ConnectTimeout=3 -o ServerAliveInterval=1 -o ServerAliveCountMax=3"
}


@pytest.fixture(scope="module")
def ssh(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    return Ssh(hosts, tmp_path_factory.mktemp("ssh") / "files")


def on_hosts(hosts: Network, folder: Path, local: LocalResults, *, count: int = 2) -> HostRuns:
    """Trainings over the first hosts, started on the first."""
    hostfile = folder / "hosts.txt"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in hosts.names[:count]))
    train = {"workers": count, "launcher_args": ["--hostfile", str(hostfile)]}
    runs = HostRuns(hosts, folder, env=QUICK, train=train)
    local.lend(runs.run_dir, "ingest", "features")
    return runs


#: With and without SlowMo. Methods that do not wait train until their losses agree: those of six
#: runs each on one machine lie within 4 % of each other, with SlowMo within 17 %.
CASES = [
    (f"train.algorithm={name}", *more, f"train.epochs={3 if name == 'ar-sgd' else 20}")
    for name in METHODS
    for more in ((), (SLOWMO,))
]


@pytest.mark.parametrize(
    ("count", "overrides"),
    [*((2, case) for case in CASES), *((4, case) for case in CASES[::2])],
    ids=str,
)
def test_methods_train_over_two_and_four_hosts(
    hosts: Network,
    ssh: Ssh,
    local: LocalResults,
    tmp_path: Path,
    add_row: AddRow,
    count: int,
    overrides: tuple[str, ...],
) -> None:
    runs = on_hosts(hosts, tmp_path, local, count=count)
    runs.run("train", sets=overrides)
    workers = f"train.workers={count}"
    local.train([(*each, workers) for each in CASES])
    current, reference = runs.version("train") / "hlf", local.trained(*overrides, workers)
    ours, theirs = summary(current), summary(reference)
    assert ours["samples"] == theirs["samples"]
    epochs = int(overrides[-1].partition("=")[2])
    assert [len(record) for record in records(current)] == [epochs] * count
    if "ar-sgd" in overrides[0]:
        # The order of the sums may differ.
        np.testing.assert_allclose(
            flat_weights(current), flat_weights(reference), rtol=1e-3, atol=1e-4
        )
        result = "the same weights within rounding"
    else:
        assert all(
            rank["averages_begun"] + rank["averages_received"] > 0 for rank in ours["per_rank"]
        )
        close = 0.3 if SLOWMO in overrides else 0.1
        assert ours["best_val_loss"] == pytest.approx(theirs["best_val_loss"], rel=close)
        result = f"validation loss {ours['best_val_loss']:.3f}, there {theirs['best_val_loss']:.3f}"
    name = overrides[0].partition("=")[2] + (" with SlowMo" if SLOWMO in overrides else "")
    add_row(f"ssh, {count} hosts", f"train, {name}", f"the same number of events; {result}")


#: A word in the command line, and the name, of what is killed on the second host.
KILLED = {"rank": ("rank_process", "python"), "daemon": ("prted", "prted")}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        # The survivors may end before mpirun has said anything.
        (
            "rank",
            r"a rank was lost \(.*(process rank 1 .* on node host2 exited on signal 9|peer process .* host2)",
        ),
        # On a busy machine mpirun may end without a word.
        (
            "daemon",
            r"a rank was lost \(.*((daemon|peer process) .*host2|mpirun itself ended with 255)",
        ),
        ("host", r"a rank was lost \(.*host2 not responding"),
    ],
)
def test_training_continues_after_a_rank_daemon_or_host_is_lost(
    hosts: Network,
    ssh: Ssh,
    local: LocalResults,
    tmp_path: Path,
    add_row: AddRow,
    label: str,
    message: str,
) -> None:
    runs = on_hosts(hosts, tmp_path, local)
    process = runs.start("train", sets=LONG)
    runs.await_checkpoint()
    if label == "host":
        hosts.switch_off(1)
    else:
        word, name = KILLED[label]
        victims = [process for process in hosts.processes(1, word) if process.name() == name]
        victims[0].kill()
    output = " ".join(finished_output(process, fails=label == "host").split())
    assert re.search(message, output), output
    if label == "host":
        # Nothing can start there until the host is back.
        assert "and then the ranks did not start" in output
        assert "host2" in output.partition("did not start")[2]
        hosts.switch_on(1)
        ssh.start(1)
        repeated = runs.run("train", sets=LONG)
        assert "training continues from the checkpoint" in repeated
    current = runs.version("train") / "hlf"
    np.testing.assert_array_equal(flat_weights(current), flat_weights(local.trained(*LONG)))
    run = f"train, ar-sgd; kill -9 of a {label}"
    comparison = "continued from the checkpoint; the same weights"
    if label == "host":
        run = "train, ar-sgd; a host without power"
        comparison = "the same command continued when the host was back; the same weights"
    add_row("ssh, 2 hosts", run, comparison)


def test_a_run_folder_that_a_host_does_not_see_is_refused(
    hosts: Network, ssh: Ssh, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    runs = on_hosts(hosts, tmp_path, local)
    hosts.run_on_host(1, "mount", "-t", "tmpfs", "tmpfs", str(runs.run_dir))
    try:
        message = " ".join(runs.run("train", fails=True).split())
    finally:
        hosts.run_on_host(1, "umount", str(runs.run_dir))
    assert f"host2 does not see {runs.run_dir}" in message
    assert "storage that all hosts share" in message
    add_row(
        "ssh, 2 hosts",
        "train; run_dir is not on shared storage",
        "refused at the start; names the host",
    )
