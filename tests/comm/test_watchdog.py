"""What a rank knows of the calls of others, and the time limit of a call."""

from __future__ import annotations

import pytest

from sparse_mpi.comm.job.call_log import CALLS, NOBODY, SENDRECV, CallSite, now
from sparse_mpi.comm.job.watchdog import TIMEOUT, WATCH, Watchdog, time_limit, wants_watchdog

ALLREDUCE = CALLS.index("allreduce")


def site(call=ALLREDUCE, inside=1, family=7, number=5, awaited=NOBODY, ago=0.0, reduction=3):
    return CallSite(call, inside, family, number, awaited, now() - int(1e3 * ago), reduction)


def test_a_collective_call_needs_those_that_have_not_made_it():
    assert site().waits_for(1, {7: 4}) and not site().waits_for(1, {7: 5})
    assert not site(inside=0).waits_for(1, {7: 4})
    assert not site().waits_for(1, {8: 1})  # no member of that communicator


def test_a_sendrecv_needs_its_source_alone():
    assert site(SENDRECV, awaited=2).waits_for(2, {}) and not site(SENDRECV, awaited=2).waits_for(1, {7: 1})
    assert not site(SENDRECV).waits_for(1, {7: 1})


def test_sites_in_words():
    assert str(CallSite()) == "has made no call yet"
    assert str(site(ago=12)) == "has been in allreduce of reduction 3 for 12 s"
    left = site(inside=0, ago=2, reduction=0)
    assert str(left) == "left allreduce 2 s ago, and has made no call since"


def test_those_that_a_call_waits_for_are_named_with_their_calls_whatever_these_are():
    """A rank in another call of the same number is the one; where all are in the same call it may be any."""
    gather, watchdog = CALLS.index("allgather"), type("Quiet", (Watchdog,), {"poll": None})(0, 3, 0.0)

    def waits(mine, *others):
        return watchdog.waiting(mine, dict(enumerate(others, 1)), "does not answer").split("waits for others: ")[1]

    watchdog.log.over(7, range(3))
    assert waits(site(), site(), site(gather, ago=4)) == "rank 2 has been in allgather of reduction 3 for 4 s"
    assert waits(site(), site(ago=4), site(gather, number=6, ago=4)) == (
        "rank 1 has been in allreduce of reduction 3 for 4 s; rank 2 has been in allgather of reduction 3 for 4 s"
    )
    assert waits(site(SENDRECV, family=8), CallSite()) == "rank 2 does not answer"
    assert "rank 1 has made no call yet; rank 2 has been in" in waits(site(SENDRECV), CallSite(), site())


def test_the_time_limit_is_that_of_the_communicator_or_the_variable(monkeypatch):
    monkeypatch.delenv(TIMEOUT, raising=False)
    assert time_limit(None) == 0 and time_limit(2.5) == 2.5
    monkeypatch.setenv(TIMEOUT, "30")
    assert time_limit(None) == 30 and time_limit(0) == 0


@pytest.mark.parametrize("text", ["", "soon", "-1", "inf", "nan"])
def test_a_time_limit_must_be_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(TIMEOUT, text)
    with pytest.raises(ValueError, match=f"SPARSE_MPI_TIMEOUT must be a number of seconds, got '{text}'"):
        time_limit(None)
    with pytest.raises(ValueError, match="timeout must be a number of seconds, got -1"):
        time_limit(-1)


def test_a_watchdog_is_asked_for(monkeypatch):
    monkeypatch.delenv(WATCH, raising=False)
    assert not wants_watchdog(0) and wants_watchdog(1.5)
    monkeypatch.setenv(WATCH, "1")
    assert wants_watchdog(0)
    monkeypatch.setenv(WATCH, "yes")
    with pytest.raises(ValueError, match="SPARSE_MPI_WATCH must be 0 or 1, got 'yes'"):
        wants_watchdog(0)
