"""Boosted trees from gradient histograms and quantile sketches: pairs (keys, values).

    python -m sparse_mpi run -n 4 examples/histograms.py --plot histograms.png

Each rank holds some rows of a table. A sketch of its columns counts the values that
begin with the same bits; sketches are added up, and tell every quantile to 1.6 % of
itself, which is where columns are cut into bins. Then trees grow level by level: the
first and second derivatives of the loss are added up for each node, column and bin that
has rows, and all ranks take the best split of each node. They are whole numbers of
millionths, so that sums are exact in any order. The data are the 569 tumours of scikit-
learn. The trees are checked against those of one process.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_breast_cancer

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import as_comm
from sparse_mpi_bench.figures.style import LINES, name_lines, panels, write

KEPT = 5  # bits of the mantissa
DROPPED = 52 - KEPT
ALLOWED = 2.0 ** -(
    KEPT + 1
)  # the middle of all numbers that begin alike is off by no more of any of them
COLUMN = (
    1 << 40
)  # keys of a sketch that a column has; the codes of its values are below half of that
BINS = 64
UNIT = 1e-6  # of derivatives
CAUTION = 1.0  # added to second derivatives: few rows do not make a large weight
RATE = 0.3

Merge = Callable[
    [str, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]  # what it is, keys, values: their sums

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "--trees", type=values.integer(1), default=20, help="how many (default: 20)"
)
parser.add_argument(
    "--depth", type=values.integer(1), default=5, help="of a tree (default: 5)"
)
parser.add_argument(
    "--save",
    type=values.new_folder("runs/histograms"),
    metavar="DIR",
    help="write each rank's sketch, for bench sparse --data DIR",
)
parser.add_argument(
    "--plot",
    type=values.figure,
    metavar="FILE",
    help="draw what a sum sends, and the loss tree by tree",
)


class Tree(NamedTuple):
    """A tree whose root is node 1, and in which node i has children 2i and 2i + 1."""

    # (2^(depth + 1), 2) int64: the column, -1 for none, and the last bin that goes to
    # 2i
    splits: np.ndarray
    weights: (
        np.ndarray
    )  # (2^(depth + 1),) added to the score of the rows that end there

    def nodes(self, bins: np.ndarray, depth: int) -> np.ndarray:
        """Return the nodes ``(rows,)`` of rows of ``bins`` at ``depth``, or above."""
        node, rows = np.ones(len(bins), np.int64), np.arange(len(bins))
        for _ in range(depth):
            column, last = self.splits[node].T
            node = np.where(column < 0, node, 2 * node + (bins[rows, column] > last))
        return node


def sketch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return keys, ascending with columns and values of ``x``, and counts."""
    size = np.abs(x).view(np.int64) >> DROPPED  # exponent and first bits
    return np.unique(
        COLUMN * np.arange(x.shape[1]) + np.where(x < 0, ~size, size),
        return_counts=True,
    )


def ranks_of_cuts(rows: int) -> np.ndarray:
    """Return which ascending values of a column, from 1, are its quantiles."""
    return -(-np.arange(1, BINS) * rows // BINS)


def quantiles(keys: np.ndarray, counts: np.ndarray, columns: int) -> np.ndarray:
    """Return the quantiles ``(BINS - 1, columns)`` that a sketch tells."""
    found = []
    for number in range(columns):
        here = (keys + COLUMN // 2) // COLUMN == number
        codes, upto = keys[here] - COLUMN * number, np.cumsum(counts[here])
        codes = codes[np.searchsorted(upto, ranks_of_cuts(upto[-1]))]
        size = np.where(codes < 0, ~codes, codes)
        middle = (size << DROPPED | 1 << (DROPPED - 1)).view(np.float64)
        found.append(np.where(size == 0, 0, np.where(codes < 0, -middle, middle)))
    return np.stack(found, axis=1)


def binned(x: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return the bins ``(rows, columns)`` of all values."""
    return np.stack(
        [np.searchsorted(*pair) for pair in zip(cuts.T, x.T, strict=True)], axis=1
    )


def score(sums: np.ndarray) -> np.ndarray:
    """Return twice what a weight takes off the loss, by sums ``(..., 2)``."""
    return (UNIT * sums[..., 0]) ** 2 / (UNIT * sums[..., 1] + CAUTION)


def split(tree: Tree, keys: np.ndarray, sums: np.ndarray, columns: int) -> None:
    """Split nodes where it takes most off the loss, and give their children weights."""
    column, upto = keys // BINS, np.cumsum(sums, axis=0)
    before = (upto - sums)[
        np.searchsorted(column, column)
    ]  # the column of that node begins
    left = upto - before
    whole = upto[np.searchsorted(column, column, side="right") - 1] - before
    gains = score(left) + score(whole - left) - score(whole)
    node = column // columns
    for number, start, size in zip(
        *np.unique(node, return_index=True, return_counts=True), strict=True
    ):
        best = start + np.argmax(gains[start : start + size])
        if gains[best] > 1e-3:
            tree.splits[number] = column[best] % columns, keys[best] % BINS
            for child, (first, second) in enumerate(
                (left[best], whole[best] - left[best]), 2 * number
            ):
                tree.weights[child] = -RATE * UNIT * first / (UNIT * second + CAUTION)


def boosted(
    x: np.ndarray, y: np.ndarray, trees: int, depth: int, merge: Merge
) -> tuple[np.ndarray, list[Tree]]:
    """Return cuts ``(BINS - 1, columns)`` and trees for rows ``x`` of classes ``y``."""
    columns, found, scores = x.shape[1], [], np.zeros(len(x))
    cuts = quantiles(*merge("sketch", *sketch(x)), columns)
    bins = binned(x, cuts)
    for _ in range(trees):
        tree = Tree(np.full((2 << depth, 2), -1), np.zeros(2 << depth))
        chance = 1 / (1 + np.exp(-scores))
        derivatives = np.rint(
            np.stack([chance - y, chance * (1 - chance)], axis=1) / UNIT
        ).astype(np.int64)
        for level in range(depth):
            node = tree.nodes(bins, level)
            grows = node >> level == 1  # the others ended before
            keys = (node[grows, None] * columns + np.arange(columns)) * BINS + bins[
                grows
            ]
            # A row has as many keys as there are columns; equal keys are added up
            # before they are sent.
            values = np.repeat(derivatives[grows], columns, axis=0)
            split(tree, *merge(f"level {level}", keys.ravel(), values), columns)
        scores += tree.weights[tree.nodes(bins, depth)]
        found.append(tree)
    return cuts, found


def alone(
    what: str, keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of one process."""
    distinct, place = np.unique(keys, return_inverse=True)
    sums = np.zeros((len(distinct), *values.shape[1:]), np.int64)
    np.add.at(sums, place, values)
    return distinct, sums


def losses(
    x: np.ndarray, y: np.ndarray, cuts: np.ndarray, trees: list[Tree], depth: int
) -> np.ndarray:
    """Return the mean loss after each tree ``(trees,)``."""
    bins = binned(x, cuts)
    scores = np.cumsum(
        [tree.weights[tree.nodes(bins, depth)] for tree in trees], axis=0
    )
    return np.logaddexp(0, np.where(y, -scores, scores)).mean(axis=1)


def main() -> None:
    """Grow trees, and check them."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    x, y = load_breast_cancer(return_X_y=True)
    kept = np.arange(len(x)) % 5 == 0
    rows_of = {"known": ~kept, "other": kept}
    known, classes = x[~kept], y[~kept]
    told: dict[str, np.ndarray] = {}

    def merge(
        what: str, keys: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        before = as_comm().traffic.copy()
        found = sparse_mpi.allreduce((keys, values))
        moved = as_comm().traffic - before
        told[what] = told.get(what, 0) + np.array(
            [1, len(found[0]), (moved.sent + moved.control) / 1e3]
        )
        return found

    mine = slice(world.rank, None, world.size)
    if args.save:
        keys, counts = sketch(known[mine])
        args.save.mkdir(parents=True, exist_ok=True)
        np.savez(args.save / f"rank-{world.rank}.npz", keys=keys, values=counts)
    cuts, trees = boosted(known[mine], classes[mine], args.trees, args.depth, merge)
    if world.rank == 0:
        report(told, x.shape[1], world.size)
        errors = checked(known, classes, cuts, trees, args.depth)
        print(
            f"quantiles are off by at most {errors.max():.3%}, {ALLOWED:.3%} is allowed"
        )
        curves = {
            name: losses(x[rows], y[rows], cuts, trees, args.depth)
            for name, rows in rows_of.items()
        }
        print(
            ", ".join(
                f"loss of {name} rows {curve[-1]:.4f}" for name, curve in curves.items()
            )
        )
        print(f"{args.trees} trees, as grown by one process")
        if args.plot:
            write(
                partial(figure, kilobytes(told, x.shape[1], world.size), curves),
                args.plot,
            )


def checked(
    x: np.ndarray, y: np.ndarray, cuts: np.ndarray, trees: list[Tree], depth: int
) -> np.ndarray:
    """Return the relative errors of quantiles; end if they or the trees are wrong."""
    exact = np.sort(x, axis=0)[ranks_of_cuts(len(x)) - 1]
    errors = abs(cuts - exact) / np.where(exact == 0, 1, abs(exact))
    expected_cuts, expected = boosted(x, y, len(trees), depth, alone)
    same = all(
        np.array_equal(tree[i], other[i])
        for tree, other in zip(trees, expected, strict=True)
        for i in (0, 1)
    )
    if not (same and np.array_equal(cuts, expected_cuts) and errors.max() <= ALLOWED):
        raise SystemExit("the answer is not that of one process")
    return errors


def kilobytes(told: dict[str, np.ndarray], columns: int, ranks: int) -> np.ndarray:
    """Return the kB of rank 0 in a sum ``(levels, 2)``: filled bins, all bins."""
    dense = 2 * (ranks - 1) / ranks * columns * BINS * 16 / 1e3
    levels = [told[what] for what in told if what != "sketch"]
    return np.array(
        [
            (sent / times, dense * 2**level)
            for level, (times, _, sent) in enumerate(levels)
        ]
    )


def report(told: dict[str, np.ndarray], columns: int, ranks: int) -> None:
    """Print what was added up, beside dense histograms in a ring."""
    print("          sums  keys each       of  kB sent by rank 0, each    dense")
    times, keys, sent = told["sketch"]
    print(f"sketch   {times:5.0f} {keys / times:10.0f} {'':>8} {sent / times:24.1f}")
    for level, (sent, dense) in enumerate(kilobytes(told, columns, ranks)):
        times, keys, _ = told[f"level {level}"]
        print(
            f"level {level:<2} {times:5.0f} {keys / times:10.0f} "
            f"{columns * BINS << level:8} {sent:24.1f} {dense:8.1f}"
        )


def figure(sent: np.ndarray, curves: dict[str, np.ndarray]) -> Any:
    """Draw what sums send, level by level, and losses."""
    drawn, ((left, right),) = panels(1, 2, 3.0)
    for name, sums, colour in zip(
        ("bins with rows", "all bins"), sent.T, LINES[::-1][-2:], strict=True
    ):
        left.plot(np.arange(len(sums)), sums, "o-", color=colour, label=name)
    left.set(
        xlabel="level of the tree",
        xticks=range(len(sent)),
        yscale="log",
        title="kB that a rank sends in a sum",
    )
    for (name, curve), colour in zip(curves.items(), LINES, strict=False):
        right.plot(
            np.arange(1, len(curve) + 1), curve, color=colour, label=f"{name} rows"
        )
    right.set(xlabel="trees", yscale="log", title="log loss")
    for axes in (left, right):
        name_lines(axes)
    return drawn


if __name__ == "__main__":
    main()
