"""The command line and the environment of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from sparse_mpi.cli.launch import environment as surroundings
from sparse_mpi.cli.launch.find import Launch, LaunchError, Library, find_mpiexec, survival


@dataclass(frozen=True)
class LaunchCommand:
    """A command line that starts a job."""

    words: tuple[str, ...]  # mpiexec, whose children are the ranks, its options, and the command line of a rank
    job: Launch
    library: Library
    variables: dict[str, str]  # added to the environment
    dropped: tuple[str, ...] = ()  # from the environment

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name not in self.dropped} | self.variables

    def shell(self) -> str:
        unset = [word for name in self.dropped for word in ("-u", name)]
        settings = [f"{name}={value}" for name, value in sorted(self.variables.items())]
        return shlex.join(["env", *unset, *settings, *self.words])


def build(
    ranks: int | None, command: tuple[str, ...], cores: int, environment: Mapping[str, str], elastic: bool = False
) -> LaunchCommand:
    """Return the line that starts ``command`` on ``ranks`` ranks of this machine; None: a rank a core.

    The user's own settings win. Ranks of an ``elastic`` job survive the failure of others. Raises LaunchError: there is
    no MPI, or it has no mpiexec, its ranks cannot survive, or this is part of a Slurm job on several nodes.
    """
    clean = surroundings.outside_of_jobs(environment)
    clean.setdefault("HOME", surroundings.home())
    job = Launch(ranks or cores, cores, os.geteuid() == 0, elastic)
    found = find_mpiexec(clean)
    flavour = found.library.flavour
    options = survival(flavour) if elastic else ()
    nodes = int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES") or 1)
    if nodes > 1:
        other = " ".join(["mpirun", *options]) if elastic else f"srun --mpi={flavour.plugin}"
        raise LaunchError(f"ranks are started on one machine, and this Slurm job has {nodes} nodes: start by {other}")
    wanted = flavour.variables(job) | surroundings.needed(environment, max(1, cores // job.ranks))
    gone = surroundings.dropped(environment)
    if flavour.terminals:  # unbuffered, Python writes lines in pieces, which may join other ranks'
        del wanted[surroundings.UNBUFFERED]
        gone += [surroundings.UNBUFFERED] if surroundings.UNBUFFERED in environment else []
    own = {name: value for name, value in wanted.items() if name not in environment or name == "PYTHONPATH"}
    words = (found.file, *options, "-n", str(job.ranks), *command)
    return LaunchCommand(words, job, found.library, own, tuple(gone))
