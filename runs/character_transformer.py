"""Train a small transformer on the characters of Python's own library with Adam, dense and sparse, on ranks of a World.

    python runs/character_transformer.py --ranks 4 --seed 1 --steps 1500 --ways dense elect elect:momentum=arrival

A way is an algorithm and options of `DistributedOptimizer`. Every way has dense's rate, which climbs there in 50 steps,
dense's betas, and the same draws. Prints a line of JSON for each: the loss on held-out text, and bytes a step.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparse_mpi import World
from sparse_mpi.cli.progress import progress
from sparse_mpi.optim import DistributedOptimizer

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 48, 8
FILES = 120  # of the standard library, in the order of their names


class Model(nn.Module):
    """Two layers, 116 thousand weights."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, symbols)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores ``(b, t, symbols)`` of the next character at each place of ``x`` ``(b, t)``."""
        return self.out(self.layers(self.tokens(x) + self.places.weight, mask=self.mask, is_causal=True))


def text() -> tuple[Tensor, Tensor, int]:
    """Return characters to train and to test on, as numbers, and how many different ones there are."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:FILES]
    content = "".join(file.read_text(errors="ignore") for file in files)
    known = {symbol: number for number, symbol in enumerate(sorted({c for c in content if ord(c) < 128}))}
    numbers = torch.tensor([known[c] for c in content if c in known])
    cut = int(0.9 * len(numbers))
    return numbers[:cut], numbers[cut:], len(known)


def loss(model: Model, source: Tensor, draw: torch.Generator, batch: int) -> Tensor:
    """Return the mean cross-entropy of the next character in drawn pieces of ``source``."""
    at = torch.randint(len(source) - LENGTH - 1, (batch,), generator=draw)
    pieces = torch.stack([source[start : start + LENGTH + 1] for start in at])
    return functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def run(comm: Any, model: Model, args: argparse.Namespace, way: str) -> dict[str, Any]:
    """Train one replica, and return its result."""
    algorithm, *words = way.split(":")
    options: dict[str, Any] = dict(word.split("=") for word in words)
    options |= {name: float(options[name]) for name in ("density", "clip_norm") if name in options}
    train, test, _ = args.text
    plain = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.rate)
    optimizer = DistributedOptimizer(
        plain, comm=comm, algorithm=algorithm, bucket_cap_mb=None, overlap=False, **options
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 50))
    draw, sent = torch.Generator().manual_seed(1000 * args.seed + comm.rank), 0
    for _ in progress(range(args.steps), way, comm.rank == 0):
        optimizer.zero_grad()
        loss(model, train, draw, args.batch).backward()
        optimizer.step()
        schedule.step()
        sent += optimizer.reduction.report.traffic.sent
    with torch.no_grad():
        draw = torch.Generator().manual_seed(7)
        found = sum(loss(model, test, draw, 64).item() for _ in range(8)) / 8
    return {"way": way, "ranks": comm.size, "seed": args.seed, "loss": round(found, 4), "bytes": sent / args.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="of the World (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and draws (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="(default: %(default)s)")
    parser.add_argument("--optimizer", default="Adam", help="of torch (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=3e-3, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=BATCH, help="pieces a rank and step (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", default=["dense", "elect"], help="(default: dense elect)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.text = text()
    for way in args.ways:
        # Made here: ranks that are threads share one generator
        models = []
        for _ in range(args.ranks):
            torch.manual_seed(args.seed)
            models.append(Model(args.text[2]))
        results = World(args.ranks).run(lambda comm, models=models, way=way: run(comm, models[comm.rank], args, way))
        print(json.dumps(results[0]), flush=True)


if __name__ == "__main__":
    main()
