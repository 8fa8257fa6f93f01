"""The check that ranks are about to do the same thing, and texts that one rank tells to all."""

from __future__ import annotations

import pytest

from sparse_mpi.comm.consistency import same_on_all_ranks, tell


@pytest.mark.ranks(1, 2, 4)
def test_the_text_of_one_rank_is_told_to_all(ranks):
    def body(comm):
        own = "ü" * comm.rank + f"text of {comm.rank}"
        return tell(comm, own), tell(comm, own, comm.size - 1), tell(comm, own[:0])

    last = ranks.size - 1
    assert ranks.run(body) == [("text of 0", "ü" * last + f"text of {last}", "")] * ranks.size


def test_a_block_on_which_all_ranks_agree_costs_one_small_allreduce(ranks):
    def body(comm):
        before = comm.traffic.copy()
        with same_on_all_ranks(comm) as say:
            prepared = comm.rank
            say(n=4, k=2)
            say(algorithm="topka")
        moved = comm.traffic - before
        return prepared, moved.sent, moved.control, moved.messages

    rounds = (ranks.size - 1).bit_length()
    control = 2 * 16 * (ranks.size - 1) // ranks.size
    assert ranks.run(body) == [(rank, 0, control, 2 * rounds) for rank in range(ranks.size)]


@pytest.mark.parametrize("words", [0, 1])
@pytest.mark.parametrize("raised", [[], [0], [1, 2]], ids=str)
def test_a_flag_that_any_rank_raises_is_seen_by_all_at_no_cost(ranks, raised, words):
    def body(comm):
        costs = []
        for flag in (False, comm.rank in raised):
            before = comm.traffic.copy()
            agreement = same_on_all_ranks(comm, words)
            with agreement as say:
                say(k=4)
                agreement.flag = flag
            costs.append((comm.traffic - before).control)
        assert costs[0] == costs[1] and agreement.flag == any(rank in raised for rank in range(comm.size))
        if comm.size > 1:
            with pytest.raises(ValueError, match="all ranks must call with the same arguments"):
                agreement = same_on_all_ranks(comm, words)
                with agreement as say:
                    say(k=comm.rank)
                    agreement.flag = comm.rank in raised

    ranks.run(body)


@pytest.mark.ranks(2)
def test_what_differs_behind_the_cut_is_told_apart(ranks):
    def body(comm):
        with pytest.raises(ValueError, match=r"(?s)rank 0: names=x+\.\.\. \[\w+\]\n  rank 1: names=x+\.\.\. \["):
            with same_on_all_ranks(comm) as say:
                say(names="x" * 1000 + str(comm.rank))

    ranks.run(body)
