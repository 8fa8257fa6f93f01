"""``python -m sparse_mpi bench compare``: a script of the reader's, once by each algorithm and once dense."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sparse_mpi.cli import options, values
from sparse_mpi.cli.options import option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused
from sparse_mpi.comm.job.launcher import ALGORITHM
from sparse_mpi.predict.ways import BASELINE
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.figures.style import LINES, name_lines, panels

DESCRIPTION = """\
Run your own script once with dense sums and once by each algorithm, and compare loss, bytes and seconds. It is one that
uses DistributedOptimizer, sparse_hook or sparse_mpi.fsdp, as it is: the algorithm that it names is overruled, with the
options of that; its density holds for all. The loss is the number whose backward() it calls. Ranks share this machine.

  python -m sparse_mpi bench compare my_script.py --algorithms elect oktopk powersgd --plot compare.svg
  python -m sparse_mpi bench compare -n 2 my_script.py --algorithms elect -- --epochs 3
"""
USAGE = """%(prog)s my_script.py [--algorithms NAME ...] [-n RANKS]
           [--json FILE] [--plot FILE] [-- words of the script]"""
WAIT = 3.0  # seconds from one look at the steps of a script to the next
WINDOW = 0.1  # share of the steps over which a loss is a mean
TOLD = 60  # last lines of a script that failed: 15 are the launcher's, the errors of the ranks stand before
NOTE = "loss: rank 0's, means of a tenth of the steps; MB: that rank 0 sends in a step; ms: of a step, the median"
Step = dict[str, float]


def compare(args: argparse.Namespace) -> Iterator[Output]:
    found: dict[str, list[Step]] = {}
    ways = dict.fromkeys([BASELINE, *args.algorithms])
    for way in ways:
        yield f"{way} ..."
        with TemporaryDirectory() as folder:
            file = Path(folder) / "steps"
            if status := _run(way, args, file):
                problem = f"{args.script} by {way} ended with status {status}; its last lines are above"
                if not found:  # most likely it fails by all ways
                    raise Refused(f"{problem}; try it alone: python -m sparse_mpi run -n {args.ranks} {args.script}")
                print(problem, file=sys.stderr)
                continue
            steps = _steps(file)
        if not steps:
            raise Refused(
                f"{args.script} must reduce gradients by DistributedOptimizer, sparse_hook or sparse_mpi.fsdp, got "
                "no step of a torch.optim optimizer after a reduction; see docs/guides/pytorch.md"
            )
        found[way] = steps
    rows = [{"way": way, **summary(steps)} for way, steps in found.items()]
    table = Table(
        Column("", -max(len(row["way"]) for row in rows), "way"),
        Column("steps", 6, "steps"),
        *(Column(title, 9, title, ".4g") for title in ("loss 1/4", "1/2", "3/4", "end")),
        Column("MB", 9, "mb", ".4g"),
        Column("ms", 9, "seconds", ".1f", 1e3),
    )
    yield "\n".join(["", *table.lines(rows), NOTE])
    yield {"summary": rows, "steps": found}
    yield int(len(found) < len(ways))


def _run(way: str, args: argparse.Namespace, file: Path) -> int:
    """Run the script by one way, and return its status; its last lines are printed if that is not 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = ["-m", "sparse_mpi_bench.compared", str(file), str(args.ranks), str(port), args.script, *args.words]
    command = [sys.executable, "-m", "sparse_mpi", "run", "-n", str(args.ranks), *program]
    with file.with_name("out").open("w+") as out, Bar(None, f"{way}, steps") as bar:
        job = subprocess.Popen(command, env=os.environ | {ALGORITHM: way}, stdout=out, stderr=subprocess.STDOUT)
        try:
            seen = 0
            while job.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    job.wait(WAIT)
                if steps := _steps(file):
                    bar.update(len(steps) - seen)
                    seen, loss = len(steps), steps[-1]["loss"]
                    bar.say("" if loss is None else f"loss {loss:.4g}")
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait()
        if job.returncode:
            out.seek(0)
            print(*out.read().splitlines()[-TOLD:], sep="\n", file=sys.stderr)
        return job.returncode


def _steps(file: Path) -> list[Step]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    """Return means of the loss at four places, and the bytes and seconds of a step; None where unknown."""
    losses = [step["loss"] for step in steps if step["loss"] is not None]
    width = max(1, round(WINDOW * len(losses)))
    ends = [max(width, round(part * len(losses))) for part in (0.25, 0.5, 0.75, 1)]
    at = [statistics.fmean(losses[end - width : end]) if losses else None for end in ends]
    return {
        "steps": len(steps),
        **dict(zip(("loss 1/4", "1/2", "3/4", "end"), at, strict=True)),
        "mb": statistics.fmean(step["bytes"] for step in steps) / 1e6,
        "seconds": statistics.median(step["seconds"] for step in steps),
    }


def _way(text: str) -> str:
    if Path(text).is_file():
        raise argparse.ArgumentTypeError(f"must come after the script, got {text} as a name; put the script first")
    return values.algorithm(text)


def draw(records: Sequence[dict[str, Any]]) -> Any:
    """Draw the smoothed loss over steps, and over MB sent."""
    shown, axes = panels(1, 2, 2.6, "", "", "loss")
    by_step, by_bytes = axes[0]
    for (way, steps), line in zip(records[0]["steps"].items(), LINES, strict=False):
        losses = [step["loss"] for step in steps if step["loss"] is not None]
        width = max(1, round(WINDOW * len(losses)))
        smooth = [statistics.fmean(losses[max(0, end - width) : end]) for end in range(1, len(losses) + 1)]
        sent = [total / 1e6 for total in accumulate(step["bytes"] for step in steps)][: len(smooth)]
        by_step.plot(range(1, len(smooth) + 1), smooth, label=way, color=line)
        by_bytes.plot(sent, smooth, label=way, color=line)
    by_step.set_xlabel("step")
    by_bytes.set(xlabel="MB that rank 0 has sent", xscale="log")
    for panel in axes[0]:
        name_lines(panel)
    return shown


COMPARE = Benchmark(
    "compare",
    "your own script, by several algorithms",
    DESCRIPTION,
    (
        option("script", "a Python file, which trains on all ranks", values.file("my_script.py")),
        option(
            "--algorithms NAME",
            f"ways to compare with dense, of {options.SPELLINGS} (default: elect)",
            values.Value(_way, "", "elect"),
            ["elect"],
            nargs="+",
        ),
        bench_options.processes,
        option("--json FILE", "also write all steps", values.record),
        option("--plot FILE", "draw the loss over steps and bytes", values.figure),
        lambda parser: parser.set_defaults(**{values.WORDS: []}),  # the script's, behind --
        lambda parser: setattr(parser, "usage", USAGE),
    ),
    compare,
    figure=draw,
)
