"""What a run has earned and spent of its byte budget: `Account`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sparse_mpi.budget.goal import Goal

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
