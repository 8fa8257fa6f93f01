"""``python -m sparse_mpi doctor``: what this installation can do here, what is wrong, and what to set."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.doctor import Finding, examine, jobs, probes
from sparse_mpi.cli.records import versions

MARKS = {"fine": " ", "advice": "*", "broken": "!"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="look at this installation and say what to set",
        description="Versions, MPI and its launcher, network, device pointers, GPU, threads, compiled kernels. Run it "
        "as you run your program, under mpiexec or srun. What may crash is tried in a child process. The exit code is "
        "1 only if something is broken for sure.",
    )
    parser.add_argument("--json", action="store_true", help="print facts of all ranks and findings as JSON")
    text = "only compile the kernels of first steps by these algorithms (default: oktopk elect), once per installation"
    parser.add_argument("--compile", nargs="*", type=values.algorithm, metavar="ALGORITHM", help=text)
    text = "explain the output of a job that hung or lost ranks, in FILE, - for standard input; MPI is not started"
    parser.add_argument("--job", type=values.output, metavar="FILE", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.compile is not None:
        return show([probes.first_step({"versions": versions()}, args.compile or probes.DEFAULTS)])
    if args.job is not None:
        text = sys.stdin.read() if args.job == "-" else Path(args.job).read_text(errors="replace")
        return show(jobs.explain(text.splitlines()))
    examined = examine()
    if examined is None:
        return 0
    ranks, found = examined
    if not args.json:
        return show(found)
    print(json.dumps({"findings": [finding._asdict() for finding in found], "ranks": ranks}, indent=1))
    return broken(found)


def broken(found: list[Finding]) -> int:
    return int(any(finding.grade == "broken" for finding in found))


def show(found: list[Finding]) -> int:
    print(render(found))
    return broken(found)


def render(found: list[Finding]) -> str:
    lines = []
    for finding in found:
        lines.append(f"{MARKS[finding.grade]} {finding.about}: {finding.says}")
        lines += [f"    -> {finding.remedy}"] if finding.remedy else []
    worst = sum(finding.grade == "broken" for finding in found)
    advice = sum(finding.grade == "advice" for finding in found)
    return "\n".join([*lines, "", f"{worst} broken (!), {advice} to improve (*)"])
