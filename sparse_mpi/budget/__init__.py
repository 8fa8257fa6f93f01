"""Say what the link may carry, or how long a step may take, in place of k: a controller sets k while training runs.

`goal` is what was asked for, `controller` the decisions, `account` what is left to spend, `urgency` when gradients
change fast. These are pure: they compute from numbers alone. `keeper` measures, and has the ranks agree on the numbers.
"""

from sparse_mpi.budget.account import Account
from sparse_mpi.budget.controller import Controller, Decision, Observation
from sparse_mpi.budget.goal import Goal, make_goal
from sparse_mpi.budget.keeper import Keeper, agreed_on

__all__ = ["Account", "Controller", "Decision", "Goal", "Keeper", "Observation", "agreed_on", "make_goal"]
