"""Gradients that algorithms have trouble with: `CASES` names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.sparse import Layout

# Of normal numbers x (n,), their indices i, the numbers t of their tensors, a rank, and the number of ranks
KINDS: dict[str, Callable[..., Any]] = {
    "constant": lambda x, i, t, rank, ranks: np.full(len(x), -0.5),
    "all-zero": lambda x, i, t, rank, ranks: np.zeros(len(x)),
    "random": lambda x, i, t, rank, ranks: x,
    "ties": lambda x, i, t, rank, ranks: np.round(x),
    "one-rank-zero": lambda x, i, t, rank, ranks: x * (rank > 0),
    "same-support": lambda x, i, t, rank, ranks: x * (i % 20 == 0),
    "disjoint": lambda x, i, t, rank, ranks: x * (i % ranks == rank),
    # In the region that another rank owns
    "elsewhere": lambda x, i, t, rank, ranks: x * (i * ranks // len(x) == ranks - 1 - rank),
    "heavy-tailed": lambda x, i, t, rank, ranks: x**5,
    "layer-skewed": lambda x, i, t, rank, ranks: x * np.where(i * 10 // len(x) == 8, 1000, 1),
    "layers": lambda x, i, t, rank, ranks: x * np.exp((t + rank) * 7 % 5 - 2),
    # One number of the last rank, each time another
    "nonfinite": lambda x, i, t, rank, ranks: np.where(
        (i == int(abs(x[0]) * 1000) % len(x)) & (rank == ranks - 1), (np.nan, np.inf, -np.inf)[int(x[-1] * 99) % 3], x
    ),
}


class Case(NamedTuple):
    """A kind of gradient ``(n,)``, the number k of entries to select, and the shapes of its tensors."""

    make: str | Callable[..., Any]  #: a name in `KINDS`; or a function of a generator, the rank, and P
    n: int = 1000
    k: int = 40
    shapes: tuple[tuple[int, ...], ...] | None = None  #: None: one flat tensor

    @property
    def layout(self) -> Layout:
        """Return the shapes of all tensors."""
        return Layout.of(self.n if self.shapes is None else self.shapes)

    def gradient(self, dtype: Any, seed: int, rank: int, ranks: int) -> np.ndarray:
        """Return a rank's gradient, the same for the same seed."""
        rng = np.random.default_rng([seed, rank])
        if not isinstance(self.make, str):
            return np.asarray(self.make(rng, rank, ranks)).astype(dtype)
        tensors = np.repeat(np.arange(len(self.layout.sizes)), self.layout.sizes)
        x = rng.standard_normal(self.n)
        return KINDS[self.make](x, np.arange(self.n), tensors, rank, ranks).astype(dtype)


# Matrices, biases and a scalar, empty tensors and one-row ones, as models have them
LAYERS = Layout.of([(12, 30), (30,), (7, 5, 3, 3), (7,), (), (0, 4), (1, 50), (40, 1), (5, 60), (60,), (6, 4, 1, 1)])
CASES: dict[str, Case] = {kind: Case(kind) for kind in KINDS if kind != "layers"} | {
    "k=1": Case("random", k=1),
    "k=n": Case("random", k=1000),
    "k>n": Case("random", k=5000),
    "n<P": Case("random", n=3, k=2),
    "n=1": Case("random", n=1, k=1),
    "n-indivisible": Case("random", n=1009, k=41),
    "layers": Case("layers", LAYERS.size, 250, LAYERS.shapes),
    "layers, k=1": Case("layers", LAYERS.size, 1, LAYERS.shapes),
    "layers, k=n": Case("layers", LAYERS.size, LAYERS.size, LAYERS.shapes),
    "layers, nonfinite": Case("nonfinite", LAYERS.size, 250, LAYERS.shapes),
}


def drawn(draw: Callable[[int, int], int]) -> Case:
    """Return a case of small tensors; ``draw`` returns a whole number between two."""
    shapes = tuple(tuple(draw(0, 9) for _ in range(draw(0, 3))) for _ in range(draw(0, 4)))
    layout = Layout.of((*shapes, (draw(1, 300),)))
    return Case([*KINDS][draw(0, len(KINDS) - 1)], layout.size, draw(1, layout.size), layout.shapes)
