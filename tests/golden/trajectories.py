"""Training runs whose every byte is known: 30 steps of each, on gradients that any machine draws alike.

    python -m pytest tests/golden    compare with tests/golden/trajectories.json
    python -m tests.record NAME      write some anew: only where a bit is meant to change, and the commit says why

A trajectory is one hash a rank over the bytes of all totals, or of all parameters after each step, and the residuals at
the end, beside a few sums of these in float64. Gradients are cubes of whole numbers, so that drawing them needs no
mathematical function. What torch or a BLAS adds up may differ in the last bits between processors: on another one than
recorded a case the sums are compared, to 1e-4.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparse_mpi import ALGORITHMS, FEEDBACKS, SparseAllreduce, SparseVector, World
from sparse_mpi.ddp import SparseState, sparse_hook
from sparse_mpi.fault_tolerance import ElasticAllreduce
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.training.diloco import DiLoCo

from ..launch import launch
from ..prefork import torchrun

STEPS = 30
SHAPES = [(12, 30), (30,), (7, 5, 3, 3), (7,), (40, 1), (5, 60), (60,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
RECORD = Path(__file__).with_name("trajectories.json")
LATE = {"fragments": 3, "fragment_sync_delay": 1}
# Of `tests.golden.sharded`: the options of `steps`
SHARDED: dict[str, dict[str, Any]] = {
    "FSDP2": {"give": False},
    "FSDP2, dgc": {"feedback": "dgc", "give": False},
    "FSDP2, oktopk, sums, dense at first, two passes": {
        "algorithm": "oktopk",
        "op": "sum",
        "dense_steps": 2,
        "passes": 2,
    },
    "FSDP2, four replicas, momentum": {"replicas": 4},
    "FSDP2, four replicas, AdamW": {"replicas": 4, "make": ADAMW},
    "FSDP2, resumed, momentum": {"resume_on": 2},
    "FSDP2, resumed, AdamW": {"resume_on": 2, "make": ADAMW},
    "FSDP2, resumed on four replicas": {"resume_on": 4},
}

torch.set_num_threads(1)


class Trace:
    """The hash of all that one rank has seen, and sums of it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._sums: list[float] = []
        self._weights = np.random.default_rng(0).integers(-8, 9, 4096).astype(np.float64)

    def add(self, *seen: Any) -> None:
        """Take note of arrays, sparse vectors or tensors."""
        for one in seen:
            if isinstance(one, SparseVector):
                self.add(one.indices.astype(np.int64))
                one = one.to_dense()
            array = one.detach().numpy() if isinstance(one, torch.Tensor) else np.asarray(one)
            self._hash.update(np.ascontiguousarray(array).tobytes())
            flat = array.astype(np.float64).ravel()
            self._sums.append(float(flat.dot(np.resize(self._weights, flat.shape))))

    def end(self) -> dict[str, Any]:
        """Return the record of this rank."""
        return {"sha256": self._hash.hexdigest(), "sums": self._sums[:: max(1, len(self._sums) // 4)][-5:]}


def gradient(rank: int, step: int, size: int = SIZE) -> np.ndarray:
    """Return a gradient ``(n,)`` float32 whose few large entries stand out."""
    drawn = np.random.default_rng([rank, step]).integers(-999, 1000, size)
    return (drawn**3).astype(np.float32) / np.float32(2**27)


def reducer_steps(
    comm: Any, numbers: Iterable[int], trace: Trace, before: Any = None, *, shapes: Any = SHAPES, **options: Any
) -> tuple[Any, list[Any]]:
    """Take steps of one reducer after ``before``, the states of as many ranks as are given; return its state."""
    flush = options.pop("flush", False)
    reducer = SparseAllreduce(shapes, comm=comm, density=0.05, **options)
    if before is not None:
        reducer.take_over(before[comm.rank :: comm.size], len(before))
    for step in numbers:
        trace.add(reducer.step(gradient(comm.rank, step, reducer.layout.size)))
    state, rest = reducer.state_dict(), [reducer.residual.copy()]
    if flush and reducer.feedback.traits.defers:
        rest += [reducer.flush(), reducer.residual]
    return state, rest


def survived(comm: Any, **options: Any) -> dict[str, Any]:
    """Take the steps of a reducer of which a rank is lost in the tenth."""
    trace = Trace()
    reducer = ElasticAllreduce(SHAPES, density=0.05, comm=comm, copy_every=5, **options)
    rank = comm.rank
    for step in range(STEPS):
        trace.add(reducer.step(gradient(rank, step)), np.array(reducer.ranks))
    trace.add(reducer.residual)
    return trace.end()


class Model(torch.nn.Module):
    """Parameters whose gradients are given: the loss is the sum of their products with them."""

    def __init__(self) -> None:
        super().__init__()
        values = gradient(99, 99)
        sizes = [int(np.prod(shape)) for shape in SHAPES]
        parts = torch.from_numpy(values).split(sizes)
        self.layers = torch.nn.ParameterList(part.clone().view(s) for part, s in zip(parts, SHAPES, strict=True))

    def backward(self, given: np.ndarray) -> None:
        """Have autograd bring the gradient ``(n,)``."""
        parts = torch.from_numpy(given).split([p.numel() for p in self.layers])
        pairs = zip(self.layers, parts, strict=True)
        sum((p * part.view(p.shape)).sum() for p, part in pairs).backward()  # type: ignore[union-attr]


def optimizer_steps(
    comm: Any,
    numbers: Iterable[int],
    trace: Trace,
    before: Any = None,
    *,
    make: Callable[..., torch.optim.Optimizer] = SGD,
    flush: bool = False,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """Take steps of an optimizer after ``before``, as `reducer_steps` does."""
    model = Model()
    options = {"bucket_cap_mb": 2e-3} | options
    optimizer = DistributedOptimizer(make(model.parameters()), model.named_parameters(), comm=comm, **options)
    if before is not None:
        model.load_state_dict(before[0][0])
        optimizer.load_state_dict(before[0][1])
        optimizer.reduction.take_over([state for *_, state in before[comm.rank :: comm.size]], len(before))
    for step in numbers:
        optimizer.zero_grad()
        model.backward(gradient(comm.rank, step))
        optimizer.step()
        trace.add(*model.layers)
    state, rest = (model.state_dict(), optimizer.state_dict(), optimizer.reduction.state_dict()), list[Any]()
    if flush:
        rest = [bucket.reducer.residual.copy() for bucket in optimizer.reduction.buckets]
        optimizer.zero_grad()
        optimizer.flush()
        rest += model.layers
    return state, rest


def local_steps(
    comm: Any, numbers: Iterable[int], trace: Trace, before: Any = None, *, flush: bool = False, **options: Any
) -> tuple[Any, list[Any]]:
    """Take inner steps of DiLoCo after ``before``, as `reducer_steps` does."""
    model = Model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(model, inner, outer, 6, comm=comm, density=0.2, **options) as local:
        if before is not None:
            local.take_over(before[comm.rank :: comm.size], len(before))
        for step in numbers:
            inner.zero_grad()
            model.backward(gradient(comm.rank, step))
            inner.step()
            trace.add(*model.layers)
        state = local.state_dict()
        if flush:
            local.flush()
    return state, [*model.layers] if flush else []


class Handed:
    """A bucket as torch's DDP hands it to a hook."""

    def __init__(self, parameters: list[torch.Tensor], flat: torch.Tensor, number: int, last: bool) -> None:
        self._parameters, self._flat, self._number, self._last = parameters, flat, number, last

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def buffer(self) -> torch.Tensor:
        return self._flat

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._last


def handed(state: SparseState, layers: list[torch.Tensor], whole: torch.Tensor, first: bool) -> list[torch.Tensor]:
    """Give a gradient ``(n,)`` to the hook as DDP does, in one bucket at first, then in three, and set ``.grad``."""
    cuts = [layers] if first else [layers[4:], layers[2:4], layers[:2]]
    by_layer = dict(zip(map(id, layers), whole.split([p.numel() for p in layers]), strict=True))
    flats = [torch.cat([by_layer[id(p)] for p in some]) for some in cuts]
    buckets = [Handed(some, flats[at], at, some is cuts[-1]) for at, some in enumerate(cuts)]
    futures = [sparse_hook(state, bucket) for bucket in buckets]  # type: ignore[arg-type]
    means = [future.wait() for future in futures]
    for some, mean in zip(cuts, means, strict=True):
        for parameter, part in zip(some, mean.split([p.numel() for p in some]), strict=True):
            parameter.grad = part.view(parameter.shape)
    return means


def hooked(comm: Any, **options: Any) -> dict[str, Any]:
    """Take steps as DDP does with the hook."""
    trace, model = Trace(), Model()
    state = SparseState(model.named_parameters(), density=0.05, comm=comm, **options)
    for step in range(STEPS):
        trace.add(*handed(state, list(model.layers), torch.from_numpy(gradient(comm.rank, step)), step == 0))
    trace.add(*state.residuals().values())
    return trace.end()


def hooked_steps(comm: Any, make: Callable[..., torch.optim.Optimizer]) -> dict[str, Any]:
    """Have an optimizer step along what the hook returns, resumed after half of the steps, a flush at the end."""
    trace, saved = Trace(), None
    for numbers in (range(STEPS // 2), range(STEPS // 2, STEPS)):
        model = Model()
        optimizer = make(model.parameters())
        state = SparseState(model.named_parameters(), density=0.05, comm=comm, optimizer=optimizer)
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            state.load_state_dict(saved[2])
        for step in numbers:
            handed(state, list(model.layers), torch.from_numpy(gradient(comm.rank, step)), step == numbers[0])
            optimizer.step()
            optimizer.zero_grad()
            trace.add(*model.layers)
        saved = deepcopy([model.state_dict(), optimizer.state_dict(), state.state_dict()])
    trace.add(*state.residuals().values())
    state.flush()
    trace.add(*model.layers)
    return trace.end()


@cache
def sharded(wide: bool) -> dict[str, list[dict[str, Any]]]:
    """Return what the ranks of `tests.golden.sharded` have seen, by case: those in `WIDE`, or the others."""
    with tempfile.NamedTemporaryFile() as file:
        names = [name for name in SHARDED if (name in WIDE) == wide]
        program = torchrun(4, "-m", "tests.golden.sharded", file.name, *names)
        done = launch(None, *program, seconds=280, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr[-5000:]
        return json.loads(Path(file.name).read_text())


def on(ranks: int, body: Callable[..., dict[str, Any]], leave: dict[int, int] | None = None, **options: Any) -> Any:
    """Return what runs ``body`` on so many ranks."""
    return lambda: [found for found in World(ranks, leave=leave).run(partial(body, **options)) if found is not None]


def taken(steps: Callable[..., tuple[Any, list[Any]]], comm: Any, **options: Any) -> dict[str, Any]:
    """Take all steps of one kind, a flush at the end if it is an option."""
    trace = Trace()
    trace.add(*steps(comm, range(STEPS), trace, **options)[1])
    return trace.end()


def resumed(steps: Callable[..., Any], ranks: int, after: int, half: int = STEPS // 2, **options: Any) -> Any:
    """Return what takes ``half`` of the steps on ``ranks`` ranks, the others on ``after``."""

    def run() -> list[dict[str, Any]]:
        states = World(ranks).run(lambda comm: steps(comm, range(half), Trace(), **options)[0])

        def go_on(comm: Any) -> dict[str, Any]:
            trace = Trace()
            trace.add(*steps(comm, range(half, STEPS), trace, states, **options)[1])
            return trace.end()

        return World(after).run(go_on)

    return run


reduced, optimized = (partial(taken, steps, flush=True) for steps in (reducer_steps, optimizer_steps))
CASES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    **{f"{name}": on(3, reduced, algorithm=name) for name in sorted(ALGORITHMS)},
    **{
        f"{name}, {rule}": on(5, reduced, algorithm=name, feedback=rule)
        for name in ("topka", "oktopk", "elect")
        for rule in sorted(FEEDBACKS)
        if rule != "residual"
    },
    "elect, packed+int8": on(4, reduced, algorithm="elect", wire="packed+int8"),
    "gtopk, clipped": on(3, reduced, algorithm="gtopk", clip_norm=0.5),
    "oktopk, one flat tensor, seven ranks": on(7, reduced, algorithm="oktopk", shapes=SIZE),
    "quota, one flat tensor": on(3, reduced, algorithm="quota", shapes=4000),
    "lost rank, oktopk": on(4, survived, {2: 10}, algorithm="oktopk"),
    "lost rank, elect": on(4, survived, {1: 10}, algorithm="elect"),
    "lost rank, gtopk": on(4, survived, {3: 10}, algorithm="gtopk"),
    "resumed, oktopk": resumed(reducer_steps, 3, 3, algorithm="oktopk"),
    "resumed on two, elect": resumed(reducer_steps, 3, 2, algorithm="elect"),
    "resumed on five, oktopk, dgc": resumed(reducer_steps, 3, 5, algorithm="oktopk", feedback="dgc"),
    "optimizer": on(3, optimized),
    "optimizer without overlap": on(3, optimized, overlap=False),
    "optimizer, oktopk, local momentum": on(3, optimized, algorithm="oktopk", density=0.05, momentum="local"),
    "optimizer, oktopk, corrected": on(3, optimized, algorithm="oktopk", density=0.05, momentum="corrected"),
    "optimizer, Nesterov": on(3, optimized, make=partial(SGD, nesterov=True)),
    "optimizer, sums": on(3, optimized, op="sum"),
    "optimizer, AdamW": on(3, optimized, make=ADAMW, momentum="arrival"),
    "optimizer, AdamW, second moment": on(3, optimized, make=ADAMW),
    "optimizer, resumed on two": resumed(optimizer_steps, 3, 2),
    "DiLoCo, three fragments, late, leaky": on(
        3, partial(taken, local_steps), **LATE, feedback="leaky", algorithm="topka"
    ),
    "DiLoCo, flushed": on(3, partial(taken, local_steps), flush=True),
    "DiLoCo, resumed on two": resumed(local_steps, 3, 2, flush=True),
    "DiLoCo, three fragments, late, resumed on its way": resumed(local_steps, 3, 3, 14, flush=True, **LATE),
    "DiLoCo, three fragments, late, resumed on two": resumed(local_steps, 3, 2, 14, flush=True, **LATE),
    "DDP hook": on(3, hooked),
    "DDP hook, oktopk, dgc": on(3, hooked, algorithm="oktopk", feedback="dgc"),
    "DDP hook, momentum, resumed": on(3, hooked_steps, make=SGD),
    "DDP hook, AdamW, resumed": on(3, hooked_steps, make=ADAMW),
    **{name: partial(lambda name: sharded(name in WIDE)[name], name) for name in SHARDED},
}
# Left to the wide tier
WIDE = {
    *(f"{name}, {rule}" for name in ("topka", "elect") for rule in FEEDBACKS),  # oktopk has them all
    *("lost rank, gtopk", "optimizer without overlap", "optimizer, Nesterov", "FSDP2", "FSDP2, dgc"),
    *("FSDP2, four replicas, momentum", "FSDP2, four replicas, AdamW", "FSDP2, resumed, momentum"),
}


def machine() -> dict[str, str]:
    """Return what the last bits may depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"cpu": model, "numpy": np.__version__, "torch": torch.__version__}
