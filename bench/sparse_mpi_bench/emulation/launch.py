"""MPI jobs on emulated hosts: all messages between them are sent over TCP through the hosts' links."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sparse_mpi.cli.launch.environment import outside_of_jobs
from sparse_mpi.cli.launch.find import MPICH, OPEN_MPI, Flavour, Mpiexec, find_mpiexec, survival
from sparse_mpi_bench.emulation.hosts import BRIDGE, NETWORK, SWITCH, Hosts

SUBNET = f"{NETWORK}.0/24"
GRACE = 5.0  # seconds from the request to end a job until it is killed
OUT_OF_TIME = 124  # exit code of a job that ran past its limit, as that of timeout(1)

AGENT, RULES = "agent", "allreduce-rules"  # files in the hosts' folder that launchers read
# Launchers run it in place of ssh: AGENT [OPTIONS] ADDRESS COMMAND... Open MPI does not quote the folder of its own
# installation: SPACED, where it has a space, is called PLAIN, a link to it
AGENT_PROGRAM = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
number=${1##*.}
shift
set -- "host$number" "$(printf %s "$*" | sed 's|SPACED|PLAIN|g')"
exec ip netns exec PREFIX-$number unshare --uts sh -c 'echo "$0" >/proc/sys/kernel/hostname && eval "$1"' "$@"
"""
# Open MPI's own choice for large dense sums over TCP takes up to twice as long as its ring. The file says: one
# collective, allreduce (2); one rule, from 1 rank; two sizes: recursive doubling (3) from 0 bytes, ring (4) from 64 KiB
ALLREDUCE_RULES = "1\n2\n1\n1\n2\n0 3 0 0\n65536 4 0 0\n"
# Where the user has not set them; the hosts share this machine's cores, so each rank computes on one thread
DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Torch's gloo looks up the host's name otherwise, which does not resolve; its store does in any case, and warns
    "GLOO_SOCKET_IFNAME": "eth0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def open_mpi(hosts: Hosts) -> list[str]:
    """Return options of Open MPI's mpiexec: TCP alone, and messages up to 1 MiB sent at once, without a round trip."""
    # Waiting ranks yield: with one slot a host Open MPI does not see that they share cores, and spins. For the same
    # reason a barrier is the one with the fewest messages, by way of the first rank (1)
    at = ",".join(f"{hosts.address(number)}:{hosts.ranks}" for number in range(1, hosts.count + 1))
    launcher = {"plm": "ssh", "plm_ssh_agent": str(hosts.folder / AGENT), "prte_if_include": SUBNET}
    library = {
        "pml": "ob1",
        "btl": "self,tcp" if hosts.ranks == 1 else "self,sm,tcp",
        "btl_tcp_if_include": SUBNET,
        "btl_tcp_eager_limit": "1048576",
        "btl_tcp_max_send_size": "1048576",
        "mpi_yield_when_idle": "1",
        "coll": "^han,cuda",
        "coll_tuned_use_dynamic_rules": "1",
        "coll_tuned_dynamic_rules_filename": str(hosts.folder / RULES),
        "coll_tuned_barrier_algorithm": "1",
    }
    options = [("--prtemca", *pair) for pair in launcher.items()] + [("--mca", *pair) for pair in library.items()]
    return [
        "-n",
        str(hosts.count * hosts.ranks),
        "-H",
        at,
        "--bind-to",
        "none",
        *(word for option in options for word in option),
    ]


def mpich(hosts: Hosts) -> list[str]:
    """Return options of MPICH's mpiexec (Hydra): TCP through libfabric, with dense sums as it chooses."""
    at = ",".join(hosts.address(number) for number in range(1, hosts.count + 1))
    launcher = ["-launcher", "rsh", "-launcher-exec", str(hosts.folder / AGENT), "-iface", BRIDGE]
    library = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
    options = [word for pair in library.items() for word in ("-genv", *pair)]
    return ["-n", str(hosts.count * hosts.ranks), "-ppn", str(hosts.ranks), "-hosts", at, *launcher, *options]


Options = Callable[[Hosts], list[str]]
MPIS: dict[Flavour, Options] = {OPEN_MPI: open_mpi, MPICH: mpich}


def find_launcher() -> Mpiexec:
    """Return the mpiexec of the MPI that mpi4py loads. Raises RuntimeError: there is none for emulated hosts."""
    found = find_mpiexec(environment())
    options_for(found.library.flavour)
    return found


def options_for(flavour: Flavour) -> Options:
    """Return the function for the options of an MPI's mpiexec. Raises RuntimeError: it cannot be held to the links."""
    if flavour not in MPIS:
        known = " or ".join(one.name for one in MPIS)
        raise RuntimeError(f"emulated hosts need {known}, but mpi4py loads {flavour.name}")
    return MPIS[flavour]


def environment() -> dict[str, str]:
    """Return the ranks' environment: ours without a launcher's variables, and the `sparse_mpi` that runs here."""
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return DEFAULTS | outside_of_jobs(os.environ) | {"PYTHONPATH": os.pathsep.join(paths)}


def program(command: Sequence[str]) -> list[str]:
    """Return the command line of a rank: Python runs a path that ends in .py, ``python -m sparse_mpi`` all else."""
    file = command[0].endswith(".py")
    return [sys.executable, *([] if file else ["-m", "sparse_mpi"]), *command]


def agent(hosts: Hosts, installed: Path) -> str:
    """Return the program that stands in place of ssh, for an MPI that is ``installed`` in that folder."""
    plain = hosts.folder / "mpi"
    plain.unlink(missing_ok=True)
    plain.symlink_to(installed)
    spaced = re.sub(r"([].[*^$\\|])", r"\\\1", str(installed))
    return AGENT_PROGRAM.replace("PREFIX", hosts.prefix).replace("SPACED", spaced).replace("PLAIN", str(plain))


def run(
    hosts: Hosts,
    launcher: Mpiexec,
    command: Sequence[str],
    seconds: float,
    elastic: bool = False,
    meanwhile: Iterable[float] = (),
) -> int:
    """Run ``command`` (see `program`) with a rank on every host, for at most ``seconds``; return its exit code.

    However this ends, all ranks have ended. ``meanwhile`` is asked for its next item at each second that it yields.
    Raises RuntimeError: ranks of an ``elastic`` job cannot survive.
    """
    flavour = launcher.library.flavour
    survive = survival(flavour) if elastic else ()
    (hosts.folder / AGENT).write_text(agent(hosts, Path(launcher.file).parents[1]))
    (hosts.folder / AGENT).chmod(0o700)
    (hosts.folder / RULES).write_text(ALLREDUCE_RULES)
    line = [launcher.file, *survive, *options_for(flavour)(hosts), *program(command)]
    job = subprocess.Popen(
        hosts.inside(SWITCH, *line),
        env=environment() | {"TMPDIR": str(hosts.folder)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C then reaches it through us, in order
    )
    try:
        code = wait(job, seconds, meanwhile)
    except subprocess.TimeoutExpired:
        print(f"the command ran past {seconds:g} s and was stopped; --timeout sets another limit", file=sys.stderr)
        return OUT_OF_TIME
    finally:
        stop(job)
    return code if code >= 0 else 128 - code


def wait(job: subprocess.Popen[bytes], seconds: float, meanwhile: Iterable[float]) -> int:
    """Return the exit code. ``meanwhile`` is iterated, see `run`. Raises TimeoutExpired past ``seconds``."""
    start = time.monotonic()
    for second in meanwhile:
        try:
            return job.wait(max(0.0, start + min(second, seconds) - time.monotonic()))
        except subprocess.TimeoutExpired:
            if second >= seconds:
                raise
    return job.wait(max(0.0, start + seconds - time.monotonic()))


def stop(job: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and its descendants: kindly at first, then for good."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        if job.poll() is not None:
            return
        os.killpg(job.pid, number)
        try:
            job.wait(patience)
        except subprocess.TimeoutExpired:
            continue
