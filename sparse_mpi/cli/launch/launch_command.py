"""The command line that starts a job, and the environment that goes with it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from sparse_mpi.cli.launch import environment as surroundings
from sparse_mpi.cli.launch.find import Flavour, Launch, LaunchError, Library, call, find_library, find_mpiexec, survival


@dataclass(frozen=True)
class LaunchCommand:
    """A command line that starts a job."""

    words: tuple[str, ...]  # the launcher, its options, and the command line of a rank
    job: Launch
    library: Library
    variables: dict[str, str]  # added to the environment
    dropped: tuple[str, ...] = ()  # from the environment
    local: bool = True  # the launcher's children are the ranks, so that a signal can be sent to them directly

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name not in self.dropped} | self.variables

    def shell(self) -> str:
        unset = [word for name in self.dropped for word in ("-u", name)]
        settings = [f"{name}={value}" for name, value in sorted(self.variables.items())]
        return shlex.join(["env", *unset, *settings, *self.words])


def allocation(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Return tasks, nodes and cores that Slurm has given to this process's job; 0 if none, or in a task of a step."""
    if "SLURM_JOB_ID" not in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return 0, 0, 0
    nodes = int(environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "1")))
    cores = nodes * int(environment.get("SLURM_CPUS_ON_NODE", "1"))
    return int(environment.get("SLURM_NTASKS") or cores), nodes, cores


def srun_for(flavour: Flavour, environment: Mapping[str, str]) -> str | None:
    srun = shutil.which("srun", path=environment.get("PATH", os.defpath))
    if srun is None:
        return None
    done = call([srun, "--mpi=list"], environment)
    plugins = (done.stdout + done.stderr).replace(",", " ").split()
    return srun if any(word == flavour.plugin for word in plugins) else None


def build(
    ranks: int | None, command: tuple[str, ...], cores: int, environment: Mapping[str, str], elastic: bool = False
) -> LaunchCommand:
    """Return the line that starts ``command`` on so many ranks; None: a rank for each core.

    Inside a Slurm allocation it is an srun if that fits the MPI, elsewhere the mpiexec that belongs to it. Values that
    the user has set win. The ranks of an ``elastic`` job survive the failure of others, for which mpiexec is needed.
    Raises LaunchError: there is no MPI, or nothing that starts its processes, or its ranks cannot survive the failure
    of others.
    """
    clean = surroundings.outside_of_jobs(environment)
    clean.setdefault("HOME", surroundings.home())
    root = os.geteuid() == 0
    tasks, nodes, allocated = allocation(environment)
    if nodes:
        library = find_library(clean)
        flavour = library.flavour
        if not elastic and (srun := srun_for(flavour, environment)):
            job = Launch(ranks or tasks, allocated, root, alone=False)
            words = [srun, f"--mpi={flavour.plugin}", "-n", str(job.ranks), "--kill-on-bad-exit=1", "--cpu-bind=none"]
            words += ["--overcommit"] if job.ranks > tasks else []
            return _line((*words, *command), job, library, environment, local=False)
        if nodes > 1 and elastic:
            raise LaunchError(f"--elastic starts no job on {nodes} nodes: use the site's own `mpirun --with-ft ulfm`")
        if nodes > 1:
            lacks = f"srun has no --mpi={flavour.plugin}, which {flavour.name} needs on {nodes} nodes"
            raise LaunchError(f"{lacks}: start the job with the site's own mpiexec")
    job = Launch(ranks or cores, cores, root, elastic=elastic)
    found = find_mpiexec(clean)
    options = survival(found.library.flavour) if elastic else ()
    return _line((found.file, *options, "-n", str(job.ranks), *command), job, found.library, environment, local=True)


def _line(
    words: tuple[str, ...], job: Launch, library: Library, environment: Mapping[str, str], local: bool
) -> LaunchCommand:
    wanted = library.flavour.variables(job) | surroundings.needed(environment, max(1, job.cores // job.ranks))
    gone = surroundings.dropped(environment, () if local else ("SLURM_",))
    if local and library.flavour.terminals:  # unbuffered, Python writes lines in pieces, which may join other ranks'
        del wanted[surroundings.UNBUFFERED]
        gone += [surroundings.UNBUFFERED] if surroundings.UNBUFFERED in environment else []
    own = {name: value for name, value in wanted.items() if name not in environment or name == "PYTHONPATH"}
    return LaunchCommand(words, job, library, own, tuple(gone), local)
