"""How samples are dealt when ranks are lost: each once, to ranks that are there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparse_train.data.share import Share, shard

COUNT, BATCH = 101, 3


@st.composite
def losses(draw):
    """Draw a number of ranks, and after which step each of some of them is lost, but not all."""
    ranks = draw(st.integers(2, 6))
    steps = COUNT // (BATCH * ranks)
    lost = draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(0, steps - 3), max_size=ranks - 1))
    return ranks, lost, draw(st.integers(1, 2))


@given(losses(), st.booleans())
def test_an_epoch_has_each_sample_once(drawn, by_label):
    """A rank that is lost in a step is known to be so a step or two later."""
    ranks, lost, delay = drawn
    labels = np.arange(COUNT) % 7 if by_label else None
    parts = shard(COUNT, BATCH, ranks, seed=1, epoch=4, labels=labels)
    shares, left, seen = [Share(rank, ranks) for rank in range(ranks)], list(range(ranks)), []
    for step in range(len(parts)):
        gone = [rank for rank in left if rank in lost and step >= min(lost[rank] + delay, len(parts) - 1)]
        if gone:
            left = [rank for rank in left if rank not in gone]
            missed = [(before, rank) for rank in gone for before in range(lost[rank], step)]
            for share in shares:
                share.deal(4, step, left, missed)
        taken = {rank: shares[rank].take(parts, 4, step)[0] for rank in left}
        assert max(map(len, taken.values())) - min(map(len, taken.values())) <= 1
        seen += [part for rank, part in taken.items() if step < lost.get(rank, COUNT)]
    assert sorted(np.concatenate(seen)) == list(range(COUNT))


def test_nobody_lost_is_nothing_new():
    parts = shard(COUNT, BATCH, 4, seed=1, epoch=0)
    for rank in range(4):
        taken = Share(rank, 4).take(parts, 0, 2)
        assert [part.tolist() for part in taken] == [step[rank].tolist() for step in parts[2:]]


def test_later_epochs_are_dealt_to_those_that_are_left():
    share, parts = Share(2, 3), shard(COUNT, BATCH, 3, seed=1, epoch=7)
    share.deal(2, 5, [0, 2], [(4, 1)])
    assert share.take(parts, 7)[0].tolist() == np.array_split(np.concatenate(parts[0]), 2)[1].tolist()


def test_two_losses_before_one_step_are_both_made_up_for():
    parts = shard(COUNT, BATCH, 3, seed=1, epoch=0)
    share = Share(2, 3)
    share.deal(0, 4, [0, 2], [(3, 1)])
    share.deal(0, 4, [2], [(3, 0)])
    dealt = np.concatenate([parts[3][1], parts[3][0], *parts[4]])
    assert share.take(parts, 0, 4)[0].tolist() == dealt.tolist()
