"""Profiles for the tests of plans: drawn at random, and one worked by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from sparse_mpi.comm.network import Network
from sparse_mpi.planning.base import Option, PhaseCost, Profile, Tensor

SIZES = (1, 7, 64, 500, 4096, 30_000)
FREE = PhaseCost()


def seconds(most):
    """Times on a grid, zero among them."""
    return st.integers(0, 100).map(lambda share: share * most / 100)


def costs(fixed, per_element, per_entry):
    return st.builds(PhaseCost, seconds(fixed), seconds(per_element), seconds(per_entry))


def sparse_option(name):
    return st.builds(
        Option, st.just(name), st.just(False), costs(0.5, 1e-4, 1e-4), costs(0.5, 0, 2e-3), costs(0.2, 1e-5, 1e-3)
    )


@st.composite
def profiles(draw, most_tensors=12, fewest_tensors=1):
    """Any job, with the options dense, topka and oktopk, in which neither computing nor communication always rules."""
    backward = draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    tensors = tuple(
        Tensor(f"t{number}", (draw(st.sampled_from(SIZES)),), draw(seconds(backward)))
        for number in range(draw(st.integers(fewest_tensors, most_tensors)))
    )
    dense = Option("dense", True, FREE, draw(costs(0.5, 2e-4, 0)), draw(costs(0, 1e-5, 0)))
    return Profile(
        tensors,
        draw(st.integers(1, 64)),
        draw(st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0])),
        draw(seconds(1)),
        backward,
        draw(seconds(0.2)),
        Network(1e-5, 1e-9),
        (dense, draw(sparse_option("topka")), draw(sparse_option("oktopk"))),
    )


def worked(**changes):
    """Two tensors, ready after 4 and 10 s of a backward pass of 10 s; topka takes 1, 2 and 1 s, dense 0.05 s each."""
    dense = Option("dense", True, FREE, PhaseCost(per_element=0.05), FREE)
    topka = Option("topka", False, PhaseCost(fixed=1), PhaseCost(fixed=2), PhaseCost(fixed=1))
    tensors = (Tensor("b", (5, 10), 10), Tensor("a", (100,), 4))
    return replace(Profile(tensors, 4, 0.1, 2, 10, 1, Network(0, 0), (dense, topka)), **changes)
