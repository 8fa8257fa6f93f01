"""What an algorithm removes of the summed gradient for the bytes it sends, from a cold start on the ranks of a `World`.

Algorithms with error feedback cannot be compared by one step: what one leaves behind makes its next steps easier. So
all of them start cold, and the energy is measured after some steps, each against the best that any entries could do.

``python -m sparse_mpi bench energy``: what algorithms remove of the gradient for their bytes, from a cold start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.checks import present
from sparse_mpi.comm import Comm
from sparse_mpi.comm.world import MAX_RANKS, World
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.reduction.watch import attainable
from sparse_mpi.sparse import SparseVector
from sparse_mpi.tools import values
from sparse_mpi.tools.analysis import gradients
from sparse_mpi.tools.analysis.gradients import Gradients
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.records import provenance
from sparse_mpi.tools.cli import options
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.table import markdown as table
from sparse_mpi.tools.values import Refused

SETTLED = 10  # steps before the first whose energy counts


@dataclass(frozen=True)
class EnergyCount:
    """The bytes and the energy of one algorithm. Bytes are those of a rank in a step, control included.

    Energy is the share of the summed acc's squared norm that ``total`` removes, over the share that as many of its
    largest entries would remove: 1 is the best there is.
    """

    ranks: int
    n: int
    k: int
    steps: int
    sent: float  # bytes, mean over ranks and steps
    control: float  # of these, bytes of control
    lowest: float  # bytes, 8k(P-1)/P
    largest_step: float  # bytes of the step in which ranks send most, over the mean of all steps
    busiest_sender: float  # bytes that one rank sends in all steps, over the mean of all ranks
    busiest_receiver: float  # payload that one rank receives in all steps, over the mean of all ranks
    worst: float  # bytes that any rank sends in any step, over the mean
    selected: float  # entries that a rank selects, over k; mean over steps from `SETTLED` on
    total: float  # entries of the result, over k; likewise
    messages: float  # of a rank in a step, mean
    energy: float  # mean over steps from `SETTLED` on

    @property
    def volume(self) -> float:
        """Return the mean bytes over 8k(P-1)/P."""
        return self.sent / self.lowest if self.lowest else 0.0

    def record(self) -> dict[str, Any]:
        """Return all numbers as a dict for JSON."""
        return asdict(self) | {"volume": self.volume}


class _Energy:
    """The acc summed over all ranks of a `World`, and the energy that each step removes from it.

    Every step begins with an agreement of all ranks, so no rank is two steps ahead of another: gradients of two steps
    are enough to keep.
    """

    def __init__(self, size: int) -> None:
        self.captured: list[float] = []
        self._acc = np.zeros(size)
        self._arriving = np.zeros((2, size))

    def add(self, step: int, gradient: np.ndarray) -> None:
        """Add the gradient of one rank; called by every rank before a step."""
        self._arriving[step % 2] += gradient

    def remove(self, step: int, total: SparseVector | np.ndarray) -> None:
        """Take away the result of a step, and keep the energy of it; called by one rank after the step."""
        self._acc += self._arriving[step % 2]
        self._arriving[step % 2] = 0
        before = float(self._acc @ self._acc)
        if isinstance(total, SparseVector):
            best = attainable(self._acc, total.nnz)
            self._acc[total.indices] -= total.values
        else:
            best = before
            self._acc -= total
        after = self._acc @ self._acc
        self.captured.append(float((before - after) / best) if best else 1.0)


def energy_of(
    algorithm: Algorithm,
    gradients: Gradients,
    ranks: int,
    k: int,
    steps: int,
    progress: Callable[[], None] = lambda: None,
) -> EnergyCount:
    """Run ``steps`` steps with error feedback from a cold start, and count all of them."""
    energy = _Energy(gradients.size)

    def run(comm: Comm) -> np.ndarray:
        reducer, rows = SparseAllreduce(gradients.size, k=k, comm=comm, algorithm=algorithm), []
        for step in range(steps):
            gradient = gradients.at(step, comm.rank)
            energy.add(step, gradient)
            total = reducer.step(gradient)
            if comm.rank == 0:
                energy.remove(step, total)
                progress()
            found = present(reducer.report, "a step was made")
            traffic = found.traffic
            rows.append(
                (traffic.sent, traffic.control, traffic.received, traffic.messages, found.selected, found.total)
            )
        return np.array(rows, np.float64)

    counted = np.stack(World(ranks).run(run), axis=2)  # (steps, 6, ranks)
    payload, control, received, messages, selected, total = counted.transpose(1, 0, 2)
    sent, late = payload + control, slice(min(SETTLED, steps - 1), None)
    return EnergyCount(
        ranks,
        gradients.size,
        k,
        steps,
        sent=sent.mean(),
        control=control.mean(),
        lowest=8 * k * (ranks - 1) / ranks,
        largest_step=_peak(sent.mean(axis=1)),
        busiest_sender=_peak(sent.mean(axis=0)),
        busiest_receiver=_peak(received.mean(axis=0)),
        worst=_peak(sent),
        selected=selected[late].mean() / k,
        total=total[late].mean() / k,
        messages=messages.mean(),
        energy=float(np.mean(energy.captured[late])),
    )


def _peak(numbers: np.ndarray) -> float:
    return float(numbers.max() / numbers.mean()) if numbers.any() else 1.0


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
                    found = energy_of(algorithm, made, ranks, k, args.steps, bar.update)
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
