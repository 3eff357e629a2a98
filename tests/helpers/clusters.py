"""Clusters on the hosts of `network_hosts`, by the commands of docs/site.md: ssh, Spark, SLURM.

All folders but /dev/shm are shared by the hosts, as on a cluster with shared storage. The services
end with the hosts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from network_hosts import Network
from page_commands import SITE_PAGE, block_with
from ranks import wait_until

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
#: The shares of a host in the page's command of a worker.
_WORKER_SHARES: Final = "--cores 1 --memory 1200m"

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
        # The page is for a reader in the folder of a checkout.
        (folder / ".venv").symlink_to(sys.prefix)
        self._start(0, "master", _page_commands(_MASTER, hosts.names[0]))
        for index in range(1, workers + 1):
            self.start_worker(index)

    def start_worker(
        self, index: int, *, shares: str = _WORKER_SHARES, entry: Sequence[str] = ()
    ) -> str:
        """Start the worker of a host, and wait until the master knows it.

        Args:
            index: The host.
            shares: Its arguments for cores and memory, instead of those of the page.
            entry: Words before its command line.

        Returns:
            What the master says about the worker.
        """
        num_workers = len(self._log_lines("Registering worker"))
        commands = _page_commands(_WORKER, self._hosts.names[index])
        assert _WORKER_SHARES in commands
        self._start(index, "worker", commands.replace(_WORKER_SHARES, shares), entry)
        wait_until(
            lambda: len(self._log_lines("Registering worker")) > num_workers,
            label="the worker is registered",
            seconds=120,
        )
        return self._log_lines("Registering worker")[-1]

    def num_executors_launched(self, index: int) -> int:
        """Number of executors that the master has ever started on a host."""
        name = f"-{self._hosts.names[index]}-"
        launches = self._log_lines("Launching executor")
        return sum(name in line for line in launches)

    def _start(self, index: int, service: str, commands: str, entry: Sequence[str] = ()) -> None:
        """Start a service of a host by some commands of a shell."""
        log = self._folder / f"{service}-{index}.log"
        settings = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(self._folder / "work")}
        without_spark = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        script = f"set -e\ncd {self._folder}\n{commands}"
        self._hosts.serve(index, log, *entry, "bash", "-c", script, env=without_spark | settings)

    def _log_lines(self, words: str) -> list[str]:
        """Lines of the master's log that hold some words."""
        log = self._folder / "master-0.log"
        if not log.exists():
            return []
        return [line for line in log.read_text(errors="replace").splitlines() if words in line]


def _page_commands(service: str, host: str) -> str:
    """The commands of the page that start a service of Spark, for a host."""
    block = block_with(SITE_PAGE, service)
    lines = [line for line in block if "spark-class" not in line or service in line]
    return "\n".join(lines).replace("--host host2", f"--host {host}")


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
TaskPlugin={task_plugin}
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
KillWait=2
SchedulerParameters=sched_min_interval=200000
SlurmctldTimeout=30
SlurmdTimeout=30
GresTypes=gpu
NodeName={nodes} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} RealMemory=4000 Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


_MEMORY_CGROUPS: Final = Path("/sys/fs/cgroup/memory")
_CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""


class Slurm:
    """A SLURM whose nodes are the first hosts; `slurmctld` is on the very first.

    Nodes of several CPUs can bind tasks to them.
    """

    def __init__(self, hosts: Network, folder: Path, *, nodes: int, cpus: int = 1) -> None:
        self._hosts, self._folder = hosts, folder
        (folder / "state").mkdir(parents=True)
        conf = folder / "slurm.conf"
        names = hosts.names[:nodes]
        #: Whether SLURM puts jobs into cgroups of their `--mem`; with version 2 it needs systemd.
        self.limits_memory = _MEMORY_CGROUPS.is_dir()
        task_plugin = "task/none"
        if self.limits_memory:
            task_plugin = "task/cgroup"
            for index in range(nodes):
                hosts.show_cgroups(index)
        if cpus > 1:
            task_plugin = "task/affinity"
        text = _SLURM.format(
            head=names[0],
            folder=folder,
            nodes=",".join(names),
            cpus=cpus,
            task_plugin=task_plugin,
        )
        conf.write_text(text)
        for name in names:
            (folder / f"tmp.{name}").mkdir()
        (folder / "cgroup.conf").write_text(_CGROUPS)
        # A stand-in: SLURM asks for a file of each GPU.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
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

    def submit(self, script: Path, *options: str) -> str:
        """`sbatch`; returns the number of the job, whose output goes to `<script>.out`.

        Options replace those of the script.
        """
        command = ["sbatch", "--parsable", f"--output={script}.out", *options, str(script)]
        return self.run(*command).strip()

    def remove_cgroups(self) -> None:
        """Remove the cgroups of the nodes, which SLURM leaves empty."""
        for name in self._hosts.names:
            top = _MEMORY_CGROUPS / f"slurm_{name}"
            folders = [path for path in top.rglob("*") if path.is_dir()]
            for folder in [*sorted(folders, reverse=True), top]:
                # It is busy if a test failed during a job.
                with suppress(OSError):
                    folder.rmdir()

    def description(self, job: str) -> str:
        """What SLURM says about a job, in one line."""
        return self.run("scontrol", "--oneliner", "show", "job", job)

    def minutes(self, job: str) -> int:
        """Whole minutes for which a job has run."""
        # Such as 00:12:05.
        run_time = self.description(job).split("RunTime=")[1].split()[0]
        hours, minutes, _ = map(int, run_time.split(":"))
        return 60 * hours + minutes

    def state(self, job: str) -> str:
        return self.description(job).split("JobState=")[1].split()[0]

    def wait(self, job: str, *, seconds: float = 600) -> str:
        """Wait for the end of a job; returns its state."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        wait_until(lambda: self.state(job) in over, label=f"job {job} is over", seconds=seconds)
        return self.state(job)
