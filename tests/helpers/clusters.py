"""Clusters on the hosts of `network_hosts`, by the commands of docs/clusters: ssh, Spark, SLURM.

All folders but /dev/shm are shared by the hosts, as on a cluster with shared storage. The services
end with the hosts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from network_hosts import Network
from page_commands import CHECKOUT, code_blocks
from ranks import wait_until

SPARK_PAGE: Final = CHECKOUT / "docs" / "clusters" / "spark-standalone.md"
_PAGE_OF_MASTER: Final = "deploy.master.Master"
_PAGE_OF_WORKER: Final = "deploy.worker.Worker"

_SSHD = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user/id_ed25519.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
"""


def missing(*programs: str) -> str:
    """Reason why a part is left out; empty if all programs are here."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    absent = [name for name in programs if shutil.which(name, path=path) is None]
    return f"no {', '.join(absent)} here" if absent else ""


class Ssh:
    """An sshd on each host, and a key that opens them all."""

    def __init__(self, hosts: Network, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        user = folder / "user"
        user.mkdir(parents=True)
        for path in (folder / "host_key", user / "id_ed25519"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(command, check=True, capture_output=True)
        public_key = (folder / "host_key.pub").read_text()
        known_hosts = [f"{name} {public_key}" for name in hosts.names]
        (user / "known_hosts").write_text("".join(known_hosts))
        (folder / "sshd_config").write_text(_SSHD.format(folder=folder))
        for index in range(len(hosts.names)):
            self.start(index)

    def start(self, index: int) -> None:
        """Start the sshd of a host; the keys lie where a user has them."""

        def run(*command: str | Path) -> None:
            self._hosts.run_on_host(index, *map(str, command))

        keys = Path.home() / ".ssh"
        run("mkdir", "-p", keys, "/run/sshd")
        run("mount", "--bind", self._folder / "user", keys)
        for name in (".bashrc", ".profile", ".bash_profile"):
            startup_file = Path.home() / name
            if startup_file.exists():
                # What this user's shell does at its start is no part of the cluster.
                run("mount", "--bind", "/dev/null", startup_file)
        # Without -D it goes to the background.
        log = self._folder / f"sshd-{index}.log"
        run("/usr/sbin/sshd", "-f", self._folder / "sshd_config", "-E", log)


class Standalone:
    """A standalone Spark by the commands of its page: the master on host 0, then the workers."""

    def __init__(self, hosts: Network, folder: Path, *, workers: int) -> None:
        self._hosts, self._folder = hosts, folder
        folder.mkdir()
        self.master = f"spark://{hosts.names[0]}:7077"
        # The page is for a reader in the folder of a checkout.
        (folder / ".venv").symlink_to(sys.prefix)
        self._start(0, _PAGE_OF_MASTER)
        for index in range(1, workers + 1):
            self.start_worker(index)

    def start_worker(self, index: int) -> None:
        """Start the worker of a host, and wait until the master knows it."""
        num_workers = self._num_registered()
        self._start(index, _PAGE_OF_WORKER)
        wait_until(
            lambda: self._num_registered() > num_workers,
            label="the worker is registered",
            seconds=120,
        )

    def _start(self, index: int, service: str) -> None:
        """Start a service by the block of the page that names it, with this host for host2."""
        blocks = ["\n".join(lines) for lines in code_blocks(SPARK_PAGE)]
        block = next(block for block in blocks if service in block)
        commands = block.replace("--host host2", f"--host {self._hosts.names[index]}")
        log = self._folder / f"{service.rpartition('.')[2].lower()}-{index}.log"
        settings = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(self._folder / "work")}
        without_spark = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        script = f"set -e\ncd {self._folder}\n{commands}"
        self._hosts.serve(index, log, "bash", "-c", script, env=without_spark | settings)

    def _num_registered(self) -> int:
        log = self._folder / "master-0.log"
        if not log.exists():
            return 0
        return log.read_text(errors="replace").count("Registering worker")


_SLURM = """
ClusterName=test
SlurmctldHost={head}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
TmpFS={folder}/tmp.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
SchedulerParameters=sched_min_interval=200000
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName={nodes} CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


class Slurm:
    """A SLURM whose nodes are the first hosts; `slurmctld` is on the very first."""

    def __init__(self, hosts: Network, folder: Path, *, nodes: int) -> None:
        self._hosts, self._folder = hosts, folder
        (folder / "state").mkdir(parents=True)
        conf = folder / "slurm.conf"
        names = hosts.names[:nodes]
        conf.write_text(_SLURM.format(head=names[0], folder=folder, nodes=",".join(names)))
        for name in names:
            (folder / f"tmp.{name}").mkdir()
        # The hosts have no control groups of their own; nothing here needs them.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        for path, mode in ((folder, 0o755), (key, 0o600)):
            path.chmod(mode)
        self.environment = {**os.environ, "SLURM_CONF": str(conf)}
        munge_files = {
            "socket": "munge.socket",
            "key-file": "munge.key",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munged.seed",
        }
        options = [f"--{option}={folder / file}" for option, file in munge_files.items()]
        self._start(0, "/usr/sbin/munged", "--foreground", "--force", *options)
        wait_until((folder / "munge.socket").exists, label="munged is up", seconds=10)
        self._start(0, "/usr/sbin/slurmctld", "-D")
        for index, name in enumerate(names):
            self._start(index, "/usr/sbin/slurmd", "-D", "-N", name)
        idle = ["sinfo", "--noheader", "--states=idle", "--Node", "--format=%N"]
        wait_until(
            lambda: len(set(self.run(*idle, check=False).split())) == nodes,
            label="nodes are idle",
            seconds=120,
        )

    def _start(self, index: int, *command: str) -> None:
        log = self._folder / f"{Path(command[0]).name}-{index}.log"
        self._hosts.serve(index, log, *command, env=self.environment)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of SLURM on the first host; returns its output."""
        completed = subprocess.run(
            self._hosts.on_host(0, *command),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or completed.returncode == 0, completed.stderr
        return completed.stdout

    def submit(self, script: Path) -> str:
        """`sbatch`; returns the number of the job, whose output goes to `<script>.out`."""
        return self.run("sbatch", "--parsable", f"--output={script}.out", str(script)).strip()

    def state(self, job: str) -> str:
        description = self.run("scontrol", "--oneliner", "show", "job", job)
        return description.split("JobState=")[1].split()[0]

    def wait(self, job: str, *, seconds: float = 600) -> str:
        """Wait for the end of a job; returns its state."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
        wait_until(lambda: self.state(job) in over, label=f"job {job} is over", seconds=seconds)
        return self.state(job)
