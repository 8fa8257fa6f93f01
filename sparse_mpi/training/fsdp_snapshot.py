"""Save the residuals of a sharded model's replicas, and deal them out to other numbers: `ShardedSnapshot`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh

from sparse_mpi.arrays import as_arrays, as_tensors
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.reduction import SparseAllreduce
from sparse_mpi.reduction.form import sealed
from sparse_mpi.reduction.second_moment import BETAS, MEAN, STEPS
from sparse_mpi.reduction.snapshot import described
from sparse_mpi.sparse import Layout
from sparse_mpi.training.broadcasts import packed, unpacked
from sparse_mpi.training.named_gradients import NamedGradients
from sparse_mpi.training.optimizer_state import ADDED, STEP, add, added
from sparse_mpi.training.parameters import local, sharded_like

ABOUT = "about"  # the key of the values common to all processes, as JSON


class ShardedSnapshot:
    """Writes and reads the state of a `ShardedReduction`, as keys of torch.distributed.checkpoint.

    Vectors of feedback rules and second moments are DTensors like their parameters, so that other numbers of shards can
    read them: ``replica 0/residual/fc.weight``. All else is one key of bytes for each process, read only by the same
    numbers of replicas and shards: ``replica 0/shard 1``.
    """

    def __init__(self, gradients: NamedGradients, mesh: DeviceMesh) -> None:
        self._gradients, self._comm = gradients, gradients.comm
        self._shard, self._shards = mesh.get_local_rank(), mesh.size()

    def save(self, folder: Any, steps: int) -> None:
        about = self._identity() | {"steps": steps, "replicas": self._comm.size, "shards": self._shards}
        state: dict[str, Any] = {ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
        rest = []
        for vector in self._gradients:
            saved = vector.reducer.state_dict()
            for key in _arrays(vector.reducer):
                flat = torch.from_numpy(np.ascontiguousarray(saved.pop(key)))
                for name, parameter, part in zip(vector.names, vector.parameters, vector.split(flat), strict=True):
                    state[_key(self._comm.rank, key, name)] = sharded_like(parameter, part)
            for name, number, beta in zip(vector.names, saved.get(STEPS, ()), saved.get(BETAS, ()), strict=False):
                state[f"{MEAN}/{name}"] = np.array([number, beta])
            rest.append(saved)
        state[_key(self._comm.rank, f"shard {self._shard}")] = packed({"units": rest})
        # Equal on all replicas: the first saves it
        if (optimizer := self._gradients.optimizer) is not None and self._comm.rank == 0:
            for name, kept in added(optimizer, self._gradients.parameters).items():
                state |= {_key(0, key, name): tensor for key, tensor in kept.items()}
        save(as_tensors(state), checkpoint_id=folder)

    def load(self, folder: Any, average: bool) -> int:
        """Read ``folder`` and return the number of steps; ValueError if it is of another reduction. Collective."""
        known = FileSystemReader(folder).read_metadata().state_dict_metadata

        def form(key: str) -> Any:
            if key not in known:
                raise ValueError(
                    f"folder must have {key!r}, as ShardedReduction.save writes it for the same parameters"
                )
            return known[key]

        def room(key: str) -> Tensor:
            return torch.zeros(form(key).size, dtype=form(key).properties.dtype)

        load(found := {ABOUT: room(ABOUT)}, checkpoint_id=folder)
        about, identity = json.loads(bytes(found[ABOUT].numpy())), self._identity()
        if other := [name for name in identity if about.get(name) != identity[name]]:
            raise ValueError(
                f"folder must be of {other[0]} {identity[other[0]]}, got {about.get(other[0])}; attach as before saving"
            )
        # Read all at once: bytes of this process, if the numbers are the same, and vectors that this rank takes over
        replicas, rank = about["replicas"], self._comm.rank
        own, mine = _key(rank, f"shard {self._shard}"), range(rank, replicas, self._comm.size)
        alike = (replicas, about["shards"]) == (self._comm.size, self._shards)
        wanted: dict[str, Any] = {own: room(own)} if alike else {}
        for vector in self._gradients:
            for name, parameter in zip(vector.names, vector.parameters, strict=True):
                for key in (_key(replica, array, name) for replica in mine for array in _arrays(vector.reducer)):
                    zeros = torch.zeros_like(local(parameter), dtype=form(key).properties.dtype)
                    wanted[key] = sharded_like(parameter, zeros)
                if vector.reducer.second_moment is not None:
                    wanted[f"{MEAN}/{name}"] = room(f"{MEAN}/{name}")
        optimizer, parameters = self._gradients.optimizer, self._gradients.parameters
        kept: dict[str, dict[str, Any]] = {name: {} for name in parameters} if optimizer is not None else {}
        for name, key in [(name, key) for name in kept for key in (*ADDED, STEP) if _key(0, key, name) in known]:
            place = room(at := _key(0, key, name))
            if key != STEP:
                place = sharded_like(parameters[name], torch.zeros_like(local(parameters[name]), dtype=place.dtype))
            wanted[at] = kept[name][key] = place
        load(wanted, checkpoint_id=folder)
        if optimizer is not None:
            add(optimizer, parameters, kept)
        rest = as_arrays(unpacked(wanted[own].numpy()))["units"] if alike else []
        # Units may be joined into other vectors now
        if [Layout.of(one["shapes"]) for one in rest] != [vector.reducer.layout for vector in self._gradients]:
            rest = [vector.reducer.state_dict() for vector in self._gradients]
        states = [{"vectors": self._vectors(wanted, replica, replicas, rest), "owed": {}} for replica in mine]
        self._gradients.deal(states, replicas, average)
        return int(about["steps"])

    def _vectors(
        self, found: Mapping[str, Any], replica: int, ranks: int, rest: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the vectors that a ``replica`` has saved, cut to this shard; ``rest`` has all but their arrays."""
        vectors = []
        for vector, one in zip(self._gradients, rest, strict=True):
            state = one | {"rank": replica, "ranks": ranks}
            for array in _arrays(vector.reducer):
                parts = [found[_key(replica, array, name)].to_local().reshape(-1) for name in vector.names]
                state[array] = torch.cat(parts).numpy()
            if vector.reducer.second_moment is not None:
                numbers = [found[f"{MEAN}/{name}"].tolist() for name in vector.names]
                state |= {STEPS: [int(steps) for steps, _ in numbers], BETAS: [beta for _, beta in numbers]}
            vectors.append({"names": list(vector.names), "reducer": sealed(state)})
        return vectors

    def _identity(self) -> dict[str, Any]:
        settings = self._gradients.settings
        pairs = {"algorithm": settings.algorithm, "feedback": settings.feedback}
        plain: dict[str, Any] = json.loads(json.dumps({name: described(value) for name, value in pairs.items()}))
        return plain


def _arrays(reducer: SparseAllreduce) -> list[str]:
    return [*whole_state(reducer.feedback), *([] if reducer.second_moment is None else [MEAN])]


def _key(replica: int, *names: str) -> str:
    return "/".join((f"replica {replica}", *names))
