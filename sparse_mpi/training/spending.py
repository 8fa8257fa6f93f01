"""Let a budget set how much the steps of a `GradientReduction` send, all buckets together: `SpendingReduction`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from time import perf_counter
from typing import Any

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.budget import Decision, Goal, Keeper, agreed_on
from sparse_mpi.budget.keeper import NormSample
from sparse_mpi.comm import Comm
from sparse_mpi.comm.background import Handle, progress_thread_of
from sparse_mpi.comm.consistency import tell
from sparse_mpi.fault_tolerance import Team
from sparse_mpi.reduction.autotune import AutoTuner as Picker
from sparse_mpi.reduction.autotune import candidates_of as named
from sparse_mpi.reduction.autotune import fastest_now as pick
from sparse_mpi.reduction.autotune import make_candidate
from sparse_mpi.reduction.forms import WHOLE, check_list, check_mapping
from sparse_mpi.reduction.report import StepReport
from sparse_mpi.reduction.spending import make_keeper
from sparse_mpi.reduction.states import BUDGET
from sparse_mpi.training.bucket import Bucket

FIRST = "elect"  # what reduces until "auto" has picked
PICKED = "picked"  # the key of the algorithms that "auto" has picked, in a state


class SpendingReduction(ABC):
    """The part of `GradientReduction` that keeps to a budget, if there is one.

    What a step took is agreed on behind it, in the background, and decided on when the first gradient of the next step
    is there.
    """

    comm: Comm
    buckets: list[Bucket]
    density: float | None  # of the next steps, if somebody has set it
    team: Team | None
    _in_place: bool
    _elements: int
    _share_left: float | None
    _keeper: Keeper | None
    _agreement: Handle[np.ndarray] | None = None  # on the last step
    _picker: Picker | None = None  # of algorithm="auto"
    _was_dense: bool | None = None  # before a decision that is not carried out yet
    _square = 0.0  # of the sampled entries of the gradient under way

    @property
    def decision(self) -> Decision | None:
        """Return how the budget has decided on the next step; None without one, or before the second step is over."""
        self._hear()
        return None if self._keeper is None else self._keeper.decision

    @property
    def decided(self) -> Decision | None:
        """Return what was decided for the last step; None without a budget, or before the third step."""
        return None if self._keeper is None else self._keeper.decision

    @property
    def _density_now(self) -> float | None:
        """Return the density of the step that begins; None where that of the reducers holds."""
        if self._keeper is not None:
            return min(1.0, self._keeper.controller.k / self._elements)
        return self._share_left if self.density is None else self.density

    def _hear(self) -> None:
        """Decide on the next step when all ranks have told what the last one took; a rank may ask alone."""
        if self._keeper is None or self._agreement is None:
            return
        agreement, self._agreement = self._agreement, None
        self._was_dense = self._keeper.controller.dense
        self._keeper.decide(agreement.wait())

    def _decide(self) -> None:
        """Carry out what was decided on the next step, which other algorithms may reduce. Collective."""
        self._hear()
        keeper, dense, self._was_dense = self._keeper, self._was_dense, None
        if keeper is None or keeper.decision is None or dense is None:
            return
        if keeper.decision.dense != dense:
            self._change_over()
        if self._picker is not None and self._picker.due(keeper.decision):
            self._pick(keeper)

    def _pick(self, keeper: Keeper) -> None:
        """Let the fastest algorithms for today's k and network reduce the next steps. Collective."""
        share, before = keeper.controller.k / self._elements, self.comm.traffic.copy()
        layouts = [bucket.reducer.layout for bucket in self.buckets]
        ks = [max(1, round(share * layout.size)) for layout in layouts]
        picked = progress_thread_of(self.comm).start(lambda: pick(layouts, ks, self.comm)).wait()
        spent = self.comm.traffic - before
        keeper.pause(spent.sent + spent.control)  # trials take their bytes from the budget
        self.use(picked)

    def _follow(self, states: Sequence[dict[str, Any]], comm: Comm) -> None:
        """Reduce by the algorithms that were picked when the first of rank 0's ``states`` was saved. Collective."""
        if self._picker is None:
            return
        told = json.loads(tell(comm, json.dumps(states[0].get(PICKED)) if states and comm.rank == 0 else "null"))
        if told is not None:
            self._picker.load(told["when"])
            self.use(named(told["what"]) if told["what"] else FIRST)

    def _check_spending(self, state: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless ``state`` has a budget's state that can be loaded, or none."""
        if self._keeper is not None and BUDGET in state:
            self._keeper.check_state(state[BUDGET], f"state[{BUDGET!r}]")
        if self._picker is not None and state.get(PICKED) is not None:
            check_mapping(state[PICKED], f"state[{PICKED!r}]")
            when, what = state[PICKED].get("when"), state[PICKED].get("what")
            check_list(when, f"state[{PICKED!r}]['when']")
            check_list(what, f"state[{PICKED!r}]['what']")
            buckets = len(state["buckets"])
            if len(when) != len(Picker().state()) or len(what) not in (0, buckets):
                raise ValueError(f"state[{PICKED!r}] must be of {buckets} buckets, got {state[PICKED]}; {WHOLE}")
            named(what)

    def _picked(self) -> dict[str, Any]:
        """Return what `_follow` needs in a state."""
        if self._picker is None:
            return {}
        when = self._picker.state()
        return {PICKED: {"when": when, "what": [repr(algorithm) for algorithm in self.algorithms] if when[0] else []}}

    def _change_over(self) -> None:
        """Make steps dense, or sparse again by the algorithms of before. Collective."""
        if self._keeper is not None and self._keeper.controller.dense:
            for bucket in self.buckets:
                bucket.sparse = bucket.reducer.algorithm
                bucket.reducer.forget()
            self.use("dense")
        else:
            self.use(self._sparse_algorithms)

    @property
    def _sparse_algorithms(self) -> list[Algorithm]:
        """Return what reduces the buckets while steps are not dense; one that is new since then has none of its own."""
        return [bucket.sparse or bucket.reducer.algorithm for bucket in self.buckets]

    def _keep(self, goal: Goal | None, segments: int, ranks: int, algorithm: Any, options: dict[str, Any]) -> None:
        """Begin to keep to ``goal``, if there is one, in buckets of that number, with an algorithm to be made.

        Raises:
            ValueError: that is not possible.
        """
        self._keeper = None
        if goal is not None:
            if self.team is not None:
                raise ValueError("budget and step_seconds must be None with a team; give k or density")
            made = make_candidate(algorithm, dict(options))
            self._picker = Picker() if made is None else None
            self._keeper = make_keeper(goal, segments, self._elements, ranks, made)

    def _sample(self, bucket: Bucket) -> None:
        """Add the gradient of a bucket that is about to be reduced to what is known of this step's norm."""
        if self._keeper is not None and self._keeper.samples:
            if bucket.sample is None:
                bucket.sample = NormSample(self._in_place)
            self._square += bucket.sample.square(bucket.flat)

    def _spend(self, began: float) -> None:
        """Begin to agree on the step that is over, of which this rank has waited for the reduction since ``began``."""
        keeper = self._keeper
        if keeper is None:
            return
        report, square, self._square = self.report, self._square, 0.0
        sent = report.traffic.sent + report.traffic.control
        words = keeper.measured(perf_counter() - began, report.exchange_seconds, sent, sqrt(square))
        for bucket in self.buckets:
            if bucket.sample is not None:
                bucket.sample.stepped(bucket.flat)
        if words is not None:
            self._agreement = self._begin(lambda comm: agreed_on(words, comm))

    def _pause(self) -> None:
        """Take no account of a step that was not reduced."""
        self._square = 0.0
        if self._keeper is not None:
            self._keeper.pause()

    @contextmanager
    def _while_sparse(self) -> Iterator[Keeper | None]:
        """Reduce sparsely within this context, to save or load states, which dense steps have none of. Collective.

        Gives what keeps to the budget, if there is one. Afterwards steps are dense again if that has decided so.
        """
        self._decide()
        keeper = self._keeper
        if keeper is not None and keeper.controller.dense:
            self.use(self._sparse_algorithms)
        try:
            yield keeper
        finally:
            if keeper is not None and keeper.controller.dense:
                self._change_over()

    @property
    @abstractmethod
    def algorithms(self) -> list[Algorithm]:
        """Return the algorithm of each bucket."""

    @property
    @abstractmethod
    def report(self) -> StepReport:
        """Return what the last step did on this rank."""

    @abstractmethod
    def use(self, algorithm: str | Algorithm | Sequence[Algorithm]) -> None:
        """Reduce the next steps by ``algorithm``."""

    @abstractmethod
    def _begin(self, question: Any) -> Handle[Any]:
        """Begin with ``question(comm)`` of the ranks that are there, behind what is under way."""
