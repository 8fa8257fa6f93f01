"""``python -m sparse_mpi bench volume``: what every algorithm sends, over numbers of ranks, beside its formula."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.cli import options, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.reduction.arguments import make_algorithm, spelled
from sparse_mpi.wire import WIRES
from sparse_mpi_bench import options as bench_options
from sparse_mpi_bench.analysis import gradients, volume
from sparse_mpi_bench.analysis.volume import WORD, Volume
from sparse_mpi_bench.figures.draw_volume import figure

DESCRIPTION = """\
Count what every algorithm sends in training steps with error feedback, among ranks that all are in this one process:
payload in words (4 bytes), bytes of control, messages. Beside it stands what the algorithm's formula allows a rank; a
row that exceeds it ends in !, and the exit code is then 1.

  python -m sparse_mpi bench volume --ranks 2 3 7 64 --algorithms oktopk topka
  python -m sparse_mpi bench volume --ranks 16 --n 1000000 --density 0.01 --gradients layer-skewed
  python -m sparse_mpi bench volume --ranks 4 8 --gradients runs/gradients.npz --density 0.02 --phases
"""
LEGEND = """\
words: 4 bytes of payload a rank and step, mean over ranks and steps; between: those of them that are for other nodes;
most: of any rank in any step; formula: what the algorithm's bound allows a rank; /low: mean bytes of payload and
control over 8k(P-1)/P; balance: the busiest rank's payload over the mean; fill-in: entries the ranks select together,
each counted once, over k; control in bytes; formulas include the agreement with which a step begins"""
TABLE = Table(
    Column("algorithm", -26, "algorithm"),
    Column("P", 5, "ranks"),
    Column("k", 8, "k"),
    Column("words", 11, "words", ".0f"),
    Column("between", 11, "between", ".0f"),
    Column("most", 11, "most_words", ".0f"),
    Column("formula", 11, "formula_words", ".0f"),
    Column("/low", 7, lambda v: (v.words * WORD + v.control) / v.lowest if v.lowest else None, ".3f"),
    Column("control", 8, "control", ".0f"),
    Column("formula", 8, "formula_control", ".0f"),
    Column("msgs", 6, "messages", ".0f"),
    Column("formula", 8, "formula_messages", ".0f"),
    Column("balance", 8, "imbalance", ".3f"),
    Column("sel/k", 6, "selected", ".3f"),
    Column("total/k", 8, "total", ".3f"),
    Column("fill-in", 8, "fill_in", ".2f"),
)


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Yield a line for every count, the record, and 1 if a formula was exceeded."""
    counted: list[Volume] = []
    skipped = []
    yield TABLE.head
    for ranks in args.ranks:
        made, k = _gradients(args, ranks)
        for name in args.algorithms:
            algorithm = _made(name, args)
            if reason := _too_much(algorithm, made, k, ranks, args):
                skipped.append({"algorithm": name, "ranks": ranks, "reason": reason})
                yield f"{name:<26} {ranks:>5}  skipped: {reason}"
                continue
            with Bar(args.warmup + args.steps, f"{name}, {ranks} ranks") as bar:
                found = volume.count(
                    algorithm, name, made, ranks, k, args.steps, args.warmup, bar.update, args.ranks_per_node
                )
            counted.append(found)
            yield f"{TABLE.row(found)}{'' if found.within else ' !'}"
    yield f"\n{LEGEND}\n{made.title}, density {args.density:g}, nodes of {args.ranks_per_node} ranks"
    if args.phases is not None:
        wanted = args.phases or args.ranks[-1]
        yield "\n\n".join(["", *(_phases(v) for v in counted if v.ranks == wanted)])[1:]
    yield {"volumes": [v.record() for v in counted], "skipped": skipped}
    yield int(not all(v.within for v in counted))


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless the options are good, and good together."""
    if args.k_per_rank is not None and args.n is not None:
        raise Refused(f"--k-per-rank goes without --n, got {args.k_per_rank} and {args.n}; leave one out")
    if args.k_per_rank is not None and args.gradients not in gradients.KINDS:
        raise Refused("--k-per-rank has no effect on recorded gradients, whose length is given; use --density")
    if args.phases and args.phases not in args.ranks:
        raise Refused(f"--phases must be one of --ranks, got {args.phases}")
    options.check_taken(args, ["wire"])


def _made(text: str, args: argparse.Namespace) -> Algorithm:
    """Return the algorithm that ``text`` spells, with the options that are for all that take them."""
    name, own = spelled(text)
    return make_algorithm(name, options.taken(args, ["wire", "ranks_per_node"], name) | own)


def _gradients(args: argparse.Namespace, ranks: int) -> tuple[gradients.Gradients, int]:
    """Return the gradients for that many ranks, and k."""
    with refusing("--gradients or --n: "):
        if args.n is not None or args.gradients not in gradients.KINDS:
            made = gradients.make(args.gradients, args.n, args.seed, ranks)
            return made, max(1, round(args.density * made.size))
        k = (args.k_per_rank or 64) * ranks
        return gradients.make(args.gradients, round(k / args.density), args.seed, ranks), k


def _too_much(
    algorithm: Algorithm, made: gradients.Gradients, k: int, ranks: int, args: argparse.Namespace
) -> str | None:
    """Return why this would take too much time or memory, if it would."""
    pairs = volume.merged(algorithm, made.size, k, ranks)
    if pairs > args.most_pairs:
        return f"{pairs:.2g} pairs to merge in a step, more than --most-pairs {args.most_pairs:.2g}"
    needed = volume.gigabytes(algorithm, made, ranks)
    if needed > args.most_gigabytes:
        return f"about {needed:.1f} GB of vectors, more than --most-gigabytes {args.most_gigabytes:g}; lower n"
    return None


def _phases(v: Volume) -> str:
    """Return which calls of an algorithm send what, in the order of a step."""
    title = f"{v.algorithm}, P = {v.ranks}"
    table = Table(
        Column(title, -max(map(len, v.phases), default=1), lambda item: item[0]),
        Column("words", 11, lambda item: item[1].words, ".0f"),
        Column("most", 11, lambda item: item[1].most_words, ".0f"),
        Column("control", 9, lambda item: item[1].control, ".0f"),
        Column("msgs", 6, lambda item: item[1].messages, ".0f"),
    )
    return "\n".join(table.lines(v.phases.items()))


VOLUME = Benchmark(
    "volume",
    help="words and messages of every algorithm, beside its formula, for 2 to 1024 ranks",
    description=DESCRIPTION,
    options=(
        bench_options.POWERS_OF_RANKS,
        option("--algorithms NAME", options.SPELLINGS, values.algorithm, list(ALGORITHMS), nargs="+"),
        count("--k-per-rank K", None, "k is K times P, n what that is at the density (default: 64)"),
        count("--n", None, "elements of the gradient, the same for all P; k is what that is at the density"),
        options.share("k over n", 0.05),
        bench_options.GRADIENTS,
        count("--steps", 3, "steps counted, after --warmup more"),
        count("--warmup", 1, "steps not counted", 0),
        bench_options.RANKS_PER_NODE,
        option("--wire NAME", "how pairs are written, of every algorithm that lets choose", choices=list(WIRES)),
        options.seed(),
        option(
            "--most-pairs N",
            "skip what has more pairs to merge in a step, on all ranks together (default: 3e8)",
            values.positive,
            3e8,
        ),
        bench_options.MOST_GIGABYTES,
        option(
            "--phases P",
            "also which call sends what; for one P, or the last",
            values.integer(1, MAX_RANKS),
            nargs="?",
            const=0,
        ),
        options.json("also write all numbers, with what they were counted on"),
        options.plot("draw bytes and messages over P, with the formulas as thin lines"),
    ),
    measure=measure,
    check=check,
    figure=figure,
)
