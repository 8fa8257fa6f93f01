"""Calls around a training step, and programs of them; both are printed as Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

torch.set_num_threads(1)
SMALL = 1.5e-4  # MB: a bucket for each layer
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


class Super(SGD):
    """An optimizer whose step goes through two classes."""

    def step(self, closure: Callable | None = None) -> Any:
        return super().step(closure)


SGD([torch.zeros(1, requires_grad=True)], 0.1)  # torch hooks the step of a class when the first of it is made

# Optimizers by name; a class of one's own is a line here, and its name in a program
MAKE: dict[str, Callable] = {
    "sgd": partial(SGD, lr=0.2),
    "decay": partial(SGD, lr=0.2, weight_decay=0.05),
    "momentum": partial(SGD, lr=0.1, momentum=0.8),
    "nesterov": partial(SGD, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
    "fused": partial(SGD, lr=0.1, momentum=0.8, fused=True),
    "super": partial(Super, lr=0.1, momentum=0.8),
    "adam": partial(Adam, lr=0.02),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    **{
        f"zero {name}": partial(ZeroRedundancyOptimizer, optimizer_class=kind, **options)
        for name, kind, options in (("momentum", SGD, {"lr": 0.1, "momentum": 0.8}), ("adam", Adam, {"lr": 0.02}))
    },
    "one": partial(SGD, lr=1.0),
    "outer": partial(SGD, lr=0.7, momentum=0.9, nesterov=True),
}
MOMENTS = ("adam", "adamw")
MODES = {name: (None, "local", "arrival", "second-moment") for name in MOMENTS} | {
    "sgd": (None,),
    "decay": (None, "global"),
    "momentum": (None, "local", "matched", "global", "corrected"),
    "nesterov": (None, "local", "matched", "global", "corrected"),
}


class Call(NamedTuple):
    """Something that all ranks do, or one rank alone; ``value`` says how."""

    name: str
    value: Any = None
    on: int | None = None

    def __repr__(self) -> str:
        return _short(self)


WHOLE = Call("backward", 0)


class Program(NamedTuple):
    """Calls, by which ``ranks`` train."""

    calls: tuple[Call, ...] = ()
    ranks: int = 2
    optimizer: str = "sgd"
    momentum: str | None = None
    density: float = 1.0
    algorithm: str = "topka"
    overlap: bool = True
    passes: int = 1
    scaled: bool = False
    door: str = "optimizer"  # or "ddp", "fsdp", "local"
    schedule: int | None = None  # of the World
    every: int = 1  # local steps between two synchronisations
    outer: str = "one"  # optimizer of these
    shards: int = 1  # of a replica of FSDP2
    net: str = "layers"
    dtype: str = "float32"
    options: dict[str, Any] = {}  # more arguments of the door
    wrap: dict[str, Any] = {}  # options of DDP or fully_shard; "roots": units are roots, "joined": bytes of a vector

    def __repr__(self) -> str:
        return _short(self)

    @property
    def solo(self) -> bool:
        """Whether one rank does something that the others do not."""
        return any(call.on is not None for call in self.calls)

    @property
    def parts(self) -> bool:
        """Whether ranks of torch may come to differ, as along gradients that no pass has reduced."""
        return self.solo or any(call.name == "unreduced" for call in self.calls)

    @property
    def takes_momentum(self) -> bool:
        """Whether error feedback applies the momentum of the optimizer."""
        has = self.optimizer in ("momentum", "nesterov", "fused", "super") and self.door != "local"
        return has and self.momentum != "local"


def _short(row: Any) -> str:
    """Python for a named tuple, without what is as usual."""
    defaults = row._field_defaults
    said = [f"{k}={v!r}" for k, v in row._asdict().items() if k not in defaults or v != defaults[k]]
    return f"{type(row).__name__}({', '.join(said)})"
