"""The reduction of a torch model's gradients, bucket by bucket, begun while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sparse_mpi.agreement import prepare_alike
from sparse_mpi.arguments import resolve_k
from sparse_mpi.buckets import Bucket, cut
from sparse_mpi.comm import as_comm
from sparse_mpi.overlap import Span, lane_of
from sparse_mpi.reducer import SparseAllreduce, StepReport
from sparse_mpi.sparse import SparseVector

Interval = tuple[float, float]  # in `time.perf_counter` seconds


class BucketTrace(NamedTuple):
    """When what happened to a bucket in one step."""

    span: Span  # all its gradients there, its reduction begun and ended
    selections: list[Interval]
    calls: list[Interval]  # of the communicator


class GradientReduction:
    """Reduces the gradients of parameters, from hooks that autograd calls as gradients become final.

    A bucket is started when all its gradients, and all buckets before it, are there: in the same order on all ranks.
    What is still missing when `synchronize` is called counts as zero.

    Args:
        parameters: in the order in which the model uses them; those that need no gradient are left out.
        density, k, comm, algorithm, memory, clip_norm, nonfinite, options: as for `SparseAllreduce`; ``k`` is for all
            parameters together, clip_norm for each bucket. The communicator is duplicated.
        bucket_cap_mb: 10^6 bytes of gradients in a bucket at most; None puts all of one dtype and device into one.
        overlap: whether reductions start before `synchronize`.
        passes: backward passes whose gradients are added up before a reduction.
        average: whether ``.grad`` becomes the mean over the ranks, or their sum.
        in_place: see `Bucket`.
        scaler: the loss scaler of the training. What is reduced, and what is kept for later, is without its scale.

    Raises:
        TypeError, ValueError: bad arguments, or arguments that differ between ranks; on every rank alike.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        density: float | None = None,
        k: int | None = None,
        comm: Any = None,
        algorithm: Any = "oktopk",
        *,
        bucket_cap_mb: float | None = 25.0,
        overlap: bool = True,
        passes: int = 1,
        average: bool = True,
        in_place: bool = False,
        scaler: Any = None,
        **options: Any,
    ) -> None:
        self.comm = as_comm(comm).duplicate(patient=overlap)
        self.buckets: list[Bucket] = []
        self.density: float | None = None  # of the next steps, instead of the reducers' own
        self.check = False  # whether the next steps assert both laws
        self.trace: list[BucketTrace] | None = None  # of the last step, see `record`
        first = [p for p in parameters if p.requires_grad]
        elements = sum(p.numel() for p in first)

        def prepare() -> int:
            _check(first, bucket_cap_mb, passes, in_place, scaler)
            return resolve_k(elements, k, density)

        self._k = prepare_alike(
            self.comm,
            prepare,
            lambda k: (
                f"n={elements} k={k} bucket_cap_mb={bucket_cap_mb} passes={passes} average={average} "
                f"scaler={scaler is not None}"
            ),
        )
        self._share = self._k / elements if k is not None else density
        self._elements = elements
        self._most_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
        self._overlap, self._passes, self._in_place, self._scaler = overlap, passes, in_place, scaler
        self._divisor = float(self.comm.size) if average else 1.0
        self._options: dict[str, Any] = {"algorithm": algorithm, "in_place": in_place, **options}
        self._known: set[Tensor] = set()
        self._hooks: dict[Tensor, RemovableHandle] = {}
        self._left: list[list[int]] = []  # backward passes that each parameter of each bucket has yet to see
        self._next = 0  # the bucket to be started next
        self._scale: float | None = None  # of the gradients under way
        self._agreed = 0  # buckets of which all ranks know whose gradients are sparse tensors
        self.add(first)

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Reduce the gradients of those ``parameters`` too that need one and are new; collective if there are any."""
        new = [p for p in parameters if p.requires_grad and p not in self._known]
        self._known.update(new)
        for held in cut(new, self._most_bytes):
            self.buckets.append(Bucket(held, self._reducer, self._in_place, self._divisor))
            self._left.append([self._passes] * len(held))
        if new:
            self.open()

    def open(self) -> None:
        """Take part in the backward passes that follow, from the first on; until `close`."""
        for number, bucket in enumerate(self.buckets):
            for i, parameter in enumerate(bucket.parameters):
                if parameter.requires_grad and parameter not in self._hooks:
                    hook = partial(self._arrived, number, i)
                    self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(hook)

    def close(self) -> None:
        """Leave backward passes alone: gradients stay on their rank."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    @property
    def under_way(self) -> bool:
        """Whether gradients have begun to be reduced, and `synchronize` has yet to be called."""
        return self._next > 0

    @property
    def report(self) -> StepReport:
        """What the last step did on this rank, all buckets together."""
        reports = [bucket.reducer.report for bucket in self.buckets if bucket.reducer.report is not None]
        return reduce(lambda a, b: StepReport(*map(add, a, b)), reports)

    @property
    def waited(self) -> float:
        """Seconds that the last `synchronize` waited for reductions: communication that nothing hid."""
        return sum(bucket.waited for bucket in self.buckets)

    def synchronize(self) -> list[SparseVector | Tensor]:
        """Start what has not been started, wait for all, and leave the results in ``.grad``. Collective.

        Returns:
            The sum over the ranks of each bucket, without a loss scale.

        Raises:
            Exception: what `SparseAllreduce.step` raises; on every rank alike, with nothing under way any more.
        """
        scale = self._current_scale()
        for bucket, left in list(zip(self.buckets, self._left, strict=True))[self._next :]:
            for number, passes in enumerate(left):
                if passes > 0:
                    bucket.take(number, scale)
            self._start(bucket)
        self._agree_on_sparse()
        totals, errors = [], []
        for bucket in self.buckets:
            try:
                totals.append(bucket.finish(scale))
            except Exception as error:
                errors.append(error)
            if self._scaler is not None:
                bucket.reducer.forget_nonfinite()
        self._next, self._scale = 0, None
        self._left = [[self._passes] * len(left) for left in self._left]
        if errors:
            raise errors[0]
        return totals

    def attach(self) -> None:
        """In place, have the next backward pass add to the residual; elsewhere nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.attach()

    def detach(self) -> None:
        """In place, take the residual out of reach of those who clear ``.grad``; elsewhere nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.detach()

    def record(self) -> None:
        """From the next step on, have ``trace`` tell when what happened to each bucket."""
        self.trace, self.comm.calls = [], []

    def state_dict(self) -> dict[str, Any]:
        """What this rank's reducers need to go on, see `SparseAllreduce.state_dict`; between steps."""
        return {"buckets": [bucket.reducer.state_dict() for bucket in self.buckets]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned, on the same rank of as many ranks, for the same parameters.

        Raises:
            ValueError: it is of other buckets, or see `SparseAllreduce.load_state_dict`; on every rank alike.
        """
        for bucket, (saved,) in zip(self.buckets, self._by_bucket([state]), strict=True):
            bucket.reducer.load_state_dict(saved)

    def take_over(self, states: Sequence[dict[str, Any]], ranks: int) -> None:
        """Take up what ``ranks`` ranks saved, on any number of ranks, see `SparseAllreduce.take_over`.

        Raises:
            ValueError: a state is of other buckets, or see there; on every rank alike.
        """
        for bucket, saved in zip(self.buckets, self._by_bucket(states), strict=True):
            bucket.reducer.take_over(saved, ranks)

    def _by_bucket(self, states: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """``states`` cut up: for every bucket a list of what each of them has for it."""

        def prepare() -> list[list[dict[str, Any]]]:
            for state in states:
                count = len(state.get("buckets", ()))
                if count != len(self.buckets):
                    raise ValueError(
                        f"state['buckets'] must hold {len(self.buckets)} buckets, got {count}; load it into a "
                        "reduction of the same parameters with the same bucket_cap_mb"
                    )
            return [[state["buckets"][number] for state in states] for number in range(len(self.buckets))]

        return prepare_alike(self.comm, prepare, lambda _: "load a state")

    def _reducer(self, shapes: Sequence[tuple[int, ...]]) -> SparseAllreduce:
        """For a bucket of parameters of these shapes."""
        whole = sum(map(int, map(np.prod, shapes))) == self._elements
        amount: dict[str, Any] = {"k": self._k} if whole else {"density": self._share}
        make: Callable[[], SparseAllreduce] = partial(
            SparseAllreduce, list(shapes), comm=self.comm, **amount, **self._options
        )
        return lane_of(self.comm).start(make).wait()

    def _arrived(self, number: int, i: int, parameter: Tensor) -> None:
        """Autograd's hook: a gradient of this backward pass is in ``parameter.grad``."""
        bucket, left = self.buckets[number], self._left[number]
        if left[i] == 0:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} must see {self._passes} backward passes between two "
                f"steps, got one more; call step() (or synchronize()) after each {self._passes}, or raise "
                "backward_passes_per_step"
            )
        left[i] -= 1
        if left[i] == 0:
            bucket.take(i, self._current_scale())
        while self._overlap and self._next < len(self.buckets) and not any(self._left[self._next]):
            self._start(self.buckets[self._next])

    def _start(self, bucket: Bucket) -> None:
        if self.trace is not None and self._next == 0:
            self.trace.clear()
            self.comm.calls = []
        bucket.start(self.check, self.density)
        self._next += 1
        if self.trace is not None and bucket.handle is not None:
            bucket.handle.add_done_callback(lambda handle: self._traced(bucket, handle.span))

    def _traced(self, bucket: Bucket, span: Span) -> None:
        """Note what is over; on the thread that did it, before it does anything else."""
        calls, self.comm.calls = self.comm.calls, []
        if self.trace is not None:
            self.trace.append(BucketTrace(span, bucket.reducer.selections, calls or []))

    def _current_scale(self) -> float:
        """The loss scale of the gradients under way: the scaler changes it between steps only."""
        if self._scale is None:
            self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        return self._scale

    def _agree_on_sparse(self) -> None:
        """In the first step with a bucket: whose gradient is a sparse tensor on one rank is one on all."""
        new = self.buckets[self._agreed :]
        if not new:
            return
        mine = np.array([i in bucket.sparse for bucket in new for i in range(len(bucket.parameters))], np.uint8)
        all_ranks = lane_of(self.comm).start(lambda: self.comm.allreduce(mine, "max", control=True)).wait()
        flags = iter(all_ranks.tolist())
        for bucket in new:
            bucket.sparse = {i for i in range(len(bucket.parameters)) if next(flags)}
        self._agreed = len(self.buckets)


def _check(parameters: list[Tensor], cap: float | None, passes: int, in_place: bool, scaler: Any) -> None:
    if not parameters:
        raise ValueError("parameters must have one that needs a gradient, got none; is the model frozen?")
    if cap is not None and not cap > 0:
        raise ValueError(f"bucket_cap_mb must be above 0, got {cap}; None reduces everything at once")
    if passes < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, got {passes}")
    if in_place and scaler is not None:
        raise ValueError("in_place must be False with a scaler, whose scale the residual must not have, got True")
