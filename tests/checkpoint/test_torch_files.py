"""States in files of torch: `torch.save` and `torch.load` as they are by default; those of training: `check_door`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce
from sparse_mpi.arrays import as_arrays, as_tensors
from sparse_mpi.comm.world import World
from sparse_mpi.fault_tolerance import ElasticAllreduce, Team, team_of

torch = pytest.importorskip("torch")

N = 600


def by_torch(state: Any) -> Any:
    """What `torch.load` makes of it, which refuses all but tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


REDUCERS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in ("elect", "oktopk", "oktopk-2level", "adtopk", "powersgd", "topka")},
    "gmc": {"algorithm": "gtopk", "feedback": "gmc"},
    "elastic": {"algorithm": "oktopk"},
}


def reducer_of(comm: Any, name: str) -> Any:
    """A reducer of NumPy arrays, whose state is in arrays too."""
    shapes, options = [(20, 25), (100,)], REDUCERS[name]
    if name == "elastic":
        return ElasticAllreduce(shapes, team=team_of(comm) or Team(comm), k=30, **options)
    return SparseAllreduce(shapes, comm=comm, k=30, **options)


def steps(reducer: Any, rank: int, numbers: range) -> bytes:
    draws = (np.random.default_rng([step, rank]) for step in numbers)
    totals = [reducer.step(draw.standard_normal(N).astype(np.float32)) for draw in draws]
    return b"".join((total if isinstance(total, np.ndarray) else total.to_dense()).tobytes() for total in totals)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", REDUCERS)
def test_every_state_goes_on_bit_for_bit(name):
    def body(comm):
        straight, resumed = reducer_of(comm, name), reducer_of(comm, name)
        steps(straight, comm.rank, range(3))
        saved = by_torch(as_tensors(straight.state_dict()))
        kinds = {type(leaf) for leaf in torch.utils._pytree.tree_leaves(saved)}
        assert kinds <= {torch.Tensor, bool, int, float, str, bytes, type(None)}
        resumed.load_state_dict(saved)
        return [steps(reducer, comm.rank, range(3, 6)) for reducer in (straight, resumed)]

    for whole, rest in World(2).run(body):
        assert whole == rest


def test_arrays_become_tensors_and_back():
    frozen = np.arange(3, dtype=np.uint16)
    frozen.flags.writeable = False
    tree = {"a": (np.zeros((0, 2), np.float32), [np.float64(0.5), None, "x", b"y", True]), 3: frozen}
    tensors = as_tensors(tree)
    assert type(tensors["a"]) is tuple and type(tensors["a"][1][0]) is float and tensors["a"][0].shape == (0, 2)
    again = as_arrays(by_torch(tensors))
    assert again["a"][1] == [0.5, None, "x", b"y", True] and again["a"][0].dtype == np.float32
    assert again[3].dtype == np.uint16 and again[3].tolist() == [0, 1, 2]
