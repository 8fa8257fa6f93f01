"""Reduce one gradient in every step, and leave each part of the sum with its owner: `SparseReduceScatter`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, overload

import numpy as np

from sparse_mpi.algorithms import Algorithm
from sparse_mpi.arrays import A, Array, Flattens
from sparse_mpi.comm import Comm, as_comm
from sparse_mpi.comm.background import Handle, settle
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.contrib.scatter_algorithms import REDUCE_SCATTERS, DenseScatter
from sparse_mpi.feedback import Feedback
from sparse_mpi.monitor.step_report import StepReport
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi.reduction.reducer import SparseAllreduce
from sparse_mpi.reduction.settings import make_settings
from sparse_mpi.sparse import Layout, SparseVector


class SparseReduceScatter:
    """The reduce-scatter of one gradient, step after step, with error feedback. Making one is collective.

    Each rank gets the sum of its own part of the gradient, for optimizers with sharded state, as ZeRO's. It sends at
    most half of the bytes of `SparseAllreduce`, and all selected entries arrive. Two laws hold:

    1. The parts of all ranks, put together, are the sum over the ranks of their sent entries.
    2. A rank's acc is its sent entries and its new residual.

    Args:
        layout: as for `SparseAllreduce`: the gradient is as long on every rank as the whole vector, n.
        counts: ``(P,)`` the number of consecutive entries of the flat vector that each rank owns, as MPI_Reduce_scatter
            has them, the same on all ranks; 0 is allowed. None: numbers that differ by one at most.
        k: entries that each rank selects, at least 1; more than n means n. A part has up to P times the number of
            entries that one rank selects there; with elect all parts together have k.
        density: k as a fraction of n; by default 0.01, or 0.0275 with elect.
        comm: as for `sparse_allreduce`.
        algorithm: a name in `REDUCE_SCATTERS`, or an instance, for example ``OkTopkScatter(radix=4)``: ``"oktopk"``
            sends each selected entry to its owner; ``"elect"`` has all ranks elect common entries, of which owners get
            values without indices; ``"dense"`` sums all. Other algorithms have no half after which owners have exact
            sums.
        feedback: as for `SparseAllreduce`, except rules that use the whole sum on every rank, as ``"gmc"`` does.
        clip_norm: as for `SparseAllreduce`.
        nonfinite: ``"keep"`` passes NaN and Inf on to the owner of their entries, who alone sees them; ``"raise"``
            raises FloatingPointError on every rank when any part has one, for 8 bytes of control.
        options: hyperparameters of a named algorithm.

    Attributes:
        counts: ``(P,)`` int64, the number of entries that each rank owns.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; raised on every rank, before any
            data moves.
    """

    def __init__(
        self,
        layout: object,
        *,
        counts: Sequence[int] | None = None,
        k: int | None = None,
        density: float | None = None,
        comm: object = None,
        algorithm: str | Algorithm = "oktopk",
        feedback: str | Feedback = "residual",
        clip_norm: float | None = None,
        nonfinite: str = "keep",
        **options: object,
    ) -> None:
        transport: Comm = as_comm(comm)
        settle(transport)  # another reducer may have begun a step there
        # Agree on the owners; the reducer then compares all other arguments between ranks
        with same_on_all_ranks(transport) as say:
            shapes, chosen = Layout.of(layout), make_algorithm(algorithm, options, REDUCE_SCATTERS)
            if counts is not None:
                chosen = replace(cast(Any, chosen), counts=counts)
            boundaries = cast(Any, chosen).boundaries(shapes.size, transport.size)
            self.counts: np.ndarray = np.diff(boundaries)
            say(counts=self.counts.tolist())
            if k is None and density is None:
                density = chosen.traits.usual_density
            # All arguments but the algorithm are those of an allreduce, and an allreduce would refuse this one
            settings = make_settings(
                shapes,
                k=k,
                density=density,
                algorithm="dense",
                feedback=feedback,
                clip_norm=clip_norm,
                nonfinite=nonfinite,
            )
            if shared := settings.feedback.start(shapes, 1).state(replicated=True):
                raise ValueError(
                    f"feedback must do without the whole sum, of which a rank has its own part only, got {feedback!r}, "
                    f"which keeps {', '.join(shared)} of it; use feedback='residual'"
                )
        # A reducer whose totals are parts: a step is the engine's, as that of every algorithm
        settings = replace(settings, algorithm=chosen, dense=DenseScatter(counts=self.counts.tolist()))
        self._reducer = SparseAllreduce(settings=settings, comm=transport)

    @property
    def comm(self) -> Comm:
        """Return the ranks that reduce."""
        return self._reducer.comm

    @property
    def layout(self) -> Layout:
        """Return the layout of the gradient."""
        return self._reducer.layout

    @property
    def part(self) -> slice:
        """Return where this rank's part is in the flat vector."""
        stop = int(self.counts[: self.comm.rank + 1].sum())
        return slice(stop - int(self.counts[self.comm.rank]), stop)

    @property
    def k(self) -> int:
        """Return the number of entries of a step that is given no other."""
        return self._reducer.k

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm that reduces."""
        return self._reducer.algorithm

    @property
    def feedback(self) -> Feedback:
        """Return the feedback rule, with its arrays."""
        return self._reducer.feedback

    @property
    def residual(self) -> Array:
        """Return the residual ``(n,)`` of the whole vector; see `SparseAllreduce.residual`."""
        return self._reducer.residual

    @property
    def report(self) -> StepReport | None:
        """Return the report of this rank's last step, whose ``total`` counts its part's; None before the first."""
        return self._reducer.report

    def step(
        self,
        gradient: Flattens[A],
        *,
        k: int | None = None,
        density: float | None = None,
        check: bool = False,
        dense: bool = False,
    ) -> SparseVector[A]:
        """Add ``gradient`` to the residual, send the selected entries to their owners, and store the rest. Collective.

        Args:
            gradient: ``(n,)`` or any shape of n elements, see `SparseAllreduce.step`.
            k: number of entries in this step instead of the reducer's own, the same on all ranks.
            density: k as a fraction of n, likewise.
            check: assert both laws on this step together; costs three dense allreduces.
            dense: sum every entry, by a dense reduce-scatter.

        Returns:
            The sum over the ranks of this rank's part: a `SparseVector` of the gradient's library, of size
            ``counts[rank]``, whose indices count from the start of the part. Divide by the number of ranks for the
            mean.

        Raises:
            TypeError, ValueError, FloatingPointError, LawError: as for `SparseAllreduce.step`, on every rank.
        """
        return cast(Any, self._reducer.step(gradient, k=k, density=density, check=check, dense=dense))

    def start(
        self,
        gradient: Flattens[A],
        *,
        k: int | None = None,
        density: float | None = None,
        check: bool = False,
        dense: bool = False,
    ) -> Handle[SparseVector[A]]:
        """Begin a `step` in the background and return at once; see `SparseAllreduce.start`."""
        return cast(Any, self._reducer.start(gradient, k=k, density=density, check=check, dense=dense))

    @overload
    def flush(self, *, check: bool = False, like: None = None) -> Array: ...
    @overload
    def flush(self, *, check: bool = False, like: Flattens[A]) -> A: ...
    def flush(self, *, check: bool = False, like: Any = None) -> Any:
        """Send all residuals, in one dense reduce-scatter, and leave a residual of 0. Collective.

        Returns:
            The sum over the ranks of this rank's part, dense ``(counts[rank],)``; arguments and errors are as for
            `SparseAllreduce.flush`.
        """
        return cast(Any, self._reducer.flush(check=check, like=like)).values

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs to continue bit for bit; see `SparseAllreduce.state_dict`.

        Residuals are of the whole vector, and do not depend on ``counts``.
        """
        return self._reducer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this rank's `state_dict`, on the same number of ranks, with any ``counts``. Collective.

        Raises:
            TypeError, ValueError: as for `SparseAllreduce.load_state_dict`.
        """
        self._reducer.load_state_dict(state)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Restore the states of ``ranks`` ranks, on any number of them; see `SparseAllreduce.take_over`. Collective."""
        self._reducer.take_over(states, ranks)
