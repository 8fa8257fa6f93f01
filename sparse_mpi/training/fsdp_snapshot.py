"""Save what the replicas of a sharded model owe, and deal it out to other shards and replicas: `ShardedSnapshot`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sparse_mpi.arrays import as_arrays, as_tensors
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.form import FORM, sealed
from sparse_mpi.reduction.second_moment import BETAS, MEAN, STEPS
from sparse_mpi.reduction.snapshot import described
from sparse_mpi.sparse import Layout
from sparse_mpi.training.fsdp_units import sharded_like
from sparse_mpi.training.named_gradients import GradientVector, NamedGradients

ABOUT = "about"  # the key of what all processes have in common, as JSON


class ShardedSnapshot:
    """Writes and reads the state of a `ShardedReduction`, as keys of torch.distributed.checkpoint.

    Vectors of feedback rules and second moments are DTensors like their parameters, such as
    ``replica 0/residual/fc.weight``, so that other numbers of shards find their own. All else is one key of bytes for
    each process, such as ``replica 0/shard 1``, which only as many replicas and shards read.
    """

    def __init__(self, parameters: Mapping[str, Any], gradients: NamedGradients, shard: int, shards: int) -> None:
        self._parameters, self._gradients, self._comm = parameters, gradients, gradients.comm
        self._shard, self._shards = shard, shards

    def save(self, folder: Any, steps: int) -> None:
        about = self._identity() | {"steps": steps, "replicas": self._comm.size, "shards": self._shards}
        state: dict[str, Any] = {ABOUT: _from_bytes(json.dumps(about).encode())}
        rest = []
        for vector in self._gradients:
            saved = vector.reducer.state_dict()
            for key in _arrays(vector.reducer):
                flat = torch.from_numpy(np.ascontiguousarray(saved.pop(key)))
                for name, part in zip(vector.names, vector.split(flat), strict=True):
                    state[_key(self._comm.rank, key, name)] = sharded_like(self._parameters[name], part)
            for name, number, beta in zip(vector.names, saved.get(STEPS, ()), saved.get(BETAS, ()), strict=False):
                state[f"{MEAN}/{name}"] = torch.tensor([number, beta], dtype=torch.float64)
            rest.append(saved)
        file = io.BytesIO()
        torch.save(as_tensors({"units": rest}), file)
        state[_key(self._comm.rank, f"shard {self._shard}")] = _from_bytes(file.getvalue())
        save(state, checkpoint_id=folder)

    def load(self, folder: Any, average: bool) -> int:
        """Read ``folder`` and return the number of steps; ValueError if it is of another reduction. Collective."""
        known = FileSystemReader(folder).read_metadata().state_dict_metadata
        about = json.loads(_to_bytes(_read({ABOUT: _like(known, ABOUT)}, folder)[ABOUT]))
        identity = self._identity()
        if other := {name: about.get(name) for name in identity if about.get(name) != identity[name]}:
            name = next(iter(other))
            raise ValueError(f"folder must be of {name} {identity[name]}, got {other[name]}; attach as before saving")
        # Read all at once: bytes of this process, if there are as many, and the vectors that this rank takes over
        replicas, rank = about["replicas"], self._comm.rank
        own, mine = _key(rank, f"shard {self._shard}"), range(rank, replicas, self._comm.size)
        alike = (replicas, about["shards"]) == (self._comm.size, self._shards)
        wanted: dict[str, Any] = {own: _like(known, own)} if alike else {}
        for vector in self._gradients:
            for name in vector.names:
                for key in (_key(replica, array, name) for replica in mine for array in _arrays(vector.reducer)):
                    parameter = self._parameters[name]
                    local = torch.zeros_like(parameter.to_local(), dtype=_known(known, key).properties.dtype)
                    wanted[key] = sharded_like(parameter, local)
                if vector.reducer.second_moment is not None:
                    wanted[f"{MEAN}/{name}"] = _like(known, f"{MEAN}/{name}")
        found = _read(wanted, folder)
        rest = torch.load(io.BytesIO(_to_bytes(found[own])), weights_only=True)["units"] if alike else []
        # Units may be joined into other vectors now
        layouts = [Layout.of(one["shapes"]) for one in rest]
        alike = alike and layouts == [vector.reducer.layout for vector in self._gradients]
        states: list[dict[str, Any]] = [{"vectors": [], "owed": {}} for _ in mine]
        for number, vector in enumerate(self._gradients):
            fresh = as_arrays(rest[number]) if alike else vector.reducer.state_dict()
            for replica, state in zip(mine, states, strict=True):
                whole = self._state(vector, replica, found, fresh, alike) | {"ranks": replicas}
                state["vectors"].append({"names": list(vector.names), "reducer": whole})
        self._gradients.deal(states, replicas, average)
        return int(about["steps"])

    def _state(
        self, vector: GradientVector, replica: int, found: Mapping[str, Any], rest: dict[str, Any], whole: bool
    ) -> dict[str, Any]:
        """Return the state that a ``replica`` has saved of a vector, cut to this shard; ``whole``: its own."""
        state = rest | {"rank": replica}
        for array in _arrays(vector.reducer):
            parts = [found[_key(replica, array, name)].to_local().reshape(-1) for name in vector.names]
            state[array] = torch.cat(parts).numpy()
        if whole:
            return state
        if vector.reducer.second_moment is not None:
            moments = [found[f"{MEAN}/{name}"].tolist() for name in vector.names]
            state |= {STEPS: [int(steps) for steps, _ in moments], BETAS: [beta for _, beta in moments]}
        return sealed({key: value for key, value in state.items() if key != FORM})

    def _identity(self) -> dict[str, Any]:
        settings = self._gradients.settings
        pairs = {"algorithm": settings.algorithm, "feedback": settings.feedback}
        plain: dict[str, Any] = json.loads(json.dumps({name: described(value) for name, value in pairs.items()}))
        return plain


def _arrays(reducer: SparseAllreduce) -> list[str]:
    return [*whole_state(reducer.feedback), *([] if reducer.second_moment is None else [MEAN])]


def _key(replica: int, *names: str) -> str:
    return "/".join((f"replica {replica}", *names))


def _known(known: Mapping[str, Any], key: str) -> Any:
    if key not in known:
        raise ValueError(f"folder must have {key!r}, as ShardedReduction.save writes it for the same parameters")
    return known[key]


def _like(known: Mapping[str, Any], key: str) -> Tensor:
    return torch.zeros(_known(known, key).size, dtype=_known(known, key).properties.dtype)


def _read(wanted: dict[str, Any], folder: Any) -> dict[str, Any]:
    load(wanted, checkpoint_id=folder)
    return wanted


def _from_bytes(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, np.uint8).copy())


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()
