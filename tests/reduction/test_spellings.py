"""The order of arguments is the same at every entry point, and what is named there is named once."""

from __future__ import annotations

import inspect

import pytest
import torch

from sparse_mpi import NoFeedback, SparseAllreduce, World, sparse_allreduce
from sparse_mpi.ddp import SparseState
from sparse_mpi.optim import DistributedOptimizer

N = 60
ORDER = ["k", "density", "comm", "algorithm", "feedback", "clip_norm", "nonfinite"]
ENTRY_POINTS = {  # what stands before the arguments that are given by keyword
    sparse_allreduce: ["x"],
    SparseAllreduce: ["layout"],
    SparseAllreduce.step: ["self", "gradient"],
    SparseAllreduce.start: ["self", "gradient"],
    DistributedOptimizer: ["optimizer", "named_parameters"],
    SparseState: ["named_parameters"],
}


@pytest.mark.parametrize(("entry", "first"), ENTRY_POINTS.items(), ids=lambda x: getattr(x, "__qualname__", ""))
def test_all_entry_points_have_the_same_order_of_arguments(entry, first):
    parameters = inspect.signature(entry).parameters
    by_position = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_keyword = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    shared = [name for name in by_keyword if name in ORDER]
    assert by_position == first
    assert shared == [name for name in ORDER if name in by_keyword] == by_keyword[: len(shared)]


def test_an_algorithm_is_given_once():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(6, 10))], lr=0.1)

    def body(comm):
        with pytest.raises(TypeError, match="takes algorithm or compression, not both, got algorithm='topka' and comp"):
            DistributedOptimizer(optimizer, comm=comm, algorithm="topka", compression="dense")
        with pytest.raises(TypeError, match="team was removed in 0.4.0: give the Team as comm="):
            DistributedOptimizer(optimizer, comm=comm, team=3)
        with pytest.raises(ValueError, match="ef21 was removed in 0.4.0: use feedback='residual'"):
            SparseAllreduce(N, comm=comm, feedback="ef21")

    World(1).run(body)


def test_a_state_keeps_the_key_of_before():
    """So that checkpoints load that were made when feedback was called memory."""
    (saved,) = World(1).run(lambda comm: SparseAllreduce(N, comm=comm, feedback=NoFeedback()).state_dict())
    assert saved["memory"] == {"kind": "NoFeedback"} and "feedback" not in saved
