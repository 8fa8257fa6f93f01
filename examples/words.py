"""Count neighbouring words: Counters of strings, added up over ranks.

    python -m sparse_mpi run -n 4 examples/words.py --plot words.png

Each rank counts the pairs of its share of a text, and all ranks get the counts of the
whole. The text is Python's own manual, as it comes with Python. The answer is checked
against one process.
"""

import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi_bench.figures.style import COLOURS, panels, write

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "--best", type=values.integer(1), default=15, help="pairs shown (default: 15)"
)
parser.add_argument(
    "--save",
    type=values.new_folder("runs/words"),
    metavar="DIR",
    help="write what each rank has, for bench sparse --data DIR",
)
parser.add_argument("--plot", type=values.figure, metavar="FILE", help="draw them")


def pairs(texts: list[str]) -> Counter[str]:
    """Count neighbouring words, with a space between them."""
    found: Counter[str] = Counter()
    for text in texts:
        words = re.findall(r"[a-z]+", text.lower())
        found.update(map(" ".join, pairwise(words)))
    return found


def main() -> None:
    """Count, and check it."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    texts = [topics[name] for name in sorted(topics)]
    mine = pairs(texts[world.rank :: world.size])
    total = sparse_mpi.allreduce(mine)
    if args.save:
        args.save.mkdir(parents=True, exist_ok=True)
        number = {
            pair: place for place, pair in enumerate(total)
        }  # in the order of the pairs, the same on all ranks
        keys = [number[pair] for pair in mine]
        np.savez(
            args.save / f"rank-{world.rank}.npz", keys=keys, values=list(mine.values())
        )

    if world.rank == 0:
        best = total.most_common(args.best)
        print(
            f"{len(texts)} texts, {total.total():,} pairs, {len(total):,} distinct, "
            f"{world.size} ranks"
        )
        for pair, count in best:
            print(f"{count:6,}  {pair}")
        if total != pairs(texts):
            raise SystemExit("the answer is not that of one process")
        print("as counted by one process")
        if args.plot:
            write(partial(figure, *zip(*best, strict=True)), args.plot)


def figure(names: tuple[str, ...], counts: tuple[int, ...]) -> Any:
    """Draw counts as bars."""
    drawn, ((axes,),) = panels(1, 1, 3.2)
    axes.barh(names[::-1], counts[::-1], color=COLOURS[0])
    axes.set(xlabel="occurrences", title="Neighbouring words of Python's manual")
    return drawn


if __name__ == "__main__":
    main()
