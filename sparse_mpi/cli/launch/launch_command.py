"""The command line that starts a job, and the environment that goes with it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sparse_mpi.cli.launch import environment as surroundings
from sparse_mpi.cli.launch.find import Flavour, Launch, LaunchError, Library, call, find_library, find_mpiexec, survival
from sparse_mpi.comm.elastic import ulfm


@dataclass(frozen=True)
class LaunchCommand:
    """A command line that starts a job."""

    words: tuple[str, ...]  # the launcher, its options, and the command line of a rank
    variables: dict[str, str]  # added to the environment
    dropped: tuple[str, ...]  # from the environment
    flavour: Flavour
    local: bool  # the launcher's children are the ranks, so that a signal can be sent to them directly
    doubts: str = ""  # what is known against what was asked for

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name not in self.dropped} | self.variables

    def shell(self) -> str:
        unset = [word for name in self.dropped for word in ("-u", name)]
        settings = [f"{name}={value}" for name, value in sorted(self.variables.items())]
        return shlex.join(["env", *unset, *settings, *self.words])


@dataclass(frozen=True)
class Allocation:
    """What Slurm has given to this job: tasks, nodes, and processors on all nodes together."""

    tasks: int | None  # None where the job asked for none
    nodes: int
    cores: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Allocation | None:
        """Return the allocation that this process is in, or None outside of Slurm and inside a task of a step."""
        if "SLURM_JOB_ID" not in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            return None
        nodes = int(environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "1")))
        tasks = environment.get("SLURM_NTASKS")
        here = int(environment.get("SLURM_CPUS_ON_NODE", "1"))
        return cls(int(tasks) if tasks else None, nodes, nodes * here)


def srun_for(flavour: Flavour, environment: Mapping[str, str]) -> str | None:
    srun = shutil.which("srun", path=environment.get("PATH", os.defpath))
    if srun is None:
        return None
    done = call([srun, "--mpi=list"], environment)
    plugins = (done.stdout + done.stderr).replace(",", " ").split()
    return srun if any(word == flavour.plugin for word in plugins) else None


def build(
    ranks: int | None,
    command: tuple[str, ...],
    cores: int,
    environment: Mapping[str, str],
    library: Callable[[Mapping[str, str]], Library] = find_library,
    elastic: bool = False,
) -> tuple[LaunchCommand, Launch]:
    """Return the line that starts ``command`` on so many ranks, and the job that it is; None: a rank for each core.

    Inside a Slurm allocation it is an srun if that fits the MPI, elsewhere the mpiexec that belongs to it. Values that
    the user has set win. The ranks of an ``elastic`` job survive the failure of others, for which mpiexec is needed.
    Raises LaunchError: there is no MPI, or nothing that starts its processes, or its ranks cannot survive the failure
    of others.
    """
    allocation = Allocation.of(environment)
    clean = surroundings.outside_of_jobs(environment)
    clean.setdefault("HOME", surroundings.home())
    root = os.geteuid() == 0
    if allocation is not None:
        flavour = library(clean).flavour
        if not elastic and (srun := srun_for(flavour, environment)):
            job = Launch(ranks or allocation.tasks or allocation.cores, allocation.cores, command, root, alone=False)
            return _line(slurm(srun, job, allocation, flavour), job, flavour, environment, ("SLURM_",), False), job
        if allocation.nodes > 1:
            where, own = f"on {allocation.nodes} nodes", "with the site's own"
            if elastic:
                raise LaunchError(f"--elastic starts no job {where}: do so {own} `mpirun --with-ft ulfm`")
            lacks = f"srun has no --mpi={flavour.plugin}, which {flavour.name} needs {where}"
            raise LaunchError(f"{lacks}: start the job {own} mpiexec")
    job = Launch(ranks or cores, cores, command, root, elastic=elastic)
    found = find_mpiexec(clean)
    words = (found.file, *(survival(found.library.flavour) if elastic else ()), "-n", str(job.ranks), *command)
    line = _line(words, job, found.library.flavour, environment, (), True)
    return (replace(line, doubts=ulfm.doubts(found.library.version)) if elastic else line), job


def slurm(srun: str, job: Launch, allocation: Allocation, flavour: Flavour) -> tuple[str, ...]:
    options = [f"--mpi={flavour.plugin}", "-n", str(job.ranks), "--kill-on-bad-exit=1", "--cpu-bind=none"]
    if job.ranks > (allocation.tasks or allocation.cores):
        options.append("--overcommit")
    return (srun, *options, *job.command)


def _line(
    words: tuple[str, ...],
    job: Launch,
    flavour: Flavour,
    environment: Mapping[str, str],
    keep: tuple[str, ...],
    local: bool,
) -> LaunchCommand:
    wanted = flavour.variables(job) | surroundings.needed(environment, job.threads)
    gone = surroundings.dropped(environment, keep)
    if local and flavour.terminals:  # unbuffered, Python writes lines in pieces, which may be joined with other ranks'
        del wanted[surroundings.UNBUFFERED]
        gone += [surroundings.UNBUFFERED] if surroundings.UNBUFFERED in environment else []
    own = {name: value for name, value in wanted.items() if name not in environment or name == "PYTHONPATH"}
    return LaunchCommand(words, own, tuple(gone), flavour, local)
