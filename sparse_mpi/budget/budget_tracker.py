"""Measure steps and have the ranks agree on what they took, so that all decide alike: `BudgetTracker`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi import arrays
from sparse_mpi.budget.controller import NANOSECONDS, Controller, Decision, Observation
from sparse_mpi.checks import check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell

SAMPLED = 4096  # entries of a gradient, of which its norm is estimated


class BudgetTracker:
    """The controller of a reduction on this rank, with the clock and counters that it goes by.

    After every step each rank calls `measured`, then all agree on its words by `agreed_on`, and each calls `decide`.

    Args:
        controller: makes the decisions.
    """

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.decision: Decision | None = None
        self._sent = 0  # bytes that this rank has sent
        self._last: float | None = None  # when the last step ended

    @property
    def samples(self) -> bool:
        """Return True if it matters how fast gradients change."""
        return self.controller.goal.limits_bytes

    def pause(self, sent: int = 0) -> None:
        """Leave the time of the running step out of account, on all ranks, but not bytes that were ``sent`` in it."""
        self._last = None
        self._sent += sent

    def measured(self, waited: float, exchange: float, sent: int, norm: float) -> np.ndarray | None:
        """Return this rank's part in the agreement on the step that ends now; None if it did not see its beginning.

        Args:
            waited: seconds from when the last gradient was there until it was reduced.
            exchange: seconds that the step's communication took, in the background or not.
            sent: bytes of the step, control included.
            norm: of this rank's gradient.
        """
        now = perf_counter()
        last, self._last = self._last, now
        self._sent += sent
        if last is None:
            return None
        exposed = min(waited, exchange)
        words = [now - last - exposed, -exposed, -max(waited, exchange)]
        return np.array([*(round(word * NANOSECONDS) for word in words), self._sent, _bits(norm)], np.int64)

    def decide(self, agreed: np.ndarray) -> Decision:
        """Return the decision on what all ranks agree on, see `agreed_on`."""
        rest, exposed, cost, sent, bits = (int(word) for word in agreed)
        norm = float(np.int64(bits).view(np.float64))
        self.decision = self.controller.observe(Observation(rest, -exposed, -cost, sent, norm))
        return self.decision

    def state(self) -> dict[str, Any]:
        """Return what `load` and `take_over` take, as a text and a number."""
        return {"controller": json.dumps(self.controller.state()), "sent": self._sent}

    def check_state(self, state: Any, argument: str) -> None:
        """Raise TypeError or ValueError unless `load` can take ``state``; change nothing."""
        try:
            deepcopy(self.controller).load(json.loads(state["controller"]))
            check_whole("sent", state["sent"], 0, "bytes")
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            raise ValueError(
                f"{argument} must be what a budget's controller saved, got {state!r} ({problem}); load what "
                "state_dict() returned, whole"
            ) from None

    def load(self, state: dict[str, Any]) -> None:
        """Go on from this rank's `state`."""
        self.controller.load(json.loads(state["controller"]))
        self._sent, self._last = state["sent"], None

    def take_over(self, states: Sequence[dict[str, Any]], comm: Comm) -> None:
        """Go on from the states of any number of ranks, of which rank 0 has the first, if there is any. Collective."""
        told = tell(comm, states[0]["controller"] if states and comm.rank == 0 else "")
        if not told:
            return
        self.controller.load(json.loads(told))
        sent = self.controller.account.sent
        self._sent, self._last = max((state["sent"] for state in states), default=sent), None


def agreed_on(words: np.ndarray, comm: Comm) -> np.ndarray:
    """Return the largest of each of the ranks' ``words`` ``(5,)`` int64. Collective; 40 bytes of control.

    The slowest rank counts: its rest is the longest, and because the others wait for it, it waits least itself, which
    is why seconds of waiting are negative here.
    """
    return np.asarray(comm.allreduce(words, "max", control=True))


def sampled_square(flat: object) -> float:
    """Return the sum of squares of the same few entries of a gradient ``(n,)`` of any library in every step."""
    array = arrays.enter(flat)
    entries = arrays.widened(array[:: max(1, len(array) // SAMPLED)]).astype(np.float64)
    return float((entries * entries).sum())


def _bits(norm: float) -> int:
    """Return the bits of a float of 0 or more as an integer, which has the same order; 0 for what is not finite."""
    return int(np.float64(norm).view(np.int64)) if 0 <= norm < np.inf else 0
