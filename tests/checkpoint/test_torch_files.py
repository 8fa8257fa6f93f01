"""States in files of torch: `torch.save` and `torch.load` as they are by default; those of training: `check_door`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce
from sparse_mpi.arrays import as_arrays, as_tensors
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team, team_of
from sparse_mpi.testing.steps import dense_of

from ..gradients import gradient

SHAPES = [(20, 25), (100,)]


def by_torch(state: Any) -> Any:
    """What `torch.load` makes of it, which refuses all but tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def reducer_of(comm: Any, name: str) -> Any:
    if name == "elastic":
        return ElasticAllreduce(SHAPES, team=team_of(comm) or Team(comm), k=30)
    options = {"algorithm": "gtopk", "feedback": "gmc"} if name == "gmc" else {"algorithm": name}
    return SparseAllreduce(SHAPES, comm=comm, k=30, **options)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["elect", "oktopk", "oktopk-2level", "adtopk", "powersgd", "topka", "gmc", "elastic"])
def test_every_state_goes_on_bit_for_bit(name):
    def body(comm):
        def steps(reducer, numbers):
            return [dense_of(reducer.step(gradient(comm.rank, step, 600))).tobytes() for step in numbers]

        straight, resumed = reducer_of(comm, name), reducer_of(comm, name)
        steps(straight, range(3))
        saved = by_torch(as_tensors(straight.state_dict()))
        kinds = {type(leaf) for leaf in torch.utils._pytree.tree_leaves(saved)}
        assert kinds <= {torch.Tensor, bool, int, float, str, bytes, type(None)}
        resumed.load_state_dict(saved)
        assert steps(straight, range(3, 6)) == steps(resumed, range(3, 6))

    World(2).run(body)


def test_arrays_become_tensors_and_back():
    frozen = np.arange(3, dtype=np.uint16)
    frozen.flags.writeable = False
    tree = {"a": (np.zeros((0, 2), np.float32), [np.float64(0.5), None, "x", b"y", True]), 3: frozen}
    tensors = as_tensors(tree)
    assert type(tensors["a"]) is tuple and type(tensors["a"][1][0]) is float and tensors["a"][0].shape == (0, 2)
    again = as_arrays(by_torch(tensors))
    assert again["a"][1] == [0.5, None, "x", b"y", True] and again["a"][0].dtype == np.float32
    assert again[3].dtype == np.uint16 and again[3].tolist() == [0, 1, 2]
