"""``python -m sparse_mpi doctor``: what this installation can do here, what is wrong, and what to set."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.doctor import Finding, examine, findings, probes
from sparse_mpi.cli.records import versions

PATIENCE = 900.0  # seconds that compiling all kernels may take, on a slow and busy machine
MARKS = {"fine": " ", "advice": "*", "broken": "!"}


def add_parser(commands: Any) -> None:
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
    text = "only compile the kernels into their cache, which takes some ten seconds once per installation"
    parser.add_argument("--compile", action="store_true", help=text)
    text = "explain the output of a job that hung or lost ranks, in FILE, - for standard input; MPI is not started"
    parser.add_argument("--job", type=values.output, metavar="FILE", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine, and print on rank 0."""
    if args.compile:
        return compile_kernels()
    if args.job is not None:
        return explain_job(args.job)
    examined = examine(args.cold)
    if examined is None:
        return 0
    ranks, found = examined
    if args.json:
        print(json.dumps({"findings": [finding._asdict() for finding in found], "ranks": ranks}, indent=1))
    else:
        print(render(found))
    return int(any(finding.grade == "broken" for finding in found))


def explain_job(file: str) -> int:
    """Print what became of the ranks of a job whose output is in ``file``; return 1 if it ended because of them."""
    text = sys.stdin.read() if file == "-" else Path(file).read_text(errors="replace")
    found = findings.explain(text.splitlines())
    print(render(found))
    return int(any(finding.grade == "broken" for finding in found))


def compile_kernels() -> int:
    """Compile the kernels, say how long it took, and return 1 if they do not compile. MPI is not started."""
    finding = probes.first_step({"versions": versions()}, seconds=PATIENCE)
    print(f"{finding.about}: {finding.says}")
    if finding.remedy:
        print(f"    -> {finding.remedy}")
    return int(finding.grade == "broken")


def render(found: list[Finding]) -> str:
    """Return a line for each finding, and below it what to do."""
    lines = []
    for finding in found:
        lines.append(f"{MARKS[finding.grade]} {finding.about}: {finding.says}")
        lines += [f"    -> {finding.remedy}"] if finding.remedy else []
    broken = sum(finding.grade == "broken" for finding in found)
    advice = sum(finding.grade == "advice" for finding in found)
    return "\n".join([*lines, "", f"{broken} broken (!), {advice} to improve (*)"])
