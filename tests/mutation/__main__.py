"""Mutation testing: which wrong changes to the library does `make test` let live?

    python -m tests.mutation list                           the mutants of a seed: the same on every machine
    python -m tests.mutation cover                          once: which test of `make test` runs which line
    python -m tests.mutation run                            then: each mutant against the tests of `make test`

A mutant is given to the tests that run its line, one of each test function first, then to what the same files run under
mpiexec; one of the transport to all tests under mpiexec and in jobs. It dies at the first that fails. Results are
appended to mutants.jsonl in the folder --out as they come, and what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path
from queue import Queue

from tqdm import tqdm

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser

from .mutants import ROOT, Mutant, draw

COVERAGE = "coverage.sqlite"
LEFT_OUT = (".git", ".venv*", "runs", "build", "*.egg-info", ".*_cache")  # of the copies that mutants live in
TRANSPORT = "sparse_mpi/comm/"
RANKS = 3  # of the tests under mpiexec
NO_TESTS = 5  # pytest's exit status where nothing is left to run
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--timeout", "90")


def main(argv: list[str] | None = None) -> None:
    """Carry out one of the commands."""
    parser = Parser(prog="python -m tests.mutation", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("command", choices=("list", "cover", "run"), help="what to do")
    parser.add_argument(
        "--seed", type=values.integer(0), default=12, help="which mutants are drawn (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=values.new_folder("runs/mutation"),
        default=Path("runs/mutation"),
        metavar="DIR",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--workers", type=values.integer(1), default=2, help="mutants tried at a time (default: %(default)s)"
    )
    parser.add_argument("--limit", type=values.positive, default=900, metavar="SECONDS", help="seconds for one mutant")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    {"list": show, "cover": cover, "run": run}[args.command](args)


def show(args: argparse.Namespace) -> None:
    """Print the mutants."""
    for mutant in draw(args.seed):
        print(mutant.name)


def cover(args: argparse.Namespace) -> None:
    """Run the tests of `make test` that need no mpiexec once, and note which of them runs which line."""
    environment = os.environ | {"COVERAGE_FILE": str(args.out / COVERAGE)}
    options = ["--tier", "fast", "-m", "not slurm and not jobs", "-q", "-n", str(args.workers), "--dist", "worksteal"]
    options += ["--cov=sparse_mpi", "--cov-context=test", "--cov-report="]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=environment, check=False)


def run(args: argparse.Namespace) -> None:
    """Give every mutant to its tests."""
    record = args.out / "mutants.jsonl"
    done = {line["mutant"] for line in lines(record)}
    mutants = [mutant for mutant in draw(args.seed) if mutant.name not in done]
    items, running = collected(), tests_by_line(args.out / COVERAGE)
    trees: Queue[Path] = Queue()
    for number in range(args.workers):
        trees.put(copy_of_the_house(args.out / f"tree-{number}"))

    def attempt(mutant: Mutant) -> dict[str, object]:
        tree = trees.get()
        try:
            return tried(mutant, tree, items, running, args)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(args.workers) as pool, record.open("a") as file:
        for result in tqdm(pool.map(attempt, mutants), total=len(mutants), unit="mutant"):
            print(json.dumps(result), file=file, flush=True)
    results = list(lines(record))
    survivors = [line["mutant"] for line in results if line["killed_by"] is None]
    print(f"{len(results) - len(survivors)} of {len(results)} mutants died; alive:")
    print(*survivors, sep="\n")


def tried(
    mutant: Mutant, tree: Path, items: list[str], running: dict[str, dict[int, set[str]]], args: argparse.Namespace
) -> dict[str, object]:
    """Give one mutant, in a tree of its own, to the tests that run its line; return what became of it."""
    file, began = tree / mutant.file, time.monotonic()
    original, chosen = file.read_text(), tests_of(mutant, items, running)
    settings = {"PYTHONPATH": f"{tree}:{tree / 'train'}", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    listed, killed_by = tree / "items.txt", None
    listed.write_text("\n".join(chosen))
    files = sorted({item.partition("::")[0] for item in chosen})
    commands = [[*PYTEST, "-p", "tests.mutation.only", "--only", str(listed), *files]] if chosen else []
    transport = mutant.file.startswith(TRANSPORT)
    launcher = [sys.executable, "-m", "sparse_mpi", "run", "-n", str(RANKS)]
    options = ["--with-mpi", "-m", "mpi", "--color=no", *([] if transport else files)]
    commands.append([*launcher, *PYTEST[1:], *options])
    if transport:
        commands.append([*PYTEST, "-m", "jobs", *jobs(tree)])
    try:
        file.write_text(mutant.applied())
        for command in commands:
            killed_by = killed_by or killer(command, tree, os.environ | settings, args.limit)
    finally:
        file.write_text(original)
    seconds = round(time.monotonic() - began, 1)
    return {"mutant": mutant.name, "killed_by": killed_by, "tests": len(chosen), "seconds": seconds}


def killer(command: list[str], tree: Path, environment: dict[str, str], limit: float) -> str | None:
    """Return what failed, or None where all tests pass."""
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return "the limit of time"
    if done.returncode in (0, NO_TESTS):
        return None
    failed = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else f"exit status {done.returncode}: {(done.stdout + done.stderr)[-200:]}"


def tests_of(mutant: Mutant, items: list[str], running: dict[str, dict[int, set[str]]]) -> list[str]:
    """Return those of ``items`` that run the mutant's line, one of each function first.

    A line that runs when its file is imported is given to the tests that run any line of the file.
    """
    by_line = running.get(mutant.file, {})
    wanted = by_line.get(mutant.line, set()) - {""}
    if not wanted:
        earlier = [line for line in by_line if mutant.line - 6 <= line < mutant.line]
        wanted = by_line[max(earlier)] - {""} if earlier and mutant.line not in by_line else set()
    if not wanted and mutant.line in by_line:
        wanted = set().union(*by_line.values()) - {""}
    functions: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item in wanted:
            functions[item.partition("[")[0]].append(item)
    turns = zip_longest(*functions.values())
    return [item for item in chain.from_iterable(turns) if item is not None]


def tests_by_line(database: Path) -> dict[str, dict[int, set[str]]]:
    """Return for every file of the library which tests run which of its lines; "" is its import."""
    from coverage import CoverageData

    data = CoverageData(str(database))
    data.read()
    found: dict[str, dict[int, set[str]]] = {}
    for file in data.measured_files():
        contexts, name = data.contexts_by_lineno(file), os.path.relpath(file, ROOT)
        found[name] = {line: {test.rpartition("|")[0] for test in tests} for line, tests in contexts.items()}
    return found


def collected() -> list[str]:
    """Return the names of the tests of `make test`, in the order in which they are collected."""
    options = ["--collect-only", "-q", "-m", "not slurm and not jobs"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def jobs(tree: Path) -> list[str]:
    """Return the files with tests that start jobs."""
    return [str(file) for file in sorted(tree.glob("tests/*/test_*.py")) if "mark.jobs" in file.read_text()]


def copy_of_the_house(tree: Path) -> Path:
    """Return a fresh copy of this house, with its compiled kernels, for mutants to live in."""
    shutil.rmtree(tree, ignore_errors=True)
    return Path(shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT)))


def lines(file: Path) -> list[dict[str, str | None]]:
    """Return the records of a file of JSON lines; none of a file that is not there."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
