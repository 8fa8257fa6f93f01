"""A budget for all buckets of a reduction together: `BucketBudget`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import Decision, agreed_on
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.comm.consistency import tell
from sparse_mpi.reduction.autotune import AutoTuner, candidates_of, fastest_now
from sparse_mpi.reduction.form import WHOLE, check_list, check_mapping
from sparse_mpi.reduction.policy import Budget, Plan
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.reduction.snapshot import BUDGET
from sparse_mpi.training.bucket import Bucket
from sparse_mpi.training.live_ranks import LiveRanks

FIRST = "elect"  # what reduces until "auto" has picked
PICKED = "picked"  # the key of the algorithms that "auto" has picked, in a state
Use = Callable[[Any], None]  # `GradientReduction.use`


class BucketBudget:
    """Keeps the steps of several buckets to a budget.

    What a step took is agreed on behind it, in the background, and decided on when the first gradient of the next step
    is there.

    Args:
        budget: of all buckets together.
        tuner: of ``algorithm="auto"``, or None.
    """

    def __init__(self, budget: Budget, tuner: AutoTuner | None) -> None:
        self.budget, self._tuner = budget, tuner
        self._agreement: Handle[np.ndarray] | None = None  # on the last step
        self._fresh = False  # a decision has not been carried out yet

    @property
    def decision(self) -> Decision | None:
        """Return how the budget has decided on the next step; None before the second step is over."""
        self._receive()
        return self.budget.decision

    @property
    def last_decision(self) -> Decision | None:
        """Return what was decided for the last step; None before the third."""
        return self.budget.decision

    def plan(self) -> Plan:
        """Return the plan of the step that begins."""
        return self.budget.plan

    def _receive(self) -> None:
        """Decide on the next step when all ranks have told what the last one took; a rank may ask alone."""
        if self._agreement is not None:
            agreement, self._agreement = self._agreement, None
            # The ranks decide by the same numbers, so alike, whenever each of them asks
            self.budget.tracker.decide(agreement.wait())
            self._fresh = True

    def decide(self, buckets: Sequence[Bucket], elements: int, comm: Comm, use: Use) -> None:
        """Decide on the step that begins, and pick algorithms anew where it is time. Collective."""
        self._receive()
        decision, fresh, self._fresh = self.budget.decision, self._fresh, False
        # A decision is fresh until a step begins with it: on all ranks alike, also on one that has asked before
        if fresh and decision is not None and self._tuner is not None and self._tuner.due(decision):
            share, before = self.plan().k / elements, comm.traffic.copy()
            layouts = [bucket.reducer.layout for bucket in buckets]
            # Each bucket has its share of k, as in a step
            ks = [max(1, round(share * layout.size)) for layout in layouts]
            # The communicator belongs to the progress thread: trials run there, with nothing else under way
            picked = progress_thread_of(comm).start(lambda: fastest_now(layouts, ks, comm)).wait()
            spent = comm.traffic - before
            self.budget.tracker.pause(spent.sent + spent.control)  # trials take their bytes from the budget
            use(picked)

    def spend(self, began: float, report: StepReport, ranks: LiveRanks) -> None:
        """Begin to agree on the step that is over, of which this rank has waited for the reduction since ``began``."""
        words = self.budget.measured(began, report)
        if words is not None:
            self._agreement = ranks.begin(lambda comm: agreed_on(words, comm))

    def state(self, algorithms: Sequence[Algorithm]) -> dict[str, Any]:
        """Return what `load` and `take_over` need in a state, with the ``algorithms`` that reduce."""
        if self._tuner is None:
            return {BUDGET: self.budget.tracker.state()}
        when = self._tuner.state()
        # Before the first tuning there is no choice to go back to
        what = [repr(algorithm) for algorithm in algorithms] if when[0] else []
        return {BUDGET: self.budget.tracker.state(), PICKED: {"when": when, "what": what}}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` has a budget's state that can be loaded, or none."""
        if BUDGET in state:
            self.budget.tracker.check_state(state[BUDGET], f"state[{BUDGET!r}]")
        if self._tuner is not None and state.get(PICKED) is not None:
            check_mapping(state[PICKED], f"state[{PICKED!r}]")
            when, what = state[PICKED].get("when"), state[PICKED].get("what")
            check_list(when, f"state[{PICKED!r}]['when']")
            check_list(what, f"state[{PICKED!r}]['what']")
            buckets = len(state["buckets"])
            if len(when) != len(AutoTuner().state()) or len(what) not in (0, buckets):
                raise ValueError(f"state[{PICKED!r}] must be of {buckets} buckets, got {state[PICKED]}; {WHOLE}")
            candidates_of(what)  # raises for what "auto" never picks

    def restore_choice(self, states: Sequence[dict[str, Any]], comm: Comm, use: Use) -> None:
        """Reduce by the algorithms that were picked when the first of rank 0's ``states`` was saved. Collective."""
        if self._tuner is None:
            return
        # Rank 0 tells, because on more ranks than before some have no state
        told = json.loads(tell(comm, json.dumps(states[0].get(PICKED)) if states and comm.rank == 0 else "null"))
        if told is not None:
            self._tuner.load(told["when"])
            use(candidates_of(told["what"]) if told["what"] else FIRST)

    def restore(self, states: Sequence[dict[str, Any]], ranks: int, comm: Comm) -> None:
        """Go on from the states of ``ranks`` ranks, as they were dealt out. Collective."""
        tracker = self.budget.tracker
        # On as many ranks each goes on with its own count of bytes, which takes no message
        if ranks == comm.size:
            if BUDGET in states[0]:
                tracker.load(states[0][BUDGET])
        else:
            tracker.take_over([state[BUDGET] for state in states if BUDGET in state], comm)
