"""The buckets in which a model's gradients are reduced, and what is remembered when parameters change theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, synchronize_device, to_host
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.feedback import Memory
from sparse_mpi.reducer import SparseAllreduce
from sparse_mpi.sparse import Layout

Names = tuple[str, ...]


class Bucket(NamedTuple):
    """What reduces the gradients of some parameters, densely or sparsely, with one memory."""

    names: Names
    sparse: SparseAllreduce
    dense: SparseAllreduce


class Buckets:
    """The buckets made so far, by the names of their parameters; no parameter is in two of them.

    Args:
        shapes: of every parameter of the model, by name.
        comm, density, algorithm, memory: as for `SparseAllreduce`, for each bucket.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        comm: Comm,
        density: float | None,
        algorithm: Algorithm,
        memory: Memory,
    ) -> None:
        self.known: dict[Names, Bucket] = {}
        self._shapes, self._comm = shapes, comm
        self._density, self._algorithm, self._memory = density, algorithm, memory
        self._owed: dict[str, dict[str, np.ndarray]] = {}  # what is remembered of parameters that are in no bucket

    def adopt(self, names: Names) -> Bucket:
        """Make a bucket, which takes over what others remember of its parameters; those are dissolved. Collective."""
        for other in [other for other in self.known if set(other) & set(names)]:
            self._owed |= _split(self.known.pop(other))
        shapes = [self._shapes[name] for name in names]

        def make() -> Bucket:
            sparse = SparseAllreduce(shapes, None, self._density, self._comm, self._algorithm, memory=self._memory)
            return Bucket(names, sparse, sparse.sibling("dense"))

        bucket = self.known[names] = progress_thread_of(self._comm).start(make).wait()  # after work under way
        owed = [self._owed.pop(name, {}) for name in names]
        if any(owed):
            bucket.sparse.memory.load(_joined(owed, bucket.sparse.layout.sizes))
        return bucket

    def parts(self, names: Names, flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """The view ``(n,)`` of each of these parameters in their flat vector."""
        sizes = Layout.of([self._shapes[name] for name in names]).sizes
        return list(zip(names, flat.split(sizes), strict=True))

    def residuals(self) -> dict[str, np.ndarray]:
        """What this rank has not sent yet of each parameter ``(n,)``, in host memory."""
        remembered = dict(self._owed)
        for bucket in self.known.values():
            remembered |= _split(bucket)
        nothing = {name: np.zeros(Layout.of([shape]).size, np.float32) for name, shape in self._shapes.items()}
        return {name: remembered.get(name, {}).get("residual", zeros) for name, zeros in nothing.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the same bits: numbers, strings and NumPy arrays."""
        buckets = [{"names": list(names), "reducer": b.sparse.state_dict()} for names, b in self.known.items()]
        return {"buckets": buckets, "owed": dict(self._owed)}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError unless ``state`` is of this model's parameters; nothing changes."""
        if missing := {"buckets", "owed"} - set(state):
            raise ValueError(f"state must have {sorted(missing)}, got {sorted(state)}; load what was saved, whole")
        for name in [*state["owed"], *(name for saved in state["buckets"] for name in saved["names"])]:
            if name not in self._shapes:
                raise ValueError(f"state must be of this model's parameters, got one that is named {name!r}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned, in place of all there is. Collective."""
        self.known.clear()
        self._owed = dict(state["owed"])
        for saved in state["buckets"]:
            self.adopt(tuple(saved["names"])).sparse.load_state_dict(saved["reducer"])


def _split(bucket: Bucket) -> dict[str, dict[str, np.ndarray]]:
    """What the memory of ``bucket`` holds of each of its parameters."""
    ends = np.cumsum(bucket.sparse.layout.sizes)[:-1]
    synchronize_device(bucket.sparse.residual)
    arrays = {what: np.split(to_host(x).copy(), ends) for what, x in bucket.sparse.memory.state().items()}
    return {name: {what: arrays[what][at] for what in arrays} for at, name in enumerate(bucket.names)}


def _joined(owed: list[dict[str, Array]], sizes: Sequence[int]) -> dict[str, Array]:
    """What is remembered of several parameters, one after the other; zeros for those of which nothing is."""
    arrays = {}
    for what in {what: None for remembered in owed for what in remembered}:
        parts = [remembered.get(what, np.zeros(n, np.float32)) for remembered, n in zip(owed, sizes, strict=True)]
        arrays[what] = np.concatenate(parts)
    return arrays
