"""One answer to "which algorithm": training has one default, bare sums another, and whatever names them agrees."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import sparse_mpi
import vgg
from sparse_mpi.ddp import SparseState
from sparse_mpi.fsdp import attach
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.predict import shown as predict
from sparse_mpi.reduction.arguments import usual_density
from sparse_mpi.training.diloco import DiLoCo
from sparse_train.options.arguments import parse

ROOT = Path(__file__).parents[2]
TRAINING = [DistributedOptimizer, SparseState, attach, DiLoCo]
SUMS = [sparse_mpi.SparseAllreduce, sparse_mpi.sparse_allreduce]


def default_of(function: Any) -> Any:
    return signature(function).parameters["algorithm"].default


@pytest.mark.parametrize("function", TRAINING, ids=lambda function: function.__name__)
def test_all_that_trains_has_one_default(function):
    folders = dict.fromkeys([*vgg.SETTINGS, vgg.TINY.data], "here")
    program = parse("vgg", "", vgg.SETTINGS, folders, vgg.TINY, lambda parser: None, lambda args: None, [])
    assert default_of(function) == predict.TRAINING == program.algo
    assert program.density == usual_density(program.algo)


@pytest.mark.parametrize("function", SUMS, ids=lambda function: function.__name__)
def test_sums_have_another(function):
    assert default_of(function) == "oktopk"
