"""Choose each step's density by a budget of bytes: `ByteBudget`.

The controller stands outside reducers: it reads reports, and returns a density. All ranks decide alike, because they
agree on integers and compute by operations that IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import re
import statistics
from collections import deque
from fractions import Fraction
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.checks import check_range
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import settle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.monitor.step_report import StepReport

PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
PREFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGT", 1)}
GRAMMAR = re.compile(
    r"(?P<number>\d+(\.\d+)?|\.\d+)\s*(?P<prefix>([kMGT]|[KMGT]i)?)(?P<unit>bit|B)"
    r"\s*/\s*((?P<second>s)|(?P<steps>\d*)\s*steps?)"
)
EXAMPLES = "'5MB/s', '800kbit/s', '200kB/step' or '40GB/10000steps'"
RECENT = 5  # steps of the usual medians
PAUSE = 2  # times the usual seconds: a longer step, for example with an evaluation, earns no more
REPAID = 20  # steps in which a debt shrinks to 1/e; a credit is spent as slowly
CHANGE = 2.0  # factor by which the density changes from step to step at most
LEAST = 1e-6  # density
NANOSECONDS = 10**9


class _ByteGoal(NamedTuple):
    """The bytes that a rank may send in a second, or in a number of steps."""

    bytes: float
    steps: int | None = None  #: None: in a second
    once: bool = False  #: True: the budget is of the next ``steps`` steps, and no more after them


class ByteBudget:
    """The density of the next step, from the bytes of the steps before.

    A step may send its share of the budget, and a part of the unspent rest; a debt is repaid by later steps. The
    density at most doubles or halves from step to step::

        budget = ByteBudget("5MB/s", comm)
        total = reducer.step(gradient, density=budget.density)
        budget(reducer.report)

        optimizer.step()  # of a DistributedOptimizer
        optimizer.reduction.density = budget(optimizer.reduction.report)

    Args:
        budget: the bytes that a rank may send, control included: ``"5MB/s"`` or ``"200kB/step"`` on average, or
            ``"40GB/10000steps"`` in the next 10,000 steps together.
        comm: the ranks that reduce, see `as_comm`.
        density: density of the first steps, in (0, 1].
        largest: the largest density, in (0, 1]. Above some share of the entries a dense sum costs less.

    Attributes:
        density: density of the next step.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank.
    """

    def __init__(self, budget: str, comm: object = None, *, density: float = 0.01, largest: float = 1.0) -> None:
        self._comm: Comm = as_comm(comm)
        settle(self._comm)
        with same_on_all_ranks(self._comm) as say:
            self._goal = byte_goal(budget)
            check_range("density", density, "(0, 1]")
            check_range("largest", largest, "(0, 1]")
            say(call="ByteBudget", budget=self._goal, density=density, largest=largest)
        self.density: float = min(density, largest)
        self._largest = largest
        self._steps, self._sent, self._elapsed = 0, 0, 0  # totals since the beginning; time in nanoseconds
        self._last: float | None = None  # end of the last step
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._per_density: deque[float] = deque(maxlen=RECENT)  # bytes of a step over its density

    def __call__(self, report: StepReport) -> float:
        """Return the density of the step after ``report``'s. Collective; 16 bytes of control.

        To be called after every step. All ranks' largest bytes and seconds since the last call count. The first call of
        a budget in seconds only starts the clock.
        """
        now, spent = perf_counter(), report.traffic.sent + report.traffic.control
        elapsed = 0 if self._last is None else round((now - self._last) * NANOSECONDS)
        settle(self._comm)
        agreed = np.asarray(self._comm.allreduce(np.array([spent, elapsed], np.int64), "max", control=True))
        first, self._last = self._last is None, now
        sent, nanoseconds = int(agreed[0]), int(agreed[1])
        self._per_density.append(sent / self.density)
        if first and self._goal.steps is None:
            return self.density
        self._seconds.append(nanoseconds / NANOSECONDS)
        self._steps, self._sent = self._steps + 1, self._sent + sent
        self._elapsed += min(nanoseconds, round(PAUSE * self._usual_seconds * NANOSECONDS))
        each = statistics.median_low(self._per_density)
        wanted = self._allowance / each if each > 0 else self._largest
        wanted = min(CHANGE * self.density, max(self.density / CHANGE, wanted))
        self.density = min(self._largest, max(LEAST, wanted))
        return self.density

    @property
    def credit(self) -> float:
        """Return the bytes earned and not sent; a debt is negative."""
        goal = self._goal
        if goal.steps is None:
            return goal.bytes * self._elapsed / NANOSECONDS - self._sent
        return goal.bytes * (min(self._steps, goal.steps) if goal.once else self._steps) / goal.steps - self._sent

    @property
    def _usual_seconds(self) -> float:
        return statistics.median_low(self._seconds)

    @property
    def _allowance(self) -> float:
        """Return the bytes that the next step should send, 0 or more."""
        goal = self._goal
        if goal.once and goal.steps is not None:
            return max(0.0, (goal.bytes - self._sent) / max(1, goal.steps - self._steps))
        earned = goal.bytes * self._usual_seconds if goal.steps is None else goal.bytes / goal.steps
        # After an outage there is much credit, of which a step at most doubles its bytes
        return max(0.0, earned + min(self.credit / REPAID, earned))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a resumable run: numbers."""
        return {"steps": self._steps, "sent": self._sent, "elapsed": self._elapsed, "density": self.density}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`, the same on all ranks."""
        self._steps, self._sent, self._elapsed = int(state["steps"]), int(state["sent"]), int(state["elapsed"])
        self.density, self._last = min(self._largest, float(state["density"])), None


def byte_goal(text: object) -> _ByteGoal:
    """Return the goal of a budget's text.

    Raises:
        TypeError: it is no text.
        ValueError: it cannot be read, or is not above 0.
    """
    if not isinstance(text, str):
        raise TypeError(f"budget must be a text with a unit such as {EXAMPLES}, got {text!r}")
    found = GRAMMAR.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"budget must be a number above 0 with a unit such as {EXAMPLES}, got {text!r}")
    amount = Fraction(found["number"]) * Fraction(PREFIXES[found["prefix"]], 8 if found["unit"] == "bit" else 1)
    steps = int(found["steps"]) if found["steps"] else 1
    if amount <= 0 or steps == 0:
        raise ValueError(f"budget must be above 0, for at least one step, got {text!r}")
    return _ByteGoal(float(amount)) if found["second"] else _ByteGoal(float(amount), steps, bool(found["steps"]))
