"""``python -m sparse_mpi bench volume``: what every algorithm sends, over numbers of ranks, beside its formula."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS, Algorithm
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.reduction.arguments import make_algorithm, spelled, takes
from sparse_mpi.tools.analysis import gradients, volume
from sparse_mpi.tools.analysis.volume import Volume
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.figures import save
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.volume_table import RATIOS, phases, row, title
from sparse_mpi.tools.figures.volume import figure
from sparse_mpi.wire import WIRES

OPTIONS = ("wire",)  # of the algorithms that have them
POWERS = tuple(2**i for i in range(1, 11))
DESCRIPTION = """\
Count what every algorithm sends in training steps with error feedback, among ranks that all are in this one process:
payload in words (4 bytes), bytes of control, messages. Beside it stands what the algorithm's formula allows a rank; a
row that exceeds it ends in !, and the exit code is then 1.

  python -m sparse_mpi bench volume --ranks 2 3 7 64 --algorithms oktopk topka
  python -m sparse_mpi bench volume --ranks 16 --n 1000000 --density 0.01 --gradients layer-skewed
  python -m sparse_mpi bench volume --ranks 4 8 --gradients runs/gradients.npz --density 0.02 --phases
"""


def add_parser(kinds: argparse._SubParsersAction) -> None:
    """Declare ``bench volume``."""
    parser = kinds.add_parser(
        "volume",
        help="words and messages of every algorithm, beside its formula, for 2 to 1024 ranks",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add(
        "--ranks",
        type=values.integer(1, MAX_RANKS),
        nargs="+",
        default=POWERS,
        metavar="P",
        help="default: powers of two from 2 to 1024",
    )
    add(
        "--algorithms",
        nargs="+",
        type=values.algorithm,
        default=list(ALGORITHMS),
        metavar="NAME",
        help=values.SPELLINGS,
    )
    add(
        "--k-per-rank",
        type=values.integer(1),
        metavar="K",
        help="k is K times P, n what that is at the density (default: 64)",
    )
    add(
        "--n",
        type=values.integer(1),
        help="elements of the gradient, the same for all P; k is what that is at the density",
    )
    add("--density", type=values.share, default=0.05, help="k over n (default: 0.05)")
    text = f"{', '.join(gradients.KINDS)}, or a file of train/gradients.py (default: independent)"
    add("--gradients", type=values.gradients, default="independent", metavar="KIND", help=text)
    add("--steps", type=values.integer(1), default=3, help="steps counted, after --warmup more (default: 3)")
    add("--warmup", type=values.integer(0), default=1, help="steps not counted (default: 1)")
    text = "consecutive ranks that are a node (default: 4)"
    add("--ranks-per-node", type=values.integer(1), default=4, metavar="R", help=text)
    add(
        "--wire", choices=list(WIRES), metavar="NAME", help="how pairs are written, of every algorithm that lets choose"
    )
    add("--seed", type=values.integer(0), default=0, help="of all that is drawn at random")
    text = "skip what has more pairs to merge in a step, on all ranks together (default: 3e8)"
    add("--most-pairs", type=values.positive, default=3e8, metavar="N", help=text)
    text = "skip what needs more GB of memory (default: 12)"
    add("--most-gigabytes", type=values.positive, default=12.0, metavar="GB", help=text)
    add(
        "--phases",
        type=values.integer(1, MAX_RANKS),
        nargs="?",
        const=0,
        metavar="P",
        help="also which call sends what; for one P, or the last",
    )
    add("--json", type=values.record, metavar="FILE", help="also write all numbers, with what they were counted on")
    add(
        "--plot",
        type=values.figure,
        metavar="FILE",
        help="draw bytes and messages over P, with the formulas as thin lines",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print; return 1 if a formula was exceeded."""
    _check(args)
    counted: list[Volume] = []
    skipped: list[dict[str, Any]] = []
    print(title())
    for ranks in args.ranks:
        made, k = _gradients(args, ranks)
        for name in args.algorithms:
            algorithm = _made(name, args)
            if reason := _too_much(algorithm, made, k, ranks, args):
                skipped.append({"algorithm": name, "ranks": ranks, "reason": reason})
                print(f"{name:<26} {ranks:>5}  skipped: {reason}", flush=True)
                continue
            with Bar(args.warmup + args.steps, f"{name}, {ranks} ranks") as bar:
                found = volume.count(
                    algorithm, name, made, ranks, k, args.steps, args.warmup, bar.update, args.ranks_per_node
                )
            counted.append(found)
            print(row(counted[-1]), flush=True)
    print(f"\n{RATIOS}\n{made.title}, density {args.density:g}, nodes of {args.ranks_per_node} ranks")
    if args.phases is not None:
        wanted = args.phases or args.ranks[-1]
        print("\n\n".join(["", *(phases(v) for v in counted if v.ranks == wanted)])[1:])
    volumes = {"volumes": [v.record() for v in counted], "skipped": skipped}
    if args.json:
        records.write(args.json, {"options": records.options(args)}, provenance(), volumes)
    if args.plot:
        save(partial(figure, [volumes]), args.plot)
    return int(not all(v.within for v in counted))


def _check(args: argparse.Namespace) -> None:
    """Raise Refused unless the options are good, and good together."""
    if args.k_per_rank is not None and args.n is not None:
        raise Refused(f"--k-per-rank goes without --n, got {args.k_per_rank} and {args.n}; leave one out")
    if args.k_per_rank is not None and args.gradients not in gradients.KINDS:
        raise Refused("--k-per-rank has no effect on recorded gradients, whose length is given; use --density")
    if args.phases and args.phases not in args.ranks:
        raise Refused(f"--phases must be one of --ranks, got {args.phases}")
    for option in OPTIONS:
        value = getattr(args, option)
        if value is not None and not any(takes(spelled(name)[0], option, value) for name in args.algorithms):
            names = ", ".join(args.algorithms)
            raise Refused(f"--{option} {value} has no effect on {names}; leave it out or take another one")


def _made(text: str, args: argparse.Namespace) -> Algorithm:
    """Return the algorithm that ``text`` spells, with the options that are for all that take them."""
    name, own = spelled(text)
    given = {option: getattr(args, option) for option in OPTIONS if getattr(args, option) is not None}
    given["ranks_per_node"] = args.ranks_per_node
    return make_algorithm(name, {o: value for o, value in given.items() if takes(name, o, value)} | own)


def _gradients(args: argparse.Namespace, ranks: int) -> tuple[gradients.Gradients, int]:
    """Return the gradients for that many ranks, and k."""
    try:
        if args.n is not None or args.gradients not in gradients.KINDS:
            made = gradients.make(args.gradients, args.n, args.seed, ranks)
            return made, max(1, round(args.density * made.size))
        k = (args.k_per_rank or 64) * ranks
        return gradients.make(args.gradients, round(k / args.density), args.seed, ranks), k
    except ValueError as error:
        raise Refused(f"--gradients or --n: {error}") from None


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
