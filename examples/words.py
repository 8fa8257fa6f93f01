"""Count neighbouring words: Counters of integers, added up over ranks.

    python -m sparse_mpi run -n 4 examples/words.py --plot words.png

Each rank counts the pairs of its share of a text. A pair is a number made of two checksums, which all ranks compute
alike, so that nobody needs a common vocabulary; words are looked up where the pair was seen. The text is Python's own
manual, as it comes with Python. The answer is checked against one process.
"""

import re
from collections import Counter
from functools import partial
from pydoc_data.topics import topics
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.parsing import Parser
from sparse_mpi.figures.style import Look, panels, write

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument("--best", type=values.integer(1), default=15, help="pairs shown (default: 15)")
parser.add_argument(
    "--save",
    type=values.new_folder("runs/words"),
    metavar="DIR",
    help="write what each rank has, for bench sparse --data DIR",
)
parser.add_argument("--plot", type=values.figure, metavar="FILE", help="draw them")


def number(pair: tuple[str, str]) -> int:
    """Return a number below 2^63 for a pair of words."""
    first, second = (crc32(word.encode()) for word in pair)
    return first << 31 | second >> 1


def pairs(texts: list[str]) -> Counter[tuple[str, str]]:
    """Count neighbouring words."""
    found: Counter[tuple[str, str]] = Counter()
    for text in texts:
        words = re.findall(r"[a-z]+", text.lower())
        found.update(zip(words, words[1:], strict=False))
    return found


def main() -> None:
    """Count, and check it."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    texts = [topics[name] for name in sorted(topics)]
    mine = pairs(texts[world.rank :: world.size])
    numbered = Counter({number(pair): count for pair, count in mine.items()})
    if args.save:
        args.save.mkdir(parents=True, exist_ok=True)
        np.savez(args.save / f"rank-{world.rank}.npz", keys=list(numbered), values=list(numbered.values()))
    total = sparse_mpi.allreduce(numbered)

    best = total.most_common(args.best)
    here = {number(pair): " ".join(pair) for pair in mine}
    known = world.allgather({key: here[key] for key, _ in best if key in here})
    names = {key: words for part in known for key, words in part.items()}
    if world.rank == 0:
        expected = Counter({number(pair): count for pair, count in pairs(texts).items()})
        print(f"{len(texts)} texts, {total.total():,} pairs, {len(total):,} distinct, {world.size} ranks")
        for key, count in best:
            print(f"{count:6,}  {names[key]}")
        if total != expected:
            raise SystemExit("the answer is not that of one process")
        print("as counted by one process")
        if args.plot:
            write(partial(figure, [names[key] for key, _ in best], [count for _, count in best]), args.plot)


def figure(names: list[str], counts: list[int], look: Look) -> Any:
    """Draw counts as bars."""
    drawn, ((axes,),) = panels(1, 1, 3.2)
    axes.barh(names[::-1], counts[::-1], color=look.colours[0])
    axes.set(xlabel="occurrences", title="Neighbouring words of Python's manual")
    return drawn


if __name__ == "__main__":
    main()
