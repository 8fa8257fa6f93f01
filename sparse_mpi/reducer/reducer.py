"""`SparseAllreduce`: the allreduce of one gradient, in every step of a training run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

from sparse_mpi import arrays, kernels
from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import Array, to_host
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, busy, progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.feedback import Memory
from sparse_mpi.feedback.clipping import clip
from sparse_mpi.reducer.arguments import check_together, make_memory, resolve_k
from sparse_mpi.reducer.auto import choose, make_candidate
from sparse_mpi.reducer.instrument import instrument, unselected
from sparse_mpi.reducer.laws import check_agreement, check_conservation, raise_nonfinite
from sparse_mpi.reducer.report import StepReport, summarise
from sparse_mpi.reducer.states import added, check_identity, on_host, restore, settle
from sparse_mpi.sparse import Layout, leave


class SparseAllreduce:
    """The allreduce of one gradient, step after step, with error feedback.

    Args:
        layout: the gradient's length, the shapes of the tensors it is made of, or a `Layout`.
        k, density, comm, algorithm, options: as for `sparse_allreduce`; a single step may have another k. What
            ``"auto"`` chose is in ``reducer.algorithm``: give that to resume.
        memory: what becomes of what is not sent: ``"residual"`` adds it to the next gradient, ``"dgc"`` corrects its
            momentum too, ``"none"`` forgets it; or an instance such as ``MomentumCorrection(0.9, nesterov=True)``.
        clip_norm: every rank scales its gradient to an L2 norm of at most ``clip_norm / sqrt(P)`` before it joins the
            residual (Lin et al., ICLR'18), so that the sum of P independent ones is about ``clip_norm`` long.
        in_place: the array given to the first step *is* the residual from then on. Every step must bring the same
            memory, with the gradient added to what the last step left there: autograd does that if nobody clears it,
            and no pass over residual and gradient is left to do. Only for ``memory="residual"`` without clip_norm.
        nonfinite: ``"keep"`` passes NaN and Inf on to ``total``, as MPI does; ``"raise"`` raises FloatingPointError on
            every rank when ``total`` has one.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; on every rank alike.
    """

    def __init__(
        self,
        layout: Any,
        k: int | None = None,
        density: float | None = None,
        comm: Any = None,
        algorithm: str | Algorithm = "oktopk",
        *,
        memory: str | Memory = "residual",
        clip_norm: float | None = None,
        in_place: bool = False,
        nonfinite: str = "keep",
        **options: Any,
    ) -> None:
        self.comm: Comm = as_comm(comm)
        with same_on_all_ranks(self.comm) as say:
            if nonfinite not in ("keep", "raise"):
                raise ValueError(f"nonfinite must be 'keep' or 'raise', got {nonfinite!r}")
            self.layout = Layout.of(layout)
            self._kind = make_memory(memory, clip_norm, in_place)
            chosen = make_candidate(algorithm, options)
            if chosen is not None:
                check_together(self._kind, chosen)
            self.k = resolve_k(self.layout.size, k, density)
            self.memory: Any = self._kind.start(self.layout.size, in_place)
            say(n=self.layout.size, layout=self.layout.digest, k=self.k, algorithm=chosen)
            say(memory=self._kind, clip_norm=clip_norm, in_place=in_place, nonfinite=nonfinite)
        try:
            self.algorithm: Algorithm = chosen or choose(self.layout, self.k, self.comm)
        except Exception as error:
            self.comm.abort(error)
        self.clip_norm, self.in_place = clip_norm, in_place
        self.report: StepReport | None = None
        self._most_norm = math.inf if clip_norm is None else clip_norm / math.sqrt(self.comm.size)
        self._nonfinite = nonfinite
        self._selectors, self._instrumented = instrument(self.algorithm)
        self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self._unselected = unselected(self.algorithm, self.layout)

    @property
    def residual(self) -> Array:
        """``(n,)`` what this rank has not sent yet: float32, or float64 for float64 gradients; NumPy or CuPy.

        On a device it is there once the stream on which the last step was made, or waited for, has come that far.
        """
        return self.memory.residual

    def step(self, gradient: Any, check: bool = False, *, k: int | None = None, density: float | None = None) -> Any:
        """Add ``gradient`` to the residual, reduce the k entries that matter, keep the rest.

        Args:
            gradient: ``(n,)`` or any shape of n elements; NumPy, CuPy or torch; left as it is. With ``in_place`` the
                buffer that holds residual + gradient, and afterwards the new residual.
            check: assert both laws on this step; costs two dense allreduces.
            k, density: for this step instead of the reducer's own, the same on all ranks.

        Returns:
            The sum over the ranks, the same bytes on every rank: a `SparseVector` of the gradient's library (dense
            ``(n,)`` where the algorithm's result is dense). Divide by the number of ranks for the mean.

        Raises:
            TypeError, ValueError: not an array of the layout's length, not the adopted buffer, or a bad k; on every
                rank, before any data moves.
            FloatingPointError: with ``nonfinite="raise"``, where total has NaN or Inf.
            LawError: with ``check``, if a law is broken.
        """
        if busy(self.comm):
            return self.start(gradient, check, k=k, density=density).wait()
        with arrays.on_stream_of(gradient):
            return self._step(gradient, check, k, density)

    def start(
        self, gradient: Any, check: bool = False, *, k: int | None = None, density: float | None = None
    ) -> Handle[Any]:
        """Begin a `step` in the background, and return at once; `Handle.wait` has its result, or raises what it would.

        Steps that several reducers of one ``comm`` start are done one after the other in the order of the starts,
        which must be the same on all ranks. Until `Handle.wait` returns, ``gradient`` must stay as it is, and nothing
        else may use ``comm``. Where that cannot be used from a second thread (``python -m sparse_mpi doctor`` tells)
        the step is done before this returns.
        """

        def work() -> Any:
            with arrays.on_stream_of(gradient):
                return self._step(gradient, check, k, density)

        return progress_thread_of(self.comm).start(work, gradient)

    def _step(self, gradient: Any, check: bool, k: int | None, density: float | None) -> Any:
        """Do what `step` says, on the device and stream that the caller has chosen."""
        start, before = perf_counter(), self.comm.traffic.copy()
        # Check the arguments before any data moves: all ranks raise, or none.
        with same_on_all_ranks(self.comm) as say:
            flat, most = self._enter(gradient), self._resolve(k, density)
            say(dtype=arrays.wide_type(flat), k=most, check=check)
        try:
            # Accumulate: the gradient joins the residual, here or in the pass in which the algorithm selects.
            clipped = flat if self._most_norm == math.inf else clip(arrays.widened(flat), self._most_norm)
            acc, add = self.memory.accumulate(clipped)
            if add is not None and (check or not self.algorithm.accumulates):
                kernels.accumulate(acc, add)
                add = None
            kept = acc.copy() if check else None
            # Reduce: the only communication of the step.
            reduction, self._state = self._instrumented.reduce(acc, most, self.comm, self._state, self.layout, add)
            self._check_added(add)
            # Consume: what was sent leaves the residual.
            self.memory.consume(reduction.sent)
        except Exception as error:
            self.comm.abort(error)
        # Report, and check the laws if asked to.
        spent, traffic = perf_counter() - start, self.comm.traffic - before
        self.report = summarise(reduction, self._selectors, self._unselected, spent, traffic)
        if kept is not None:
            check_agreement(reduction.total, self.comm)
            if self.algorithm.conserves:
                products_of = kept if self.algorithm.normwise else None
                check_conservation(reduction.total, self.memory.given(kept, reduction.sent), self.comm, products_of)
        if self._nonfinite == "raise":
            raise_nonfinite(reduction.total)
        return leave(reduction.total, gradient)

    def _check_added(self, add: Array | None) -> None:
        """Raise RuntimeError unless the selectors added ``add`` to acc exactly once."""
        times = sum(selector.added for selector in self._selectors)
        if times != (add is not None):
            raise RuntimeError(
                f"{self.algorithm} must select once from acc in every step and hand `add` on, it did so {times} times"
            )

    @property
    def selections(self) -> list[tuple[float, float]]:
        """When the selections of the last step began and ended, in `time.perf_counter` seconds."""
        return [selector.span for selector in self._selectors]

    def adopt(self, buffer: Any) -> None:
        """With ``in_place``, have ``buffer`` hold the residual from here on, as the first step's gradient would."""
        with arrays.on_stream_of(buffer):
            self.memory.adopt(self._enter(buffer))

    def sibling(self, algorithm: str | Algorithm) -> SparseAllreduce:
        """A reducer like this by another algorithm, to take turns with it: they share one memory. Collective."""
        options: dict[str, Any] = {"clip_norm": self.clip_norm, "in_place": self.in_place, "nonfinite": self._nonfinite}
        made = SparseAllreduce(self.layout, self.k, None, self.comm, algorithm, memory=self._kind, **options)
        made.memory = self.memory
        return made

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on to the same bits: numbers, strings and NumPy arrays."""
        settle((self.residual, self._state))
        remembered = {name: to_host(array).copy() for name, array in self.memory.state().items()}
        return self._identity() | {"state": asdict(self._state, dict_factory=on_host)} | remembered

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned, on the same rank of as many ranks; `take_over` is for other numbers.

        Raises:
            ValueError: it is of another algorithm, memory, gradient, k or rank; on every rank alike.
        """
        with same_on_all_ranks(self.comm) as say:
            check_identity(state, self._identity())
            if "state" not in state:
                raise ValueError(
                    f"state must have a 'state', got {sorted(state)}; load what state_dict() returned, whole"
                )
            self.memory.check_state(state)
            say(call="load_state_dict")
        self._state = restore(self._state, state["state"])
        self._load(state)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Take up what ``ranks`` ranks saved, on any number P of ranks, as `checkpoint.load` deals it out.

        On as many ranks as before this is `load_state_dict`. On others memories are added up, so that what the old
        ranks owed together is owed by the new ones, to rounding; algorithm and selector start anew.

        Args:
            states: of the old ranks r, r + P, r + 2 P, ... on rank r; none where there is no such rank.
            ranks: how many there were.

        Raises:
            ValueError: a state is missing, or of another algorithm, memory, gradient or k; on every rank alike.
        """
        with same_on_all_ranks(self.comm) as say:
            expected = list(range(self.comm.rank, ranks, self.comm.size))
            if [state.get("rank") for state in states] != expected:
                raise ValueError(
                    f"states must be those of ranks {expected} of {ranks}, got those of "
                    f"{[state.get('rank') for state in states]}; deal them out as sparse_mpi.checkpoint.load does"
                )
            for state in states:
                check_identity(state, self._identity() | {"rank": state["rank"], "ranks": ranks})
                self.memory.check_state(state)
            memories = {name: added(states, name, self.layout.size) for name in self.memory.state()}
            say(call="take_over", ranks=ranks)
        if ranks == self.comm.size:
            return self.load_state_dict(states[0])
        self._state = self._instrumented.init(self.layout, self.k, self.comm.size)
        self._load(memories)

    def _load(self, memories: dict[str, Any]) -> None:
        """Have ``memory`` take them up, after all work on it and before all that follows, on whichever stream."""
        settle(self.residual)
        self.memory.load(memories)
        settle(self.residual)

    def _identity(self) -> dict[str, Any]:
        """What a state must share with this reducer to be loaded into it."""
        return {
            "algorithm": repr(self.algorithm),
            "memory": repr(self._kind),
            "shapes": self.layout.shapes,
            "k": self.k,
            "rank": self.comm.rank,
            "ranks": self.comm.size,
        }

    def _enter(self, gradient: Any) -> Array:
        arrays.check(gradient, "gradient")
        if self.in_place:
            arrays.check_in_place(gradient, "gradient")
        flat = arrays.enter(gradient)
        if len(flat) != self.layout.size:
            raise ValueError(
                f"gradient must have {self.layout.size} elements as layout says, got {len(flat)}; "
                "pass all tensors of the layout, flattened into one"
            )
        self.memory.check_gradient(flat)
        return flat

    def _resolve(self, k: int | None, density: float | None) -> int:
        return self.k if k is None and density is None else resolve_k(self.layout.size, k, density)
