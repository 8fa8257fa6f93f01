"""Split and reduce, in one stage and in several: the same sums, nothing lost, few messages."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from sparse_mpi import World
from sparse_mpi.algorithms.exchange import added_up_loosely, divided, draw_regions, split, stages
from sparse_mpi.select.exact import top_k
from sparse_mpi.wire import Coo

N, K = 2000, 90


class Rounded(Coo):
    """Pairs whose values are rounded to whole numbers."""

    lossless: ClassVar[bool] = False

    def pack(self, vector, counts, regions):
        return super().pack(vector._replace(values=np.round(vector.values)), counts, regions)


def job(radix, wire=None, scale=10.0):
    """What each rank gets, gives, selected and sent, and its region."""

    def body(comm):
        x = scale * np.random.default_rng(comm.rank).standard_normal(N)
        selected = top_k(x, K)
        boundaries = draw_regions(selected, K, comm)
        before = comm.traffic.copy()
        came, region = split(selected, boundaries, radix, wire or Coo(), comm), boundaries[comm.rank : comm.rank + 2]
        summed, _ = added_up_loosely(came, region, wire or Coo())
        return summed, came.contributed, selected, comm.traffic - before, region

    return body


@pytest.mark.parametrize("radix", [2, 3, 4, 32])
def test_stages_sum_what_one_stage_sums(ranks, radix):
    once, staged = ranks.run(job(None)), ranks.run(job(radix))
    for (expected, _, selected, _, _), (summed, part, _, _, (start, stop)) in zip(once, staged, strict=True):
        assert (summed.indices == expected.indices).all() and np.allclose(summed.values, expected.values, rtol=1e-12)
        assert (np.diff(summed.indices) > 0).all() and ((start <= summed.indices) & (summed.indices < stop)).all()
        assert part.indices.tolist() == selected.indices.tolist() and (part.values == selected.values).all()


@pytest.mark.parametrize("radix", [None, 2, 3])
def test_who_rounds_owes_what_rounding_took(ranks, radix):
    """The parts add up to the sums although values are rounded in every stage; and they were rounded."""
    results = ranks.run(job(radix, Rounded()))
    sums = np.sum([summed.to_dense() for summed, *_ in results], axis=0)
    parts = np.sum([part.to_dense() for _, part, *_ in results], axis=0)
    assert np.allclose(sums, parts, atol=1e-9)
    assert np.abs(sums - np.sum([selected.to_dense() for _, _, selected, *_ in results], axis=0)).max() > 0.1


@pytest.mark.parametrize("radix", [None, 2, 3, 5])
@pytest.mark.parametrize("size", [2, 7, 12, 31, 64])
def test_messages_and_volume_stay_below_what_stages_promise(size, radix):
    promised = stages(size, radix)
    for *_, traffic, _ in World(size).run(job(radix)):
        assert traffic.messages <= sum(messages for messages, _ in promised)
        assert traffic.sent <= 12 * sum(min(N, K * selections) for _, selections in promised)
    assert sum(messages for messages, _ in promised) < size - 1 or radix is None or size <= 7


def test_a_thousand_ranks_in_two_stages():
    assert stages(1024, 32) == [(31, 1), (31, 32)] and stages(1024, None) == [(1023, 1)] and stages(1, 2) == []
    assert [messages for messages, _ in stages(1000, 32)] == [31, 31]
    assert [messages for messages, _ in stages(1024, 2)] == [1] * 10


def test_groups_are_as_equal_as_can_be():
    assert divided(0, 7, 2).tolist() == [0, 3, 7] and divided(3, 7, 2).tolist() == [3, 5, 7]
    assert divided(4, 6, 5).tolist() == [4, 5, 6] and divided(0, 3, None).tolist() == [0, 1, 2, 3]
