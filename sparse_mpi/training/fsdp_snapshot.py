"""Save the residuals of a sharded model's replicas, and deal them out to other numbers: `ShardedSnapshot`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
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
FOLDER = "folder must be as ShardedReduction.save wrote it"
SAVED = "steps"  # ends the key of the number of steps at which a process has saved


class ShardedSnapshot:
    """Writes and reads the state of a `ShardedReduction`, as keys of torch.distributed.checkpoint.

    Vectors of feedback rules and second moments are DTensors like their parameters, so that other numbers of shards can
    read them: ``replica 0/residual/fc.weight``. All else is one key of bytes for each process, read only by the same
    numbers of replicas and shards: ``replica 0/shard 1``.
    """

    def __init__(self, gradients: NamedGradients, mesh: DeviceMesh) -> None:
        self._gradients, self._comm = gradients, gradients.comm
        self._shard, self._shards = mesh.get_local_rank(), mesh.size()

    def save(self, folder: Any, steps: int, clip_norm: float | None) -> None:
        counted = {"steps": steps, "clip_norm": clip_norm}
        about = self._identity() | counted | {"replicas": self._comm.size, "shards": self._shards}
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
        own = _key(self._comm.rank, f"shard {self._shard}")
        state |= {own: packed({"units": rest}), f"{own}/{SAVED}": np.array([steps])}
        # Equal on all replicas: the first saves it
        if (optimizer := self._gradients.optimizer) is not None and self._comm.rank == 0:
            for name, kept in added(optimizer, self._gradients.parameters).items():
                state |= {_key(0, key, name): tensor for key, tensor in kept.items()}
        save(as_tensors(state), checkpoint_id=folder)

    def load(self, folder: Any, average: bool) -> tuple[int, float | None]:
        """Read ``folder``, and return the number of steps, and the norm of a recognised clip; collective.

        Raises ValueError: it is damaged, or of another reduction; raised on all processes, of all shards.
        """
        with raised_by_all():
            known = FileSystemReader(folder).read_metadata().state_dict_metadata
            load(found := {ABOUT: _room(known, ABOUT)}, checkpoint_id=folder)
            about, identity = json.loads(bytes(found[ABOUT].numpy())), self._identity()
            if other := [name for name in identity if about.get(name) != identity[name]]:
                raise ValueError(
                    f"folder must be of {other[0]} {identity[other[0]]}, got {about.get(other[0])}; attach as before "
                    "saving"
                )
        replicas, rank = about["replicas"], self._comm.rank
        own, mine = _key(rank, f"shard {self._shard}"), range(rank, replicas, self._comm.size)
        alike = (replicas, about["shards"]) == (self._comm.size, self._shards)
        with raised_by_all():
            wanted, kept = self._wanted(known, mine)
            if alike:
                wanted[own] = _room(known, own)
            files = [_key(replica, f"shard {shard}", SAVED) for replica in mine for shard in range(about["shards"])]
            files = [key for key in files if key in known]  # 0.4 wrote none
            wanted |= {key: _room(known, key) for key in files}
        with raised_by_all():
            load(wanted, checkpoint_id=folder)
            if other := [key for key in files if wanted[key].tolist() != [about["steps"]]]:
                raise ValueError(f"files of steps {about['steps']} and {wanted[other[0]].tolist()}")
            rest = as_arrays(unpacked(wanted[own].numpy()))["units"] if alike else []
            # Units may be joined into other vectors now
            if [Layout.of(one["shapes"]) for one in rest] != [vector.reducer.layout for vector in self._gradients]:
                rest = [vector.reducer.state_dict() for vector in self._gradients]
            states = [{"vectors": self._vectors(wanted, replica, replicas, rest), "owed": {}} for replica in mine]
        if (optimizer := self._gradients.optimizer) is not None:
            add(optimizer, self._gradients.parameters, kept)
        with raised_by_all():
            self._gradients.deal(states, replicas, average)
        return int(about["steps"]), about.get("clip_norm")

    def _wanted(self, known: Mapping[str, Any], mine: range) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return room for the arrays of the replicas ``mine``, by key, and for what an optimizer keeps, by name."""
        wanted: dict[str, Any] = {}
        optimizer, parameters = self._gradients.optimizer, self._gradients.parameters

        def part(key: str, parameter: Tensor) -> Tensor:
            return sharded_like(parameter, torch.zeros_like(local(parameter), dtype=_room(known, key, 0).dtype))

        for vector in self._gradients:
            for name, parameter in zip(vector.names, vector.parameters, strict=True):
                keys = [_key(replica, array, name) for replica in mine for array in _arrays(vector.reducer)]
                wanted |= {key: part(key, parameter) for key in keys}
                if vector.reducer.second_moment is not None:
                    wanted[f"{MEAN}/{name}"] = _room(known, f"{MEAN}/{name}")
        kept: dict[str, dict[str, Any]] = {name: {} for name in parameters} if optimizer is not None else {}
        for name, key in [(name, key) for name in kept for key in (*ADDED, STEP) if _key(0, key, name) in known]:
            at = _key(0, key, name)
            wanted[at] = kept[name][key] = _room(known, at) if key == STEP else part(at, parameters[name])
        return wanted, kept

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


@contextmanager
def raised_by_all(group: Any = None, wrong: str = FOLDER) -> Iterator[None]:
    """Raise a ValueError on all processes of ``group`` if the body fails on any; its calls must end on all together."""
    failed: BaseException | None = None
    try:
        yield
    except (Exception, CheckpointException) as error:  # torch's is no Exception
        failed = error
    said = [""] * dist.get_world_size(group)
    dist.all_gather_object(said, "" if failed is None else _words(failed, wrong), group=group)
    if problem := next(filter(None, said), ""):
        raise ValueError(problem) from failed


def _words(error: BaseException, wrong: str) -> str:
    if isinstance(error, ValueError) and str(error).startswith(("folder must", "all ranks", "state")):
        return str(error)
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return f"{wrong}, got {type(error).__name__}: {error}; load another one"


def _room(known: Mapping[str, Any], key: str, size: int | None = None) -> Tensor:
    """Return zeros for what a folder has under ``key``, or ``size`` zeros."""
    if key not in known:
        raise ValueError(f"folder must have {key!r}, as ShardedReduction.save writes it for the same parameters")
    return torch.zeros(known[key].size if size is None else size, dtype=known[key].properties.dtype)


def _key(replica: int, *names: str) -> str:
    return "/".join((f"replica {replica}", *names))
