"""`CallSite`, where a rank is: in a call, or after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CALLS = ("", *"sendrecv allgather allgatherv alltoallv allreduce bcast barrier shrink close duplicate".split())
SENDRECV, SHRINK, CLOSE = CALLS.index("sendrecv"), CALLS.index("shrink"), CALLS.index("close")
DUPLICATE = CALLS.index("duplicate")  # any call that makes a communicator
UNCOUNTED = (SENDRECV, SHRINK, CLOSE)  # calls that are not counted: the last two are of all ranks that are left
NOBODY = -1


def now() -> int:
    """Return the time in milliseconds."""
    return int(1e3 * time.time())


class CallSite(NamedTuple):
    """Where a thread of a rank is: in a call, or after it."""

    call: int = 0  # index into `CALLS`; 0 before the first
    inside: int = 0  # 1 within the call, 0 after it
    family: int = 0  # number of the communicator, the same on all of its ranks
    number: int = 0  # of the collective calls there, this one included; see `UNCOUNTED`
    awaited: int = NOBODY  # the rank from which a sendrecv expects a message
    since: int = 0  # when the call was entered or left, as `now` had it
    reduction: int = 0  # how many the rank had begun, this one included

    @property
    def seconds(self) -> float:
        """Return how long ago that was."""
        return max(now() - self.since, 0) / 1e3

    def __str__(self) -> str:
        if not self.call:
            return "has made no call yet"
        of = f" of reduction {self.reduction}" if self.reduction else ""
        if self.inside:
            return f"has been in {CALLS[self.call]}{of} for {self.seconds:.0f} s"
        return f"left {CALLS[self.call]}{of} {self.seconds:.0f} s ago, and has made no call since"

    def waiting_for(self, ranks: Iterable[int], sites: Mapping[int, CallSite], silent: str) -> str:
        """Return which of the other ``ranks`` this call waits for and where they are, as far as that is known.

        ``silent`` is said of those of which it is not known.
        """
        return "; ".join(f"rank {r} {sites.get(r, silent)}" for r in ranks if self._lacks(r, sites.get(r))) or "unknown"

    def _lacks(self, rank: int, other: CallSite | None) -> bool:
        """Return whether a rank, at ``other`` if that is known, is not yet in the call in which this one waits."""
        if other is None:
            return True
        if self.call == SENDRECV:
            return rank == self.awaited
        return not (other.inside and other.family == self.family and other.number >= self.number)

    def waits_for(self, rank: int, numbers: dict[int, int]) -> bool:
        """Return whether this call needs one of ``rank``, which has entered ``numbers``, family -> collective calls."""
        if not self.inside:
            return False
        if self.call in UNCOUNTED:
            return self.call == SENDRECV and self.awaited == rank
        return self.family in numbers and self.number > numbers[self.family]
