"""``python -m sparse_mpi bench volume``: every algorithm's bytes, over numbers of ranks, and the removed energy."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.checks import check_choice
from sparse_mpi.cli import values
from sparse_mpi.cli.options import SPELLINGS, count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.collectives import algorithms as keyed_algorithms
from sparse_mpi.collectives.inputs import AUTO
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.analysis import gradients, volume
from sparse_mpi_bench.analysis.keyed_volume import CASES, KeyedVolume, count_within
from sparse_mpi_bench.analysis.volume import Volume
from sparse_mpi_bench.benchmark import Benchmark, Output
from sparse_mpi_bench.figures import draw_volume

PER_RANK = 64  # entries, where no length is given
POWERS = tuple(2**i for i in range(1, 11))
KINDS = tuple(gradients.KINDS)
KEYED = (AUTO, *keyed_algorithms.ALGORITHMS)
DESCRIPTION = """\
Count what every algorithm sends in training steps with error feedback, among ranks that all are in this one process:
payload in words (4 bytes), bytes of control, messages. Beside it stands what the algorithm's formula allows a rank; a
row that exceeds it ends in !, and the exit code is then 1. All start cold, and energy is the share of the gradient's
that results remove.

  python -m sparse_mpi bench volume --ranks 2 3 7 64 --algorithms oktopk topka
  python -m sparse_mpi bench volume --ranks 16 --n 1000000 --density 0.01 --gradients layer-skewed
  python -m sparse_mpi bench volume --ranks 4 8 --gradients runs/gradients.npz --density 0.02
  python -m sparse_mpi bench volume --ranks 2 8 --n 100000 --density 0.01 --steps 64 --warmup 0 --gradients opposed

--keyed counts what the algorithms of sparse_mpi.allreduce send in a sum of float64 values by keys. Beside it stands
what a ring of dense buffers sends at least, and what it takes to give all pairs of 16 bytes to all ranks, as pickled
allgather does.

  python -m sparse_mpi bench volume --keyed --ranks 2 16 128 --cases uniform zipf
"""
LEGEND = """\
words: 4 bytes of payload a rank and step, mean over ranks and steps; between: those of them that are for other nodes;
most: of any rank in any step; formula: what the algorithm's bound allows a rank; /low: mean bytes of payload and
control over 8k(P-1)/P; step: the largest step over the mean of all; balance: the busiest rank's payload over the mean;
energy: share of the summed acc's squared norm that the result removes, over that of as many of its largest entries,
mean of the steps from the 10th on; fill-in: entries the ranks select together, each counted once, over k; control in
bytes; formulas include the agreement with which a step begins"""
KEYED_LEGEND = """\
kB of payload that a rank sends: mean over ranks, and most; control: what is told before, at most; messages at most;
dense, pairs: payload and control of the busiest rank over what a ring of dense buffers sends, and pairs to all"""
TABLE = Table(
    Column("algorithm", -26, "algorithm"),
    Column("P", 5, "ranks"),
    Column("k", 8, "k"),
    Column("words", 11, "words", ".0f"),
    Column("between", 11, "between", ".0f"),
    Column("most", 11, "most_words", ".0f"),
    Column("formula", 11, "formula_words", ".0f"),
    Column("/low", 7, "over_bound", ".3f"),
    Column("control", 8, "control", ".0f"),
    Column("formula", 8, "formula_control", ".0f"),
    Column("msgs", 6, "messages", ".0f"),
    Column("formula", 8, "formula_messages", ".0f"),
    Column("step", 6, "largest_step", ".3f"),
    Column("balance", 8, "imbalance", ".3f"),
    Column("sel/k", 6, "selected", ".3f"),
    Column("total/k", 8, "total", ".3f"),
    Column("energy", 7, "energy", ".3f"),
    Column("fill-in", 8, "fill_in", ".2f"),
)
KEYED_TABLE = Table(
    Column("case", -10, "case"),
    Column("algorithm", -16, lambda v: v.algorithm + f": {v.chosen}" * (v.chosen != v.algorithm)),
    Column("P", 5, "ranks"),
    Column("entries", 9, "entries"),
    Column("result", 8, "result"),
    Column("mean", 9, lambda v: v.sent / 1e3, ".2f"),
    Column("most", 9, lambda v: v.most / 1e3, ".2f"),
    Column("control", 9, lambda v: v.control / 1e3, ".2f"),
    Column("msgs", 5, "messages"),
    Column("dense", 7, lambda v: (v.most + v.control) / v.dense if v.dense else None, ".3f"),
    Column("pairs", 7, lambda v: (v.most + v.control) / v.pairs if v.pairs else None, ".3f"),
)
FOR_KEYS, FOR_GRADIENTS = ("entries", "cases"), ("gradients", "plot")  # options of one alone


def measure(args: argparse.Namespace) -> Iterator[Output]:
    if args.keyed:
        yield from _of_keys(args)
        return
    counted: list[Volume] = []
    skipped, records = [], []
    yield TABLE.head
    for kind in args.gradients or KINDS[:1]:
        for ranks in args.ranks:
            made, k = _gradients(kind, args, ranks)
            for name in args.algorithms or ALGORITHMS:
                algorithm = bench_options.algorithm(name, args)
                if reason := _too_much(algorithm, made, k, ranks, args):
                    skipped.append({"algorithm": name, "ranks": ranks, "reason": reason})
                    yield f"{name:<26} {ranks:>5}  skipped: {reason}"
                    continue
                with Bar(args.warmup + args.steps, f"{name}, {ranks} ranks") as bar:
                    found = volume.count(
                        algorithm, name, made, ranks, k, args.steps, args.warmup, bar.update, args.ranks_per_node
                    )
                counted.append(found)
                records.append(found.record() | {"gradients": kind})
                yield f"{TABLE.row(found)}{'' if found.within else ' !'}"
        yield f"{made.title}, density {args.density:g}, nodes of {args.ranks_per_node} ranks\n"
    yield LEGEND
    yield {"volumes": records, "skipped": skipped}
    yield int(not all(v.within for v in counted))


def _of_keys(args: argparse.Namespace) -> Iterator[Output]:
    counted: list[KeyedVolume] = []
    skipped = []
    yield KEYED_TABLE.head
    ways = list(product(args.cases or CASES, args.algorithms or KEYED))
    with Bar(len(ways) * len(set(args.ranks)), "sums") as bar:
        for case, algorithm in ways:
            before: KeyedVolume | None = None
            for ranks in sorted(set(args.ranks)):
                try:
                    before = count_within(
                        args.most_gigabytes, case, algorithm, ranks, args.n or 10_000, args.entries or 100, before
                    )
                except ValueError as refusal:
                    skipped.append({"case": case, "algorithm": algorithm, "ranks": ranks, "reason": str(refusal)})
                    yield f"{case:<10} {algorithm:<16} {ranks:>5}  skipped: {refusal}"
                else:
                    counted.append(before)
                    yield KEYED_TABLE.row(before)
                bar.update()
    yield f"\n{KEYED_LEGEND}"
    yield {"volumes": [asdict(v) for v in counted], "skipped": skipped}


def check(args: argparse.Namespace) -> None:
    for name in FOR_GRADIENTS if args.keyed else FOR_KEYS:
        if getattr(args, name) is not None:
            raise Refused(f"--{name.replace('_', '-')} goes {'without' if args.keyed else 'with'} --keyed")
    with refusing("--"):
        for name in args.algorithms or ():
            check_choice("algorithms", name, KEYED) if args.keyed else spelled(name)


def _gradients(kind: str, args: argparse.Namespace, ranks: int) -> tuple[gradients.Gradients, int]:
    with refusing("--gradients or --n: "):
        if args.n is not None or kind not in KINDS:
            made = gradients.make(kind, args.n, args.seed, ranks)
            return made, max(1, round(args.density * made.size))
        k = PER_RANK * ranks
        return gradients.make(kind, round(k / args.density), args.seed, ranks), k


def _too_much(
    algorithm: Algorithm, made: gradients.Gradients, k: int, ranks: int, args: argparse.Namespace
) -> str | None:
    needed = volume.gigabytes(algorithm, made, ranks)
    if needed > args.most_gigabytes:
        return f"about {needed:.1f} GB of vectors, more than --most-gigabytes {args.most_gigabytes:g}; lower n"
    return None


def _known(name: str) -> None:
    if name not in KEYED:
        spelled(name)


VOLUME = Benchmark(
    "volume",
    help="words and messages of every algorithm, beside its formula, for 2 to 1024 ranks",
    description=DESCRIPTION,
    options=(
        option("--keyed", "count sums of data that is sparse already", action="store_true"),
        option("--ranks P", "default: powers of two from 2 to 1024", values.integer(1, MAX_RANKS), POWERS, nargs="+"),
        option(
            "--algorithms NAME",
            f"{SPELLINGS}; with --keyed {', '.join(KEYED)} (default: all)",
            values.checked(_known, "oktopk:wire=packed", "algorithm"),
            nargs="+",
        ),
        count("--n", None, f"elements of the gradient (default: k is {PER_RANK} P), or keys (default: 10,000)"),
        count("--entries", None, "that a rank has, at most, with --keyed (default: 100)"),
        option("--cases NAME", "of data, with --keyed (default: all)", choices=list(CASES), nargs="+"),
        option("--density", "k over n", values.share, 0.05),
        option(
            "--gradients KIND", f"{bench_options.GRADIENTS} (default: {KINDS[0]})", bench_options.gradients, nargs="+"
        ),
        count("--steps", 3, "steps counted, after --warmup more"),
        count("--warmup", 1, "steps not counted", 0),
        bench_options.RANKS_PER_NODE,
        count("--seed", 0, "of all that is drawn at random", 0),
        option("--most-gigabytes GB", "skip what needs more GB of memory", values.positive, 12.0),
        option("--json FILE", "also write all numbers, with what they were counted on", values.record),
        option("--plot FILE", "draw bytes and messages over P, with the formulas as thin lines", values.figure),
    ),
    measure=measure,
    check=check,
    figure=draw_volume.figure,
)
