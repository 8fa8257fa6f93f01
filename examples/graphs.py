"""Embeddings of a graph by GraphSAGE: a batch touches few rows, which are added up.

    python -m sparse_mpi run -n 4 examples/graphs.py --plot graphs.svg

The nodes are the words of Python's own manual, as it comes with Python, and edges join
words that stand side by side there. The ranks draw edges, and the table learns which
words are neighbours. The answer is checked against one process. Then sums are counted
for batches of larger graphs, whose degrees fall as by preferential attachment.
"""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI

import sparse_mpi
from sparse_mpi.cli import values
from sparse_mpi.cli.values import Parser
from sparse_mpi.comm import as_comm
from sparse_mpi_bench.figures.style import COLOURS, INK, name_lines, panels, write

WIDTH, NEIGHBOURS, BATCH = 64, 8, 32
RATES = (10, 0.5, 0.5)  # of the table, of which a step has few rows, and of the layer
DEGREE = 7  # edges of a node of larger graphs

Gradients = list[torch.Tensor]  # of the table, sparse, and of the layer
Batch = tuple[np.ndarray, np.ndarray]

parser = Parser(description=__doc__.partition("\n")[0])
parser.add_argument(
    "--steps",
    type=values.integer(1),
    default=300,
    help="how many (default: 300)",
)
parser.add_argument(
    "--larger",
    type=values.integer(0),
    default=2,
    help="graphs of 10^4 nodes, 10^5, ... (default: 2)",
)
parser.add_argument(
    "--plot",
    type=values.figure,
    metavar="FILE",
    help="draw what a step sends, and the loss",
)


class Graph(NamedTuple):
    """An undirected graph."""

    ends: np.ndarray  # (2 edges, 2) both directions of each edge, sorted by node
    starts: np.ndarray  # (nodes + 1,) where those of each node begin

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return len(self.starts) - 1

    def batch(self, draw: np.random.Generator) -> Batch:
        """Return ends of edges and nodes at random ``(3 BATCH,)``, and neighbours."""
        left, right = self.ends[draw.integers(0, len(self.ends), BATCH)].T
        nodes = np.concatenate([left, right, draw.integers(0, self.nodes, BATCH)])
        degrees = np.diff(self.starts)[nodes, None]
        chosen = draw.integers(0, degrees, (len(nodes), NEIGHBOURS))
        return nodes, self.ends[self.starts[nodes, None] + chosen, 1]


def graph_of(edges: np.ndarray, nodes: int) -> Graph:
    """Return the graph with these edges ``(m, 2)``."""
    ends = np.concatenate([edges, edges[:, ::-1]])
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    return Graph(ends, np.searchsorted(ends[:, 0], np.arange(nodes + 1)))


def words() -> Graph:
    """Return the graph of neighbouring words."""
    texts = [re.findall("[a-z]+", topics[name].lower()) for name in sorted(topics)]
    distinct = sorted({word for text in texts for word in text})
    number = {word: place for place, word in enumerate(distinct)}
    pairs = {tuple(sorted(pair)) for text in texts for pair in pairwise(text)}
    edges = {(number[a], number[b]) for a, b in pairs if a != b}
    return graph_of(np.array(sorted(edges)), len(number))


def grown(nodes: int) -> Graph:
    """Return a graph whose nodes are joined to others, more often to early ones."""
    later = np.arange(1, nodes).repeat(DEGREE)
    share = np.random.default_rng(nodes).random(len(later)) ** 2
    earlier = (later * share).astype(np.int64)
    return graph_of(np.stack([later, earlier], axis=1), nodes)


class Sage(torch.nn.Module):
    """A layer of GraphSAGE over embeddings of a node, and the mean of neighbours."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(nodes, WIDTH, sparse=True)
        torch.nn.init.normal_(self.table.weight, std=0.3)
        self.layer = torch.nn.Linear(2 * WIDTH, WIDTH)

    def loss(self, nodes: np.ndarray, around: np.ndarray) -> torch.Tensor:
        """Return the mean loss of a batch: ends of edges are to be alike."""
        mean = self.table(torch.from_numpy(around)).mean(dim=1)
        both = torch.cat([self.table(torch.from_numpy(nodes)), mean], dim=1)
        left, right, other = self.layer(both).chunk(3)
        scores = torch.cat([(left * right).sum(1), -(left * other).sum(1)])
        return torch.nn.functional.softplus(-scores).mean()

    def gradients(self, batch: Batch) -> tuple[float, Gradients]:
        """Return the loss of a batch, and the gradients of all parameters."""
        self.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        return loss.item(), [weight.grad for weight in self.parameters()]


def trained(
    graph: Graph,
    steps: int,
    draws: list[np.random.Generator],
    merge: Callable[[list[Gradients]], Gradients],
) -> tuple[np.ndarray, torch.Tensor]:
    """Return the losses ``(steps,)``, and the table; ``merge`` makes mean gradients."""
    model, losses = Sage(graph.nodes), []
    for _ in range(steps):
        found = [model.gradients(graph.batch(draw)) for draw in draws]
        losses.append(np.mean([loss for loss, _ in found]))
        with torch.no_grad():
            means = merge([each for _, each in found])
            weights = model.parameters()
            for weight, mean, rate in zip(weights, means, RATES, strict=True):
                weight.add_(mean, alpha=-rate)
    return np.array(losses), model.table.weight.detach()


def alone(found: list[Gradients]) -> Gradients:
    """Return the mean of the gradients of all batches, in one process."""
    return [sum(each[1:], each[0]) / len(found) for each in zip(*found, strict=True)]


def over_ranks(found: list[Gradients]) -> Gradients:
    """Return the mean of the gradients of all ranks, each of one batch."""
    comm, ((table, *layer),) = as_comm(), found
    sums = [
        sparse_mpi.allreduce(table),
        *(torch.from_numpy(comm.allreduce(each.numpy())) for each in layer),
    ]
    return [each / comm.size for each in sums]


def volume(graph: Graph, draw: np.random.Generator, steps: int = 10) -> np.ndarray:
    """Return the nodes, the rows of a rank and of all in a step, and the kB sent."""
    comm, rows, union = as_comm(), 0, 0
    before = comm.traffic.copy()
    for _ in range(steps):
        nodes, around = graph.batch(draw)
        touched = torch.from_numpy(np.union1d(nodes, around))
        values = torch.ones(len(touched), WIDTH) / 3
        gradient = torch.sparse_coo_tensor(
            touched[None],
            values,
            (graph.nodes, WIDTH),
            is_coalesced=True,
            check_invariants=False,
        )
        rows, union = rows + len(touched), union + sparse_mpi.allreduce(gradient)._nnz()
    moved = comm.traffic - before
    return np.array(
        [
            graph.nodes,
            rows / steps,
            union / steps,
            (moved.sent + moved.control) / steps / 1e3,
        ]
    )


def main() -> None:
    """Learn, check it, and count what larger graphs send."""
    args, world = parser.parse_args(), MPI.COMM_WORLD
    graph, draws = (
        words(),
        [np.random.default_rng([1, rank]) for rank in range(world.size)],
    )
    losses, table = trained(graph, args.steps, [draws[world.rank]], over_ranks)
    losses = np.mean(world.allgather(losses), axis=0)
    graphs = [graph, *(grown(10**power) for power in range(4, 4 + args.larger))]
    told = np.array([volume(each, draws[world.rank]) for each in graphs])
    if world.rank == 0:
        dense, gathered = sent_otherwise(told, world.size)
        print("     nodes  rows of a rank  of all  kB sent  gathered   dense")
        for row in np.column_stack([told, gathered, dense]).tolist():
            print("{:10,.0f} {:15.0f} {:7.0f} {:8.0f} {:9.0f} {:7,.0f}".format(*row))
        fresh = [np.random.default_rng([1, rank]) for rank in range(world.size)]
        expected, other = trained(graph, args.steps, fresh, alone)
        difference = float(abs(table - other).max() / abs(other).max())
        few = max(1, args.steps // 10)
        first, last = losses[:few].mean(), losses[-few:].mean()
        print(f"{len(graph.ends) // 2:,} edges, loss from {first:.3f} to {last:.3f}")
        print(f"largest difference from one process: {difference:.1e} of the largest")
        if difference > 1e-3:
            raise SystemExit("the answer is not that of one process")
        if args.plot:
            write(partial(figure, told, dense, losses), args.plot)


def sent_otherwise(told: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the kB of a rank in a ring, and those of rank 0 if all meet there."""
    nodes, rows, union, _ = told.T
    ring = 2 * (ranks - 1) / ranks * nodes * WIDTH * 4 / 1e3
    return ring, (ranks - 1) * (rows + union) * (4 * WIDTH + 8) / 1e3


def figure(told: np.ndarray, dense: np.ndarray, losses: np.ndarray) -> Any:
    """Draw what a step sends by the size of the graph, and the loss."""
    drawn, ((left, right),) = panels(1, 2, 3.0)
    for name, sent, colour in (
        ("whole tables", dense, INK),
        ("rows", told[:, 3], COLOURS[0]),
    ):
        left.plot(told[:, 0], sent, "o-", color=colour, label=name)
    left.set(
        xlabel="nodes",
        xscale="log",
        yscale="log",
        title="kB that a rank sends in a step for the table",
    )
    right.plot(np.convolve(losses, np.ones(10) / 10, "valid"), color=COLOURS[0])
    right.set(xlabel="step", title="loss of neighbouring words")
    name_lines(left)
    return drawn


if __name__ == "__main__":
    main()
