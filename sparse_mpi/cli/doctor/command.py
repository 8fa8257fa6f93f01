"""``python -m sparse_mpi doctor``: abilities and faults of this installation here, and their remedies."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.cli import values
from sparse_mpi.cli.doctor import findings, probes
from sparse_mpi.cli.doctor.facts import facts
from sparse_mpi.cli.doctor.findings import Facts, Finding
from sparse_mpi.cli.doctor.first_step import OPTIMIZERS, first_step
from sparse_mpi.cli.records import versions
from sparse_mpi.reduction.arguments import takes
from sparse_mpi.select import SELECTORS
from sparse_mpi.wire import WIRES

MARKS = {"fine": " ", "advice": "*", "broken": "!"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="look at this installation and say what to set",
        description="Versions, MPI and its launcher, device pointers, GPU, threads, compiled kernels. Run it "
        "as you run your program, under mpiexec or srun. The exit code is 1 only if something is broken for sure.",
    )
    parser.add_argument("--json", action="store_true", help="print facts of all ranks and findings as JSON")
    text = "only compile the kernels of first steps by these algorithms, once per installation (default: all, formats "
    text += "and selectors too, and optimizers if torch is installed)"
    parser.add_argument("--compile", nargs="*", type=values.algorithm, metavar="ALGORITHM", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    examined = examine() if args.compile is None else ([], [_compiled(args.compile)])
    if examined is None:
        return 0
    ranks, found = examined
    if args.json:
        print(json.dumps({"findings": [finding._asdict() for finding in found], "ranks": ranks}, indent=1))
    else:
        print(render(found))
    return int(any(finding.grade == "broken" for finding in found))


def _compiled(algorithms: list[str]) -> Finding:
    if algorithms:
        return first_step(versions(), algorithms)
    formats = [f"topka:wire={name}" for name in WIRES]
    selectors = [f"topka:selector={name}" for name in SELECTORS if takes("topka", "selector", name)]
    return first_step(versions(), [*ALGORITHMS, *formats, *selectors], OPTIMIZERS)


def examine() -> tuple[Facts, list[Finding]] | None:
    """Return the facts of all ranks and the findings, on rank 0; None on the others. Starts MPI."""
    ranks = [facts()]
    if not ranks[0]["launcher"] and (failure := probes.start_mpi()):
        found = [failure]
    else:
        from mpi4py import MPI

        gathered = MPI.COMM_WORLD.gather(facts(MPI))
        if gathered is None:
            return None
        ranks, found = gathered, findings.launch(gathered)
    here = [findings.network(ranks), *findings.cores(ranks), first_step(ranks[0]["versions"]), findings.devices(ranks)]
    return ranks, [findings.versions(ranks), *found, *here]


def render(found: list[Finding]) -> str:
    lines = []
    for finding in found:
        lines.append(f"{MARKS[finding.grade]} {finding.about}: {finding.says}")
        lines += [f"    -> {finding.remedy}"] if finding.remedy else []
    grades = [finding.grade for finding in found]
    return "\n".join([*lines, "", f"{grades.count('broken')} broken (!), {grades.count('advice')} to improve (*)"])
