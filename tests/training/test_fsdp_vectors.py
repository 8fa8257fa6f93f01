"""Units of FSDP2 that are reduced as one vector, as on a GPU, without FSDP2."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from sparse_mpi import World
from sparse_mpi.reduction.settings import make_settings
from sparse_mpi.training.fsdp_units import UnitVector
from sparse_mpi.training.live_ranks import LiveRanks
from sparse_mpi.training.named_gradients import NamedGradients


class Part(SimpleNamespace):
    """What a vector asks of a unit, and a key of a dict."""

    __hash__ = object.__hash__


def test_a_unit_that_comes_twice_before_its_vector_is_complete_is_added_up():
    def body(comm):
        parameters = {name: nn.Parameter(torch.zeros(3)) for name in "ab"}
        gradients = NamedGradients(parameters, make_settings(6, density=1.0), 1.0, LiveRanks(comm, None))
        alike = {"dtype": torch.float32, "device": torch.device("cpu"), "elements": 3, "objection": lambda shard: None}
        units = [Part(parameters=[p], without_padding=torch.clone, **alike) for p in parameters.values()]
        made = UnitVector(units, gradients.adopt(("a", "b")))
        for unit, value in ((units[0], 1.0), (units[0], 2.0), (units[1], 5.0)):
            shard = torch.full((3,), value)
            assert not made.complete
            made.take(unit, shard)
            assert not shard.any()
        assert made.complete
        return made.flat.tolist()

    assert World(1).run(body) == [[3.0] * 3 + [5.0] * 3]
