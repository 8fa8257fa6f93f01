"""``python -m sparse_mpi bench energy``: what algorithms remove of the gradient for their bytes, from a cold start."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.tools.analysis import energy, gradients
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import options, values
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.markdown import table
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.parsing import Refused

RANKS = (2, 3, 4, 7, 8, 16, 32, 64, 128, 256)
FACTS = ("n", "density", "steps", "seed")  # in which the cells of a record must agree
COLUMNS = ("bytes", "control", "step", "sends", "receives", "looks", "total", "energy", "gain")
HEAD = (("P", "gradients", "algorithm", *COLUMNS), ("--:", "---", "---", *["--:"] * len(COLUMNS)))
LEGEND = """\
bytes: sent by a rank in a step, control included, over 8k(P-1)/P; control: the part of it that is control; step: the
largest step over the mean of all; sends, receives: the busiest rank over the mean of all; looks, total: entries that a
rank selects and entries of the result, over k; energy: share of the summed acc's squared norm that the result removes,
over that of as many of its largest entries, mean of the steps from the 10th on; gain: energy over that of the first
algorithm."""
DESCRIPTION = """\
Train on made-up gradients with error feedback, among ranks that all are in this one process and start cold: count all
bytes, and measure which share of the gradient's energy the results remove. With --json it continues what that file has.

  python -m sparse_mpi bench energy --algorithms oktopk elect --ranks 2 8 --json runs/energy.json
"""


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield the record after each measurement that it lacks, and the table."""
    cells = _begun(args)
    total = len(args.ranks) * len(args.gradients) * len(args.algorithms)
    k = max(1, round(args.density * args.n))
    for ranks in args.ranks:
        for kind in args.gradients:
            made = gradients.make(kind, args.n, args.seed, ranks)
            for name in args.algorithms:
                key = f"{ranks} {kind} {name}"
                algorithm = algorithm_spelled(name)
                if cells.get(key, {}).get("made") == repr(algorithm):
                    continue
                with Bar(args.steps, f"{len(cells)} of {total}: {name}, {kind}, {ranks} ranks") as bar:
                    found = energy.measure(algorithm, made, ranks, k, args.steps, bar.update)
                what = {"ranks": ranks, "gradients": kind, "algorithm": name, "made": repr(algorithm)}
                cells[key] = what | found.record()
                yield {fact: getattr(args, fact) for fact in FACTS} | {"cases": list(cells.values())}
    shown = [cell for cell in cells.values() if cell["algorithm"] in args.algorithms and cell["ranks"] in args.ranks]
    text = f"{table([*HEAD, *_rows(shown, args.algorithms[0])])}\n\n{LEGEND}"
    yield text
    if args.table:
        Path(args.table).write_text(f"`{provenance()['command']}`\n\n{text}\n")


def _begun(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the cells that the record has, by ranks, gradients and algorithm."""
    if not args.json or not Path(args.json).exists():
        return {}
    record = json.loads(Path(args.json).read_text())
    for fact in FACTS:
        if record.get(fact) != getattr(args, fact):
            raise Refused(
                f"--{fact} must be {record.get(fact)} as in {args.json}, got {getattr(args, fact)}; name another file"
            )
    return {f"{cell['ranks']} {cell['gradients']} {cell['algorithm']}": cell for cell in record["cases"]}


def _rows(cells: Sequence[dict[str, Any]], first: str) -> list[tuple[str, ...]]:
    """Return the rows of the table; energies are compared with that of the algorithm called ``first``."""
    energies = {(c["ranks"], c["gradients"]): c["energy"] for c in cells if c["algorithm"] == first}
    rows = []
    for c in sorted(cells, key=lambda cell: (list(gradients.KINDS).index(cell["gradients"]), cell["ranks"])):
        energy = energies.get((c["ranks"], c["gradients"]))
        numbers = [c["volume"], c["control"] / c["lowest"], c["largest_step"], c["busiest_sender"]]
        numbers += [c["busiest_receiver"], c["selected"], c["total"], c["energy"]]
        gain = f"{c['energy'] / energy:.2f}" if energy else ""
        rows.append((str(c["ranks"]), c["gradients"], c["algorithm"], *(f"{x:.3f}" for x in numbers), gain))
    return rows


ENERGY = Benchmark(
    "energy",
    help="share of the gradient's energy that algorithms remove, and their bytes, from a cold start",
    description=DESCRIPTION,
    options=(
        option(
            "--ranks P", "default: powers of two from 2 to 256, 3 and 7", values.integer(2, MAX_RANKS), RANKS, nargs="+"
        ),
        option(
            "--algorithms NAME",
            f"the first is what others are compared with; {values.SPELLINGS}",
            values.algorithm,
            ["oktopk", "elect"],
            nargs="+",
        ),
        options.several("--gradients KIND", gradients.KINDS),
        count("--n", 100_000, "elements of the gradient (default: 100000)"),
        options.share("k over n (default: 0.01)"),
        count("--steps", 64, "steps, all of which are counted (default: 64)"),
        options.seed(),
        options.json("write all numbers after each measurement; what the file has is not repeated"),
        option("--table FILE", "write the table in Markdown, with the command", values.new_file("table.md")),
    ),
    measure=measure,
)
