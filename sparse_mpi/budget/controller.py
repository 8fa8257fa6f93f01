"""Set k from step to step so that a goal is met: `Controller`, a state machine without clocks and messages.

Its decisions are the same to the bit on all ranks because they are computed from the same numbers by addition,
multiplication and division alone, which IEEE 754 defines to the last bit; logarithms and powers may differ.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import asdict
from typing import Any, NamedTuple

from sparse_mpi.budget.goal import PAIR_BYTES, Goal

# What a run has earned and spent of its byte budget: `Account`.


REPAID = 20  # steps in which a debt shrinks to 1/e; a credit is spent as slowly
MORE = 0.5  # share of what a step may spend by which it spends more where gradients change fastest
NANOSECONDS = 10**9


class Account:
    """The bytes that were sent, and those that might have been.

    A step may spend what it earns itself, more where gradients change fast, and a part of the credit of the steps
    before. So a debt is worth at most `MORE` times `REPAID` steps, and is repaid by later ones: the average meets the
    budget. Of a total, what is left is divided among the steps that are left, which meets it to the last step.

    Args:
        goal: the budget.
    """

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.before = 0  # bytes that were sent when this budget began
        self.sent = 0  # bytes, these included
        self.elapsed = 0  # nanoseconds
        self.steps = 0

    def add(self, sent: int, nanoseconds: int) -> None:
        """Enter a step that sent ``sent`` bytes and took that long."""
        self.sent += sent
        self.elapsed += nanoseconds
        self.steps += 1

    @property
    def spent(self) -> int:
        """Return the bytes that were sent of this budget."""
        return self.sent - self.before

    @property
    def credit(self) -> float:
        """Return the bytes that were earned and not sent; a debt is negative. 0 without a budget of bytes."""
        goal = self.goal
        if goal.rate is not None:
            return goal.rate * self.elapsed / NANOSECONDS - self.spent
        if goal.bytes_per_step is not None:
            return goal.bytes_per_step * self.steps - self.spent
        if goal.total is not None and goal.steps is not None:
            return goal.total * min(self.steps, goal.steps) / goal.steps - self.spent
        return 0.0

    def allowance(self, seconds: float, urgency: float) -> float:
        """Return the bytes that the next step should send, 0 or more; infinity without a budget of bytes.

        Args:
            seconds: that it will take.
            urgency: in [0, 1], for how much more than usual there is reason.
        """
        goal, more = self.goal, 1 + MORE * urgency
        if goal.total is not None and goal.steps is not None:
            return max(0.0, more * (goal.total - self.spent) / max(1, goal.steps - self.steps))
        if goal.rate is None and goal.bytes_per_step is None:
            return float("inf")
        earned = goal.rate * seconds if goal.rate is not None else goal.bytes_per_step or 0.0
        # A long outage leaves much credit: spending it must not more than double what a step sends.
        return max(0.0, more * earned + min(self.credit / REPAID, earned))

    def state(self) -> dict[str, Any]:
        """Return what `load` takes."""
        numbers = {"before": self.before, "sent": self.sent, "elapsed": self.elapsed, "steps": self.steps}
        return numbers | {"goal": asdict(self.goal)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; with another goal the account begins anew, without credit or debt."""
        self.sent, same = state["sent"], state["goal"] == asdict(self.goal)
        self.before = state["before"] if same else self.sent
        self.elapsed, self.steps = (state["elapsed"], state["steps"]) if same else (0, 0)


# When gradients change fast, and so more of them should be sent: `CriticalRegime`.
#
# Accordion (Agarwal et al., MLSys 2021) compresses little in the critical phases of training, at its beginning and
# after changes, which it knows by the gradient's norm: it changes by half or more from one time to the next. Instead of
# two levels there is a continuous one here.


WINDOW = 20  # steps whose norms are averaged, and compared with those of as many before
CRITICAL = 0.5  # the relative change of the norm that Accordion calls critical


class CriticalRegime:
    """A measure of how fast gradients change, in [0, 1]: 1 is critical, as training is until there is a comparison."""

    def __init__(self) -> None:
        self.value = 1.0
        self._sum, self._count = 0.0, 0
        self._before: float | None = None

    def add(self, norm: float) -> None:
        """Enter the gradient's norm in a step; one that is 0 or not finite says nothing."""
        if not 0 < norm < math.inf:
            return
        self._sum, self._count = self._sum + norm, self._count + 1
        if self._count == WINDOW:
            mean = self._sum / WINDOW
            if self._before is not None:
                self.value = min(1.0, abs(mean - self._before) / self._before / CRITICAL)
            self._before, self._sum, self._count = mean, 0.0, 0

    def state(self) -> dict[str, Any]:
        """Return what `load` takes."""
        return {"value": self.value, "sum": self._sum, "count": self._count, "before": self._before}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.value, self._before = state["value"], state["before"]
        self._sum, self._count = state["sum"], state["count"]


START = 0.01  # density of the first steps, unless the budget says what bytes they have
FIRST = 2  # steps before the first decision: they compile kernels and allocate memory
USUAL = 5  # steps of whose rest the median is usual: an evaluation or a checkpoint between two of them changes nothing
PAUSE = 2  # times that, the most of the rest of a step that earns bytes: training that pauses earns none
GAIN = 0.5  # share of a deviation of the step's time that one decision corrects
NEAR = 0.25  # relative deviation beyond which all of it is corrected
CHANGE = 2.0  # factor by which k changes in a decision at most, once it has been near what is wanted
COLLAPSE = 2.0  # times as long as wanted: the link is lost or much slower, and k falls as far as it takes
PATIENCE = 3  # decisions that want as much as dense costs before it is dense
STAY = 0.8  # of that, what must be wanted for it to stay dense
WAIT = 4.0  # times the rest of a step, the longest that a budget of bytes alone makes it wait for its exchange


class Observation(NamedTuple):
    """What the ranks agree a step took: integers, of the slowest rank."""

    rest: int  #: nanoseconds in which training did not wait for the exchange
    exposed: int  #: nanoseconds in which it did
    cost: int  #: nanoseconds that reducing took, exposed or not
    sent: int  #: bytes that a rank has sent since the beginning, control included
    norm: float = 0.0  #: of the gradient, in any unit; 0 if unknown


class Decision(NamedTuple):
    """What the steps from now on send, and why."""

    step: int  #: steps observed so far
    k: int  #: entries that a rank sends a step
    dense: bool  #: everything is reduced, because that costs no more
    why: str  #: what set k, one of "time", "bytes", "floor", "dense", or "start" before there was anything to go by
    seconds: float  #: of a usual step, with what it waits now
    exposed: float  #: seconds of these in which it waits
    sent: int  #: bytes of the last step
    credit: float  #: bytes earned and not sent; a debt is negative
    urgency: float  #: see `CriticalRegime`


class Controller:
    """Decides k, the same on all ranks that make the same observations.

    The time that a step waits for its exchange is taken to be proportional to k, and so are its bytes; what is wrong
    with that the next observation corrects. Latency that does not depend on k makes it slower, not unstable. So the
    first decisions go as far up as is wanted at once: entries that first arrive late spoil Adam's moments.

    Args:
        goal: what is wanted. A budget of bytes alone lets a step wait `WAIT` times as long as the rest of it.
        floor: the least k, one entry a segment.
        size: n, the most.
        dense_bytes: that a rank sends in a dense allreduce.
    """

    def __init__(self, goal: Goal, floor: int, size: int, dense_bytes: float) -> None:
        self.goal, self._floor, self._size, self._dense_bytes = goal, min(floor, size), size, dense_bytes
        self.account, self.critical_regime = Account(goal), CriticalRegime()
        self.dense = False
        first = START * size if goal.step_bytes == math.inf else min(goal.step_bytes, dense_bytes) / PAIR_BYTES
        self._amount = min(float(size), max(float(self._floor), round(first)))  # k before it is rounded
        self._climbing = True  # until k has been near what is wanted
        self._rests: deque[int] = deque(maxlen=USUAL)
        self._per_entry: deque[float] = deque(maxlen=3)  # bytes, of the last sparse steps
        self._patience = 0  # decisions in a row that wanted as much as dense costs

    @property
    def k(self) -> int:
        """Return k of the next step; n if it is dense."""
        return self._size if self.dense else int(self._amount)

    def observe(self, seen: Observation) -> Decision:
        """Return the decision after a step in which the ranks have ``seen`` this."""
        sent = max(0, seen.sent - self.account.sent)
        self._rests.append(seen.rest)
        rest = statistics.median_low(self._rests)
        self.account.add(sent, min(seen.rest, PAUSE * rest) + seen.exposed)
        self.critical_regime.add(seen.norm)
        if not self.dense:
            self._per_entry.append(sent / self.k)
        seconds, exposed = (rest + seen.exposed) / NANOSECONDS, seen.exposed / NANOSECONDS
        why = "start"
        if self.account.steps > FIRST:
            why = self._decide(seconds, rest / NANOSECONDS, max(1, seen.cost) / NANOSECONDS)
        urgency, credit = self.critical_regime.value, self.account.credit
        return Decision(self.account.steps, self.k, self.dense, why, seconds, exposed, sent, credit, urgency)

    def _decide(self, seconds: float, rest: float, cost: float) -> str:
        """Set k and whether it is dense; return why. Seconds are of the whole step, its rest, and its reduction."""
        per_entry = statistics.median_low(self._per_entry)
        ceiling = min(self._size, self._dense_bytes / per_entry) if per_entry > 0 else float(self._size)
        ceiling = max(float(self._floor), ceiling)
        now = ceiling if self.dense else self._amount
        # Time: what the step is off by is added to what the exchange takes.
        target = (1 + WAIT) * rest if self.goal.seconds is None else self.goal.seconds
        off = (target - seconds) / cost
        gain = GAIN if abs(target - seconds) < NEAR * target else 1.0
        least = 0.0 if seconds > COLLAPSE * target else 1 / CHANGE
        most = math.inf if self._climbing else CHANGE
        by_time = now * min(most, max(least, 1 + gain * off))
        # Bytes: what the account allows the next step.
        allowed = self.account.allowance(min(seconds, target), self.critical_regime.value)
        each = self._dense_bytes / ceiling if self.dense else per_entry
        by_bytes = allowed / each if each > 0 else math.inf
        by_bytes = now * min(most, max(1 / CHANGE, by_bytes / now))
        # The smaller of the two, between one entry a segment and what costs as much as dense.
        wanted = min(by_time, by_bytes)
        self._climbing = self._climbing and wanted > CHANGE * now
        self._patience = self._patience + 1 if wanted >= ceiling else 0
        self.dense = wanted >= STAY * ceiling if self.dense else self._patience >= PATIENCE
        self._amount = min(ceiling, max(float(self._floor), wanted))
        if self.dense:
            return "dense"
        if wanted <= self._floor:
            return "floor"
        return "time" if by_time <= by_bytes else "bytes"

    def state(self) -> dict[str, Any]:
        """Return numbers and lists of them, from which `load` goes on to the bit."""
        return {
            "account": self.account.state(),
            "urgency": self.critical_regime.state(),
            "dense": self.dense,
            "amount": self._amount,
            "rests": list(self._rests),
            "per_entry": list(self._per_entry),
            "patience": self._patience,
            "climbing": self._climbing,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` of a controller of the same size, which may have had another goal."""
        self.account.load(state["account"])
        self.critical_regime.load(state["urgency"])
        self.dense, self._patience = state["dense"], state["patience"]
        self._climbing = state.get("climbing", False)  # which older states do not say
        self._amount = min(float(self._size), max(float(self._floor), state["amount"]))
        self._rests.clear()
        self._rests.extend(state["rests"])
        self._per_entry.clear()
        self._per_entry.extend(state["per_entry"])
