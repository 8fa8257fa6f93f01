"""What an algorithm removes of the summed gradient for the bytes it sends, from a cold start on the ranks of a `World`.

Algorithms with error feedback cannot be compared by one step: what one leaves behind makes its next steps easier. So
all of them start cold, and the energy is measured after some steps, each against the best that any entries could do.

``python -m sparse_mpi bench energy``: what algorithms remove of the gradient for their bytes, from a cold start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import present
from sparse_mpi.cli import options, values
from sparse_mpi.cli.benchmark import Benchmark, Output, earlier
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.monitor.watch import attainable
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.sparse import SparseVector
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.analysis.gradients import Gradients
from sparse_mpi_bench.analysis.recording import Step, watched

SETTLED = 10  # steps before the first whose energy counts


def energy_of(
    algorithm: Algorithm,
    gradients: Gradients,
    ranks: int,
    k: int,
    steps: int,
    progress: Callable[[], None] = lambda: None,
) -> SimpleNamespace:
    """Run ``steps`` steps with error feedback from a cold start; return the numbers of all of them.

    Bytes are those of a rank in a step, control included. Energy is the share of the summed acc's squared norm that
    ``total`` removes, over the share that as many of its largest entries would remove: 1 is the best there is. It and
    entries are means over the steps from `SETTLED` on.
    """
    acc, captured = np.zeros(gradients.size), []  # summed over the ranks; energy that each step removes from it

    def remove(step: Step) -> None:
        """Add the gradients of all ranks, take away the result, and keep the energy of it."""
        for rank in range(ranks):
            np.add(acc, gradients.at(step.number, rank), out=acc)
        before = float(acc @ acc)
        if isinstance(step.total, SparseVector):
            best = attainable(acc, step.total.nnz)
            acc[step.total.indices] -= step.total.values
        else:
            best = before
            np.subtract(acc, step.total, out=acc)
        captured.append(float((before - acc @ acc) / best) if best else 1.0)

    def see(step: Step) -> tuple[int, ...]:
        if step.comm.rank == 0:
            remove(step)
            progress()
        found = present(step.reducer.report, "a step was made")
        traffic = found.traffic
        return traffic.sent, traffic.control, traffic.received, traffic.messages, found.selected, found.total

    counted = np.array(watched(algorithm, gradients, ranks, steps, see, k=k), np.float64)
    payload, control, received, messages, selected, total = counted.transpose(2, 1, 0)  # each (steps, ranks)
    sent, late = payload + control, slice(min(SETTLED, steps - 1), None)
    lowest = 8 * k * (ranks - 1) / ranks
    return SimpleNamespace(
        ranks=ranks,
        n=gradients.size,
        k=k,
        steps=steps,
        sent=sent.mean(),  # bytes, over ranks and steps
        control=control.mean(),  # of these, bytes of control
        lowest=lowest,
        largest_step=_peak(sent.mean(axis=1)),  # bytes of the step in which ranks send most, over the mean
        busiest_sender=_peak(sent.mean(axis=0)),  # bytes that one rank sends in all steps, over the mean
        busiest_receiver=_peak(received.mean(axis=0)),  # payload that one rank receives in all steps, over the mean
        worst=_peak(sent),  # bytes that any rank sends in any step, over the mean
        selected=selected[late].mean() / k,
        total=total[late].mean() / k,
        messages=messages.mean(),  # of a rank in a step
        energy=float(np.mean(captured[late])),
        volume=sent.mean() / lowest if lowest else 0.0,
    )


def _peak(numbers: np.ndarray) -> float:
    return float(numbers.max() / numbers.mean()) if numbers.any() else 1.0


RANKS = (2, 3, 4, 7, 8, 16, 32, 64, 128, 256)
FACTS = ("n", "density", "steps", "seed")  # in which the cells of a record must agree
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
    record = earlier(args.json, {fact: getattr(args, fact) for fact in FACTS}) or {"cases": []}
    cells = {f"{cell['ranks']} {cell['gradients']} {cell['algorithm']}": cell for cell in record["cases"]}
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
                    found = energy_of(algorithm, made, ranks, k, args.steps, bar.update)
                what = {"ranks": ranks, "gradients": kind, "algorithm": name, "made": repr(algorithm)}
                cells[key] = what | vars(found)
                yield {fact: getattr(args, fact) for fact in FACTS} | {"cases": list(cells.values())}
    shown = [cell for cell in cells.values() if cell["algorithm"] in args.algorithms and cell["ranks"] in args.ranks]
    text = f"{_table(shown, args.algorithms[0])}\n\n{LEGEND}"
    yield text
    if args.table:
        Path(args.table).write_text(f"`{provenance()['command']}`\n\n{text}\n")


def _table(cells: Sequence[dict[str, Any]], first: str) -> str:
    """Return the table in Markdown; energies are compared with that of the algorithm called ``first``."""
    energies = {(c["ranks"], c["gradients"]): c["energy"] for c in cells if c["algorithm"] == first}

    def gain(cell: dict[str, Any]) -> str:
        energy = energies.get((cell["ranks"], cell["gradients"]))
        return f"{cell['energy'] / energy:.2f}" if energy else ""

    table = Table(
        Column("P", 1, "ranks"),
        Column("gradients", -1, "gradients"),
        Column("algorithm", -1, "algorithm"),
        Column("bytes", 1, "volume", ".3f"),
        Column("control", 1, lambda cell: cell["control"] / cell["lowest"], ".3f"),
        Column("step", 1, "largest_step", ".3f"),
        Column("sends", 1, "busiest_sender", ".3f"),
        Column("receives", 1, "busiest_receiver", ".3f"),
        Column("looks", 1, "selected", ".3f"),
        Column("total", 1, "total", ".3f"),
        Column("energy", 1, "energy", ".3f"),
        Column("gain", 1, gain),
    )
    kinds = list(gradients.KINDS)
    return table.markdown(sorted(cells, key=lambda cell: (kinds.index(cell["gradients"]), cell["ranks"])))


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
            f"the first is what others are compared with; {options.SPELLINGS}",
            values.algorithm,
            ["oktopk", "elect"],
            nargs="+",
        ),
        options.several("--gradients KIND", gradients.KINDS),
        count("--n", 100_000, "elements of the gradient"),
        options.share("k over n"),
        count("--steps", 64, "steps, all of which are counted"),
        options.seed(),
        options.json("write all numbers after each measurement; what the file has is not repeated"),
        option("--table FILE", "write the table in Markdown, with the command", values.new_file("table.md")),
    ),
    measure=measure,
)
