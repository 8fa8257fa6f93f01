"""A legal call of every public function, on a rank of a `World`, and values that are wrong nearly everywhere."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
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


def vector(comm: Comm) -> sparse_mpi.SparseVector[Any]:
    return sparse_mpi.SparseVector(np.array([1, 4]), np.array([1.0, comm.rank]), 9)


def gradient(comm: Comm) -> np.ndarray:
    return np.arange(24, dtype=np.float32) + comm.rank


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(4, 3)


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def reducing(comm: Comm) -> dict[str, Any]:
    return {"k": 3, "comm": comm, "algorithm": "topka"}


def calls(comm: Comm, folder: Path) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield the name of each, and what makes a call; to be made on every rank alike."""
    net = model()
    distributed = {
        **{"density": 0.5, "comm": comm, "algorithm": "elect", "feedback": "residual", "clip_norm": 1.0},
        **{"nonfinite": "keep", "momentum": "matched", "backward_passes_per_step": 1, "op": "average"},
        **{"bucket_cap_mb": 1.0, "overlap": True, "scaler": None, "k": None},
    }
    named = dict(density=0.5, algorithm="elect", feedback="residual", momentum=None, dense_steps=1, scaler=None)

    def reducer() -> sparse_mpi.SparseAllreduce:
        return sparse_mpi.SparseAllreduce(24, **reducing(comm))

    def wrapped() -> Any:
        return optim.DistributedOptimizer(sgd(net), net.named_parameters(), comm=comm, density=0.5)

    def local_steps(**more: Any) -> DiLoCo:
        return DiLoCo(net, sgd(net), sgd(net), 2, comm=comm, **more)

    def state() -> ddp.SparseState:
        return ddp.SparseState(net.named_parameters(), comm=comm)

    made = {
        "sparse_allreduce": lambda: Call(
            sparse_mpi.sparse_allreduce, dict(x=gradient(comm), k=3, density=None, comm=comm, algorithm="topka")
        ),
        "SparseAllreduce": lambda: Call(
            sparse_mpi.SparseAllreduce,
            dict(
                layout=[(4,), (5,)],
                k=3,
                density=None,
                comm=comm,
                algorithm="topka",
                feedback="residual",
                clip_norm=1.0,
                nonfinite="keep",
                second_moment=None,
                settings=None,
                selector="exact",
                wire="packed",
            ),
        ),
        "SparseAllreduce.step": lambda: Call(
            reducer().step, dict(gradient=gradient(comm), density=None, check=False, dense=False)
        ),
        "SparseAllreduce.start": lambda: Call(
            started(reducer()), dict(gradient=gradient(comm), density=None, check=False, dense=False)
        ),
        "SparseAllreduce.flush": lambda: Call(reducer().flush, dict(check=False, like=None)),
        "SparseAllreduce.use": lambda: Call(reducer().use, dict(algorithm="oktopk")),
        "SparseAllreduce.load_state_dict": lambda: Call(reducer().load_state_dict, dict(state=reducer().state_dict())),
        "SparseAllreduce.take_over": lambda: Call(
            reducer().take_over, dict(states=[reducer().state_dict()], ranks=comm.size)
        ),
        "allgather": lambda: Call(sparse_mpi.allgather, dict(x=vector(comm), comm=comm, wire=None)),
        "allreduce": lambda: Call(
            sparse_mpi.allreduce,
            dict(
                x=vector(comm),
                op="sum",
                comm=comm,
                algorithm="auto",
                zeros="keep",
                network="fitted",
                tell=None,
                wire=None,
            ),
        ),
        "allreduce_init": lambda: Call(
            sparse_mpi.allreduce_init,
            dict(
                keys=np.array([3, 5]), needed=None, op="sum", comm=comm, dtype=np.float64, shape=(), validate="always"
            ),
        ),
        "PersistentAllreduce.call": lambda: Call(
            rounds(sparse_mpi.allreduce_init(np.array([3, 5]), comm=comm)), dict(values=np.ones(2))
        ),
        "reduce": lambda: Call(
            sparse_mpi.reduce, dict(x=vector(comm), root=0, op="sum", comm=comm, zeros="keep", wire=None)
        ),
        "reduce_scatter": lambda: Call(
            sparse_mpi.reduce_scatter, dict(x=vector(comm), op="sum", comm=comm, zeros="keep", wire=None)
        ),
        "World": lambda: Call(sparse_mpi.World, dict(ranks=2, per_node=None, leave=None, schedule=None)),
        "Layout.of": lambda: Call(sparse_mpi.Layout.of, dict(layout=[(2, 3), (4,)])),
        "GlobalMomentum": lambda: Call(sparse_mpi.GlobalMomentum, dict(momentum=0.9, keep=1.0, late=None)),
        "MomentumCorrection": lambda: Call(
            sparse_mpi.MomentumCorrection, dict(momentum=0.9, nesterov=False, masking=True)
        ),
        "LeakyFeedback": lambda: Call(sparse_mpi.LeakyFeedback, dict(keep=0.9)),
        "DistributedOptimizer": lambda: Call(
            optim.DistributedOptimizer,
            dict(optimizer=sgd(net), named_parameters=list(net.named_parameters()), **distributed),
        ),
        "optimizer.load": lambda: Call(wrapped_load(wrapped()), dict(state=wrapped().reduction.state_dict())),
        "reduction.take_over": lambda: Call(
            wrapped().reduction.take_over, dict(states=[wrapped().reduction.state_dict()], ranks=comm.size)
        ),
        "reduction.watch": lambda: Call(wrapped().reduction.watch, dict(every=2, step=0)),
        "broadcast_parameters": lambda: Call(
            optim.broadcast_parameters, dict(params=net.state_dict(), root_rank=0, comm=comm)
        ),
        "broadcast_optimizer_state": lambda: Call(
            optim.broadcast_optimizer_state, dict(optimizer=sgd(net), root_rank=0, comm=comm)
        ),
        "SparseState": lambda: Call(
            ddp.SparseState, dict(named_parameters=list(net.named_parameters()), comm=comm, optimizer=sgd(net), **named)
        ),
        "SparseState.load_state_dict": lambda: Call(state().load_state_dict, dict(state=state().state_dict())),
        "DiLoCo": lambda: Call(
            DiLoCo,
            dict(
                model=net,
                inner_optimizer=sgd(net),
                outer_optimizer=sgd(net),
                sync_every=4,
                density=0.5,
                algorithm="elect",
                feedback="residual",
                clip_norm=None,
                fragments=2,
                fragment_sync_delay=0,
                fragment_update_alpha=0.0,
                comm=comm,
            ),
        ),
        "DiLoCo.take_over": lambda: Call(
            local_steps().take_over, dict(states=[local_steps().state_dict()], ranks=comm.size)
        ),
        "checkpoint.save": lambda: Call(
            checkpoint.save,
            dict(
                folder=folder / "a",
                step=1,
                identity={"lr": 0.1},
                model=b"m",
                state={"rank": comm.rank},
                comm=comm,
                keep=2,
            ),
        ),
        "checkpoint.load": lambda: Call(checkpoint.load, dict(place=folder / "saved", comm=comm)),
        "checkpoint.latest": lambda: Call(checkpoint.latest, dict(folder=folder / "saved")),
        "ByteBudget": lambda: Call(contrib.ByteBudget, dict(budget="5MB/s", comm=comm, density=0.01, largest=1.0)),
        "histogram_entries": lambda: Call(
            lambda histogram: sparse_mpi.allreduce(contrib.histogram_entries(histogram), comm=comm),
            dict(histogram=boost_histogram.Histogram(boost_histogram.axis.Regular(4, 0, 1)).fill([0.1, 0.7])),
        ),
        "watch": lambda: Call(sparse_mpi.watch, dict(comm=comm, timeout=0)),
    }
    for library, frame in (("pandas", pandas.DataFrame), ("polars", polars.DataFrame), ("pyarrow", pyarrow.table)):
        made[f"{library}.groupby_sum"] = lambda frame=frame: Call(
            contrib.groupby_sum,
            dict(frame=frame({"a": ["x", "y"], "v": [1, comm.rank]}), by="a", values="v", comm=comm, scatter=False),
        )
    yield from made.items()


def started(reducer: sparse_mpi.SparseAllreduce) -> Callable[..., Any]:
    return lambda **arguments: reducer.start(**arguments).wait()


def rounds(request: Any) -> Callable[..., Any]:
    def one(values: object) -> Any:
        request.start(values)
        return request.wait()

    return one


def wrapped_load(optimizer: Any) -> Callable[..., Any]:
    return optimizer.reduction.load_state_dict
