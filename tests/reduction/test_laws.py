"""Both laws, asserted by the step itself, on gradients nobody sends on purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import ALGORITHMS, SparseAllreduce, World
from sparse_mpi.feedback import FEEDBACKS, LeakyFeedback
from sparse_mpi.reduction.laws import LawError, check_conservation


def read_only(rng):
    x = rng.standard_normal(300).astype(np.float32)
    x.setflags(write=False)
    return x


GRADIENTS = {
    "read-only": read_only,
    "strided": lambda rng: rng.standard_normal(600).astype(np.float32)[::2],
    "fortran-order": lambda rng: np.asfortranarray(rng.standard_normal((15, 20))),
    "negative-zero": lambda rng: -np.zeros(300, np.float32),
    "denormal": lambda rng: (rng.standard_normal(300) * 1e-42).astype(np.float32),
    "sums-overflow": lambda rng: (np.sign(rng.standard_normal(300)) * 3e38).astype(np.float32),
    "infinite": lambda rng: np.where(rng.random(300) < 0.1, np.inf, rng.choice([-1, 1])).astype(np.float32),
    "infinities-cancel": lambda rng: np.where(rng.random(300) < 0.1, rng.choice([-np.inf, np.inf]), 1.0),
    "half-nan": lambda rng: np.where(rng.random(300) < 0.5, np.nan, 1.0),
    "bfloat16": lambda rng: torch.from_numpy(rng.standard_normal(300)).bfloat16(),
    "transposed": lambda rng: torch.from_numpy(rng.standard_normal((20, 15))).T,
}


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3, 4, 5)
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_laws_hold_and_the_gradient_is_left_alone(ranks, name, gradient):
    def body(comm):
        for k in (1, 7, 299, 300):
            reducer = SparseAllreduce(300, k=k, comm=comm, algorithm=name)
            for step in range(3):
                x = GRADIENTS[gradient](np.random.default_rng([step, comm.rank]))
                before = x.clone() if isinstance(x, torch.Tensor) else x.copy()
                reducer.step(x, check=True)
                assert (x == before).all() or gradient == "half-nan"

    ranks.run(body)


@pytest.mark.ranks(1, 3)
def test_what_is_read_only_may_be_reduced_without_a_residual(ranks):
    """Then a step selects from the caller's own memory."""

    def body(comm):
        reducer = SparseAllreduce(300, k=7, comm=comm, algorithm="elect", second_moment=0.9, feedback="none")
        for step in range(3):
            reducer.step(read_only(np.random.default_rng([step, comm.rank])), check=True)

    ranks.run(body)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("feedback", ["residual", "gmc"])
def test_values_that_the_format_rounds_to_far_smaller_ones_are_no_loss(ranks, feedback):
    """Of 1e37 a message takes 65504: too little to be seen in what is left."""

    def body(comm):
        reducer = SparseAllreduce(300, k=7, comm=comm, wire="packed+fp16", feedback=feedback)
        for step in range(3):
            reducer.step(np.random.default_rng([step, comm.rank]).standard_normal(300) * 1e37, check=True)

    ranks.run(body)


@pytest.mark.thin(1)
@pytest.mark.parametrize("feedback", [*FEEDBACKS, LeakyFeedback(0.01)], ids=str)
@pytest.mark.parametrize("name", ["topka", "oktopk", "powersgd", "acpsgd"])
@pytest.mark.parametrize(("kind", "scales"), [("f4", (1e-22, 1e-37, 1e-42)), ("f8", (1e-160, 1e-307, 1e-320))])
def test_sound_steps_with_denormals_are_not_taken_for_broken(name, feedback, kind, scales):
    def run(comm):
        for scale in scales:
            reducer = SparseAllreduce([(20, 30), (40,)], k=10, comm=comm, algorithm=name, feedback=feedback)
            for step in range(4):
                x = np.random.default_rng([step, comm.rank]).standard_normal(640) * scale
                x[:300] *= 1e20 if kind == "f4" else 1e100
                reducer.step(x.astype(kind), check=True)

    World(2).run(run)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_what_is_lost_is_noticed_at_every_scale(scale):
    given = np.full(10, scale, np.float32)

    def run(comm):
        for normwise in (False, True):
            with pytest.raises(LawError, match="nothing is lost"):
                check_conservation(3 * given, given, given, comm, normwise)

    World(2).run(run)
