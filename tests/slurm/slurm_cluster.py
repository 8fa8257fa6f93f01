"""A real Slurm for as long as a command takes: virtual nodes on the loopback interface of this machine.

Each has two GPUs as far as Slurm goes, which gives ranks their numbers; there is nothing behind them.

    python tests/slurm/slurm_cluster.py --nodes 4 --cpus 2 sbatch -W slurm/vgg.sbatch --tiny
    python tests/slurm/slurm_cluster.py bash

Needs root, the packages in `PACKAGES`, and no service manager. Everything it writes lies in one temporary folder, and
the daemons are children of this process: they end with it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge libpmix2 libpmix-dev"  # of Debian and Ubuntu; -dev for the pmix plugin
SECONDS = 240  # until all nodes are idle
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits until the credential of its first run has expired, by default two minutes
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SchedulerParameters=sched_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool/%n
# The daemons of all nodes keep files of the same names in TmpFS
TmpFS={folder}/tmp/%n
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=DEFAULT Gres=gpu:2
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=4000
PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
"""
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"  # Slurm only counts them


def missing() -> str:
    """Why there can be no cluster here; empty where there can."""
    if os.geteuid():
        return "Slurm's daemons need root"
    absent = [
        name for name in ("slurmctld", "slurmd", "munged", "srun", "setpriv") if not shutil.which(name, path=PATH)
    ]
    return f"{', '.join(absent)} not found; apt-get install {PACKAGES}" if absent else ""


class Cluster:
    """A running Slurm, to be used in a ``with`` statement.

    Args:
        folder: for its configuration, logs and state; a short path, since it holds a socket.
        nodes: their number.
        cpus: of each.
    """

    def __init__(self, folder: Path, nodes: int, cpus: int) -> None:
        self.folder, self.nodes, self.cpus = folder, nodes, cpus
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}  # for srun and all others
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        port, names = free_ports(self.nodes + 1), [f"n{number}" for number in range(1, self.nodes + 1)]
        for part in ("state", "spool", "tmp"):
            (self.folder / part).mkdir()
        for name in names:
            (self.folder / "spool" / name).mkdir()
            (self.folder / "tmp" / name).mkdir()
        host = socket.gethostname().split(".")[0]
        numbers = {"port": port, "first": port + 1, "last": port + self.nodes, "nodes": self.nodes, "cpus": self.cpus}
        configuration = self.folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.folder, host=host, **numbers))
        (self.folder / "gres.conf").write_text(GPUS)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-c", "-f", str(configuration))
            for name in names:
                self._start("slurmd", "-D", "-N", name, "-f", str(configuration))
            if not wait(self._idle, SECONDS):
                raise RuntimeError(f"not all of {self.nodes} nodes are idle after {SECONDS} s; {self._logs()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End all jobs, then the daemons."""
        if self._daemons:
            self.run("scancel", "--user=root")
            wait(lambda: not self.run("squeue", "--noheader").strip(), 10)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        self._daemons.clear()

    def run(self, *command: str, seconds: float = 120) -> str:
        environment = os.environ | self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
        return done.stdout + done.stderr

    def _start_munge(self) -> None:
        """Munge tells the daemons who sent a message: nobody else on this machine or network may submit jobs."""
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": key} | {name: self.folder / f"munge.{name}" for name in ("socket", "log-file", "pid-file")}
        options = [f"--{name}={path}" for name, path in files.items()]
        self._start("munged", "--foreground", "--force", f"--seed-file={self.folder}/munge.seed", *options)

    def _start(self, *command: str) -> None:
        """Start a daemon in the foreground, one that ends when this process does."""
        environment = os.environ | self.environment | {"PATH": PATH}
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command], env=environment, stdout=log, stderr=log
            )
        self._daemons.append(daemon)

    def _idle(self) -> bool:
        dead = [" ".join(map(str, daemon.args[3:])) for daemon in self._daemons if daemon.poll() is not None]
        if dead:
            raise RuntimeError(f"{dead[0]} has ended; {self._logs()}")
        return self.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(self.nodes)]

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("*log*"))
        return "\n".join(f"{log.name}:\n" + "\n".join(log.read_text().splitlines()[-10:]) for log in logs)


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row, below those that the kernel gives to clients."""
    for first in range(24000, 32000, 100):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise RuntimeError(f"no {count} free ports in a row from 24000 to 32000")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "print the packages that are needed"
    parser.add_argument("--packages", action="version", version=PACKAGES, help=text)
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="virtual nodes (default: 4)")
    parser.add_argument("--cpus", type=int, default=2, metavar="C", help="of each (default: 2)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, with its arguments")
    args = parser.parse_args()
    if reason := missing():
        sys.exit(f"error: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays behind
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        Cluster(Path(folder), args.nodes, args.cpus) as cluster,
    ):
        return subprocess.run(args.command, env=os.environ | cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
