"""A legal call of every public function, on a rank of a `World`, and values that are wrong nearly everywhere."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import boost_histogram
import numpy as np
import pandas
import polars
import pyarrow
import torch

import sparse_mpi
from sparse_mpi import checkpoint, contrib, ddp, optim
from sparse_mpi.comm import Comm
from sparse_mpi.training.diloco import DiLoCo


class Hostile:
    """A value that can be neither compared nor hashed, and is neither true nor false."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("no comparison")

    __hash__ = None

    def __bool__(self) -> bool:
        raise ArithmeticError("no truth")


# Each is made anew for each call
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "10^30": lambda: 10**30,
    "-10^30": lambda: -(10**30),
    "2^63": lambda: 2**63,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "nonsense",
    "surrogate": lambda: "caf\udce9",
    "zero byte": lambda: "a\0b",
    "long text": lambda: "x" * 10_000,
    "bytes": lambda: b"\xff\xfe",
    "list": list,
    "numbers": lambda: [1, 2],
    "texts": lambda: ["sum", "max"],
    "nested": lambda: [[1], [2, 3]],
    "tuple": tuple,
    "dict": dict,
    "mapping": lambda: {1: 2},
    "set": lambda: {1},
    "object": object,
    "function": lambda: lambda: None,
    "class": lambda: int,
    "range": lambda: range(3),
    "iterator": lambda: iter(()),
    "NumPy NaN": lambda: np.float64(np.nan),
    "NumPy int": lambda: np.int64(-3),
    "0-d array": lambda: np.array(3),
    "array": lambda: np.array([1.0, 2.0]),
    "matrix": lambda: np.zeros((2, 2)),
    "text array": lambda: np.array(["sum", "max"]),
    "object array": lambda: np.array([None, {}], object),
    "tensor": lambda: torch.ones(2),
    "Fraction": lambda: Fraction(1, 3),
    "Decimal": lambda: Decimal("NaN"),
    "path": lambda: Path("/nowhere/at/all"),
    "date": lambda: datetime.date(2020, 1, 1),
    "Ellipsis": lambda: ...,
    "hostile": Hostile,
}

SHARES = 12  # of these values, of which the fast tier tries one
LOCAL = {  # no rank has to know of their errors
    *("World", "Layout.of", "GlobalMomentum", "MomentumCorrection", "LeakyFeedback"),
    *("checkpoint.latest", "reduction.watch", "SparseAllreduce.use"),
}
# Of what `__all__` names: types of results, registries, what has no arguments; `attach_job` calls `attach`
NOT_WALKED = {
    *("ALGORITHMS", "FEEDBACKS", "SELECTORS", "ErrorFeedback", "NoFeedback", "Layout", "Reduction", "SparseVector"),
    *("StepReport", "keep_freed_memory", "Average", "Sum", "sparse_hook", "ShardedReduction", "attach", "Checkpoint"),
    *("CheckpointError", "Choice", "PersistentAllreduce"),
}


def objection(raised: list[Any], argument: str, culprits: tuple[int, ...]) -> str | None:
    """What is wrong of what each of two ranks raised; None if nothing is."""
    if raised == [None, None]:
        return None
    if None in raised:
        return f"one rank alone: {raised}"
    if foreign := [error for error in raised if isinstance(error, str)]:
        return foreign[0]
    said = str(raised[culprits[-1]])
    named = argument.rstrip("s") in said or said.startswith("all ranks must call with the same arguments")
    named |= isinstance(raised[0], (checkpoint.CheckpointError, OSError))  # of a file, which they name
    return None if named or argument == "x" else f"the argument is not named: {said}"


class Call(NamedTuple):
    """A public function, and its arguments by name, made for a rank."""

    function: Callable[..., Any]
    arguments: dict[str, Any]


def call(function: Callable[..., Any], **given: Any) -> Call:
    """Make a call whose other arguments are as usual."""
    parameters = signature(function).parameters.values()
    return Call(function, {p.name: p.default for p in parameters if p.default is not p.empty} | given)


def vector(comm: Comm) -> sparse_mpi.SparseVector[Any]:
    return sparse_mpi.SparseVector(np.array([1, 4]), np.array([1.0, comm.rank]), 9)


def gradient(comm: Comm) -> np.ndarray:
    return np.arange(24, dtype=np.float32) + comm.rank


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 3)


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def calls(comm: Comm, folder: Path) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield the name of each, and what makes a call; to be made on every rank alike."""
    net = model()

    def reducer() -> sparse_mpi.SparseAllreduce:
        return sparse_mpi.SparseAllreduce(24, k=3, comm=comm, algorithm="topka")

    def wrapped() -> Any:
        return optim.DistributedOptimizer(sgd(net), net.named_parameters(), comm=comm, density=0.5)

    def local_steps() -> DiLoCo:
        return DiLoCo(net, sgd(net), sgd(net), 2, comm=comm)

    def state() -> ddp.SparseState:
        return ddp.SparseState(net.named_parameters(), comm=comm)

    made = {
        "sparse_allreduce": lambda: call(
            sparse_mpi.sparse_allreduce, x=gradient(comm), k=3, comm=comm, algorithm="topka"
        ),
        "SparseAllreduce": lambda: call(
            sparse_mpi.SparseAllreduce,
            layout=[(4,), (5,)],
            k=3,
            comm=comm,
            algorithm="topka",
            clip_norm=1.0,
            selector="exact",
            wire="packed",
        ),
        "SparseAllreduce.step": lambda: call(reducer().step, gradient=gradient(comm)),
        "SparseAllreduce.start": lambda: started(call(reducer().start, gradient=gradient(comm))),
        "SparseAllreduce.flush": lambda: call(reducer().flush),
        "SparseAllreduce.use": lambda: call(reducer().use, algorithm="oktopk"),
        "SparseAllreduce.load_state_dict": lambda: call(reducer().load_state_dict, state=reducer().state_dict()),
        "SparseAllreduce.take_over": lambda: call(
            reducer().take_over, states=[reducer().state_dict()], ranks=comm.size
        ),
        "allgather": lambda: call(sparse_mpi.allgather, x=vector(comm), comm=comm),
        "allreduce": lambda: call(sparse_mpi.allreduce, x=vector(comm), comm=comm),
        "allreduce_init": lambda: call(sparse_mpi.allreduce_init, keys=np.array([3, 5]), comm=comm),
        "PersistentAllreduce.call": lambda: call(
            rounds(sparse_mpi.allreduce_init(np.array([3, 5]), comm=comm)), values=np.ones(2)
        ),
        "reduce": lambda: call(sparse_mpi.reduce, x=vector(comm), comm=comm),
        "reduce_scatter": lambda: call(sparse_mpi.reduce_scatter, x=vector(comm), comm=comm),
        "World": lambda: call(sparse_mpi.World, ranks=2),
        "Layout.of": lambda: call(sparse_mpi.Layout.of, layout=[(2, 3), (4,)]),
        "GlobalMomentum": lambda: call(sparse_mpi.GlobalMomentum),
        "MomentumCorrection": lambda: call(sparse_mpi.MomentumCorrection),
        "LeakyFeedback": lambda: call(sparse_mpi.LeakyFeedback, keep=0.9),
        "DistributedOptimizer": lambda: call(
            optim.DistributedOptimizer,
            optimizer=sgd(net),
            named_parameters=list(net.named_parameters()),
            density=0.5,
            comm=comm,
            clip_norm=1.0,
            nonfinite="keep",
            momentum="matched",
            bucket_cap_mb=1.0,
        ),
        "optimizer.load": lambda: call(wrapped().reduction.load_state_dict, state=wrapped().reduction.state_dict()),
        "reduction.take_over": lambda: call(
            wrapped().reduction.take_over, states=[wrapped().reduction.state_dict()], ranks=comm.size
        ),
        "reduction.watch": lambda: call(wrapped().reduction.watch, every=2),
        "broadcast_parameters": lambda: call(optim.broadcast_parameters, params=net.state_dict(), comm=comm),
        "broadcast_optimizer_state": lambda: call(optim.broadcast_optimizer_state, optimizer=sgd(net), comm=comm),
        "SparseState": lambda: call(
            ddp.SparseState,
            named_parameters=list(net.named_parameters()),
            comm=comm,
            optimizer=sgd(net),
            density=0.5,
            dense_steps=1,
        ),
        "SparseState.load_state_dict": lambda: call(state().load_state_dict, state=state().state_dict()),
        "DiLoCo": lambda: call(
            DiLoCo,
            model=net,
            inner_optimizer=sgd(net),
            outer_optimizer=sgd(net),
            sync_every=4,
            density=0.5,
            fragments=2,
            comm=comm,
        ),
        "DiLoCo.take_over": lambda: call(local_steps().take_over, states=[local_steps().state_dict()], ranks=comm.size),
        "checkpoint.save": lambda: call(
            checkpoint.save,
            folder=folder / "a",
            step=1,
            identity={"lr": 0.1},
            model=b"m",
            state={"rank": comm.rank},
            comm=comm,
        ),
        "checkpoint.load": lambda: call(checkpoint.load, place=folder / "saved", comm=comm),
        "checkpoint.latest": lambda: call(checkpoint.latest, folder=folder / "saved"),
        "ByteBudget": lambda: call(contrib.ByteBudget, budget="5MB/s", comm=comm),
        "histogram_entries": lambda: call(
            lambda histogram: sparse_mpi.allreduce(contrib.histogram_entries(histogram), comm=comm),
            histogram=boost_histogram.Histogram(boost_histogram.axis.Regular(4, 0, 1)).fill([0.1, 0.7]),
        ),
        "watch": lambda: call(sparse_mpi.watch, comm=comm, timeout=0),
    }
    for library, frame in (("pandas", pandas.DataFrame), ("polars", polars.DataFrame), ("pyarrow", pyarrow.table)):
        made[f"{library}.groupby_sum"] = lambda frame=frame: call(
            contrib.groupby_sum, frame=frame({"a": ["x", "y"], "v": [1, comm.rank]}), by="a", values="v", comm=comm
        )
    yield from made.items()


def started(begun: Call) -> Call:
    return begun._replace(function=lambda **arguments: begun.function(**arguments).wait())


def rounds(request: Any) -> Callable[..., Any]:
    def one(values: object) -> Any:
        request.start(values)
        return request.wait()

    return one
