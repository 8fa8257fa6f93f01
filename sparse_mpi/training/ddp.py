"""Reduce the buckets of DistributedDataParallel, and move residuals along when parameters change buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, check, synchronize_device, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.feedback import Feedback
from sparse_mpi.feedback.residual import check_sizes
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.forms import WHOLE, check_list, check_mapping
from sparse_mpi.sparse import Layout

Names = tuple[str, ...]


def names_of(named_parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[torch.Tensor, str]:
    """Return the name of each parameter, or raise TypeError or ValueError if one cannot be reduced."""
    try:
        names = {parameter: name for name, parameter in named_parameters}
    except (TypeError, ValueError):
        names = {}
    if not names or not all(isinstance(x, torch.Tensor) and isinstance(name, str) for x, name in names.items()):
        raise TypeError("named_parameters must be pairs of name and tensor, and some; pass model.named_parameters()")
    for parameter, name in names.items():
        if parameter.requires_grad:
            check(parameter, f"named_parameters: {name}")
    return names


class DDPBucket(NamedTuple):
    """Two reducers for the gradients of some parameters, dense and sparse, that share one residual."""

    names: Names  # of the parameters, in the order of the flat gradient
    sparse: SparseAllreduce
    dense: SparseAllreduce


class DDPBuckets:
    """The buckets of a model, by the names of their parameters; no parameter is in two of them.

    Args:
        shapes: the shape of every parameter of the model, by name.
        density, comm, algorithm, feedback: as for `SparseAllreduce`, for each bucket.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        *,
        density: float | None,
        comm: Comm,
        algorithm: Algorithm,
        feedback: Feedback,
    ) -> None:
        self.known: dict[Names, DDPBucket] = {}
        self._shapes, self._comm = shapes, comm
        self._density, self._algorithm, self._feedback = density, algorithm, feedback
        self._owed: dict[str, dict[str, np.ndarray]] = {}  # what is remembered of parameters that are in no bucket

    def adopt(self, names: Names) -> DDPBucket:
        """Make a bucket of the parameters ``names`` and return it. Collective.

        Other buckets that hold any of these parameters are dissolved; the new one takes over what they remember of
        its parameters.
        """
        for other in [other for other in self.known if set(other) & set(names)]:
            self._owed |= _split(self.known.pop(other))
        shapes = [self._shapes[name] for name in names]

        def make() -> DDPBucket:
            sparse = SparseAllreduce(
                shapes, density=self._density, comm=self._comm, algorithm=self._algorithm, feedback=self._feedback
            )
            return DDPBucket(names, sparse, sparse.sibling("dense"))

        bucket = self.known[names] = progress_thread_of(self._comm).start(make).wait()  # after work under way
        owed = [self._owed.pop(name, {}) for name in names]
        if any(owed):
            bucket.sparse.feedback.load(_joined(owed, bucket.sparse.layout.sizes))
        return bucket

    def parts(self, names: Names, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Return each of the parameters ``names`` with its view ``(n,)`` in the vector ``flat`` of them all."""
        sizes = Layout.of([self._shapes[name] for name in names]).sizes
        return list(zip(names, flat.split(sizes), strict=True))

    def residuals(self, without: Set[str] = frozenset()) -> dict[str, np.ndarray]:
        """Return what this rank has not sent yet of each parameter but some, ``(n,)`` in host memory."""
        shapes = {name: shape for name, shape in self._shapes.items() if name not in without}
        nothing = {name: np.zeros(Layout.of([shape]).size, np.float32) for name, shape in shapes.items()}
        owed = {name: remembered.get("residual", nothing[name]) for name, remembered in self._owed.items()}
        for bucket in self.known.values():
            residuals = _cut(bucket, {"residual": bucket.sparse.residual})
            owed |= {name: arrays["residual"] for name, arrays in residuals.items()}
        return nothing | owed

    def adopt_rest(self) -> None:
        """Make a bucket of the parameters that are in none, if anything is remembered of them. Collective."""
        if self._owed:
            self.adopt(tuple(self._owed))

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit: numbers, strings and NumPy arrays."""
        buckets = [{"names": list(names), "reducer": b.sparse.state_dict()} for names, b in self.known.items()]
        return {"buckets": buckets, "owed": dict(self._owed)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` is whole, of this model's parameters; change nothing."""
        check_list(state.get("buckets"), "state['buckets']")
        check_mapping(state.get("owed"), "state['owed']")
        names = [*state["owed"]]
        for number, saved in enumerate(state["buckets"]):
            check_mapping(saved, f"state['buckets'][{number}]")
            check_list(saved.get("names"), f"state['buckets'][{number}]['names']")
            check_mapping(saved.get("reducer"), f"state['buckets'][{number}]['reducer']")
            names += saved["names"]
        for name in names:
            if name not in self._shapes or names.count(name) > 1:
                raise ValueError(f"state must have each of this model's parameters at most once, got {name!r}; {WHOLE}")
        for name, arrays in state["owed"].items():
            check_mapping(arrays, f"state['owed'][{name!r}]")
            check_sizes(arrays, arrays, Layout.of([self._shapes[name]]).size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place of all buckets there are. Collective."""
        self.known.clear()
        self._owed = dict(state["owed"])
        for saved in state["buckets"]:
            self.adopt(tuple(saved["names"])).sparse.load_state_dict(saved["reducer"])


def _split(bucket: DDPBucket) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays that ``bucket`` remembers, in host memory, cut by parameter."""
    return _cut(bucket, bucket.sparse.feedback.state() | bucket.sparse.feedback.common())


def _cut(bucket: DDPBucket, remembered: dict[str, Array]) -> dict[str, dict[str, np.ndarray]]:
    """Return copies in host memory of arrays ``(n,)`` of ``bucket``, cut by parameter."""
    ends = np.cumsum(bucket.sparse.layout.sizes)[:-1]
    synchronize_device(bucket.sparse.residual)
    arrays = {what: np.split(to_host(x).copy(), ends) for what, x in remembered.items()}
    return {name: {what: arrays[what][at] for what in arrays} for at, name in enumerate(bucket.names)}


def _joined(owed: list[dict[str, Array]], sizes: Sequence[int]) -> dict[str, Array]:
    """Concatenate what is remembered of several parameters of ``sizes``; zeros for those of which nothing is."""
    arrays = {}
    for what in {what: None for remembered in owed for what in remembered}:
        parts = [remembered.get(what, np.zeros(n, np.float32)) for remembered, n in zip(owed, sizes, strict=True)]
        arrays[what] = np.concatenate(parts)
    return arrays
