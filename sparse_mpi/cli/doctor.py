"""``python -m sparse_mpi doctor``: what this installation can do here, what is wrong, and what to set."""

from __future__ import annotations

import argparse
import json

from sparse_mpi.doctor import Finding, examine

MARKS = {"fine": " ", "advice": "*", "broken": "!"}


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "doctor",
        help="look at this installation and say what to set",
        description="Versions, MPI and its launcher, device pointers, GPU, threads, compiled kernels. Run it as you "
        "run your program, under mpiexec or srun. What may crash is tried in a child process. The exit code is 1 only "
        "if something is broken for sure.",
    )
    parser.add_argument("--json", action="store_true", help="print facts of all ranks and findings as JSON")
    parser.add_argument("--cold", action="store_true", help="time the first step with an empty cache of kernels")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine, and print on rank 0."""
    examined = examine(args.cold)
    if examined is None:
        return 0
    ranks, found = examined
    if args.json:
        print(json.dumps({"findings": [finding._asdict() for finding in found], "ranks": ranks}, indent=1))
    else:
        print(render(found))
    return int(any(finding.grade == "broken" for finding in found))


def render(found: list[Finding]) -> str:
    """One line a finding, and what to do about it below."""
    lines = []
    for finding in found:
        lines.append(f"{MARKS[finding.grade]} {finding.about}: {finding.says}")
        lines += [f"    -> {finding.remedy}"] if finding.remedy else []
    broken = sum(finding.grade == "broken" for finding in found)
    advice = sum(finding.grade == "advice" for finding in found)
    return "\n".join([*lines, "", f"{broken} broken (!), {advice} to improve (*)"])
