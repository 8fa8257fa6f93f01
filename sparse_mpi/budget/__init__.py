"""Say what the link may carry, or how long a step may take, in place of k: a controller sets k while training runs.

`goal` is what was asked for, `controller` the byte ledger, the regime in which gradients change fast, and decisions.
These are pure: they compute from numbers alone. `budget_tracker` measures, and has the ranks agree on the numbers.
"""

from sparse_mpi.budget.budget_tracker import BudgetTracker, agreed_on, sampled_square
from sparse_mpi.budget.controller import Account, Controller, Decision, Observation
from sparse_mpi.budget.goal import Goal, make_goal

__all__ = [
    "Account",
    "BudgetTracker",
    "Controller",
    "Decision",
    "Goal",
    "Observation",
    "agreed_on",
    "make_goal",
    "sampled_square",
]
