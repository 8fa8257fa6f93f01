"""The reduction of a torch model's gradients, bucket by bucket, begun while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sparse_mpi.buckets.bucket import Bucket, check_options, cut, cut_states
from sparse_mpi.buckets.trace import Tracer
from sparse_mpi.comm import as_comm
from sparse_mpi.comm.background import progress_thread_of
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.reducer import SparseAllreduce
from sparse_mpi.reducer.arguments import resolve_k
from sparse_mpi.reducer.report import StepReport
from sparse_mpi.sparse import SparseVector


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
        scaler: the loss scaler of the training. What is reduced, and what is kept for later, is without its scale; and
            a step in which a gradient of any rank overflows leaves no trace. Reductions begin in `synchronize`.

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
        self.buckets: list[Bucket] = []
        self.density: float | None = None  # of the next steps, instead of the reducers' own
        self.check = False  # whether the next steps assert both laws
        self._tracer: Tracer | None = None
        first = [p for p in parameters if p.requires_grad]
        elements = self._elements = sum(p.numel() for p in first)
        transport = as_comm(comm)
        with same_on_all_ranks(transport) as say:
            check_options(first, bucket_cap_mb, passes, in_place, scaler)
            self._k = resolve_k(elements, k, density)
            say(n=elements, k=self._k, bucket_cap_mb=bucket_cap_mb)
            say(overlap=overlap, passes=passes, average=average, scaled=scaler is not None)
        self._overlap = overlap and scaler is None
        self.comm = transport.duplicate(patient=self._overlap)
        self._share = self._k / elements if k is not None else density
        self._most_bytes = float("inf") if bucket_cap_mb is None else bucket_cap_mb * 1e6
        self._passes, self._in_place, self._scaler = passes, in_place, scaler
        self._average, self._divisor = average, float(self.comm.size) if average else 1.0
        self._options: dict[str, Any] = {"algorithm": algorithm, "in_place": in_place, **options}
        self._known: set[Tensor] = set()
        self._hooks: dict[Tensor, RemovableHandle] = {}
        self._left: list[list[int]] = []  # backward passes that each parameter of each bucket has yet to see
        self._next = 0  # the bucket to be started next
        self._scale: float | None = None  # of the gradients under way
        self._kinds_known = False  # whether all ranks know whose gradients are sparse tensors
        self._open = True
        self.add(first)

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Reduce the gradients of those ``parameters`` too that need one and are new; collective if there are any."""
        new = [p for p in parameters if p.requires_grad and p not in self._known]
        self._known.update(new)
        for held in cut(new, self._most_bytes):
            self.buckets.append(Bucket(held, self._reducer, self._in_place, self._divisor))
            self._left.append([self._passes] * len(held))
            self._kinds_known = False
        if self._open:
            self.open()

    def open(self) -> None:
        """Take part in the backward passes that follow, from the first on; until `close`."""
        self._open = True
        for number, bucket in enumerate(self.buckets):
            for i, parameter in enumerate(bucket.parameters):
                if parameter.requires_grad and parameter not in self._hooks:
                    hook = partial(self._arrived, number, i)
                    self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(hook)

    def close(self) -> None:
        """Leave backward passes alone: gradients stay on their rank."""
        self._open = False
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    @property
    def under_way(self) -> bool:
        """Whether gradients are being reduced that `synchronize` has yet to be called for."""
        return self._next > 0

    @property
    def arrived(self) -> bool:
        """Whether there are gradients that `synchronize` has yet to be called for."""
        return any(passes < self._passes for left in self._left for passes in left)

    @property
    def report(self) -> StepReport:
        """What the last step did on this rank, all buckets together."""
        reports = [bucket.reducer.report for bucket in self.buckets if bucket.reducer.report is not None]
        return reduce(lambda a, b: StepReport(*map(add, a, b)), reports)

    def synchronize(self) -> list[SparseVector | Tensor]:
        """Start what has not been started, wait for all, and leave the results in ``.grad``. Collective.

        Returns:
            The sum over the ranks of each bucket, without a loss scale; none where a gradient has overflowed.

        Raises:
            Exception: what `SparseAllreduce.step` raises; on every rank alike, with nothing under way any more.
        """
        scale = self._current_scale()
        waiting = list(zip(self.buckets, self._left, strict=True))[self._next :]
        for bucket, left in waiting:
            for number, passes in enumerate(left):
                if passes > 0:
                    bucket.take(number, scale)
        if self._overflowed():
            self._reset()
            for bucket in self.buckets:
                bucket.fail()
            return []
        for bucket, _ in waiting:
            self._start(bucket)
        self._agree_on_kinds()
        totals, errors = [], []
        for bucket in self.buckets:
            try:
                totals.append(bucket.finish(scale))
            except Exception as error:
                errors.append(error)
        if self._tracer is not None:
            self._tracer.end()
        self._reset()
        if errors:
            raise errors[0]
        return totals

    def discard(self) -> None:
        """Forget the gradients that have arrived since the last step.

        Raises:
            RuntimeError: they are being reduced; or, in place, they are in the residual already.
        """
        if self.under_way or (self._in_place and self.arrived):
            why = "are being reduced" if self.under_way else "are in the residual already (in_place=True)"
            raise RuntimeError(
                f"gradients must not be cleared between backward() and step(), when they {why}; call step() or "
                "synchronize() first"
            )
        self._reset()

    def _reset(self) -> None:
        self._next, self._scale = 0, None
        self._left = [[self._passes] * len(left) for left in self._left]

    def attach(self) -> None:
        """In place, have the next backward pass add to the residual; elsewhere nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.attach()

    def detach(self) -> None:
        """In place, take the residual out of reach of those who clear ``.grad``; elsewhere nothing."""
        for bucket in self.buckets if self._in_place else ():
            bucket.detach()

    def record(self) -> Tracer:
        """What notes, from the next step on, when what happens to each bucket."""
        self._tracer = Tracer(self.comm)
        return self._tracer

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

        What they owed together arrives in ``.grad`` as it would have there: where that is the mean, the share of all
        that is owed is kept, not the sum.

        Raises:
            ValueError: a state is of other buckets, or see there; on every rank alike.
        """
        divisor = ranks if self._average else 1
        for bucket, saved in zip(self.buckets, self._by_bucket(states), strict=True):
            bucket.reducer.take_over(saved, ranks)
            for owed in bucket.reducer.memory.state().values():
                owed *= self._divisor / divisor

    def _by_bucket(self, states: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """``states`` cut up: for every bucket a list of what each of them has for it."""
        with same_on_all_ranks(self.comm) as say:
            say(call="load_state_dict")
            return cut_states(states, len(self.buckets))

    def _reducer(self, shapes: Sequence[tuple[int, ...]]) -> SparseAllreduce:
        """For a bucket of parameters of these shapes."""
        whole = sum(map(int, map(np.prod, shapes))) == self._elements
        amount: dict[str, Any] = {"k": self._k} if whole else {"density": self._share}
        make: Callable[[], SparseAllreduce] = partial(
            SparseAllreduce, list(shapes), comm=self.comm, **amount, **self._options
        )
        return progress_thread_of(self.comm).start(make).wait()

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
        while self._overlap and self._next < len(self.buckets) and self._is_complete(self._next):
            self._start(self.buckets[self._next])

    def _is_complete(self, number: int) -> bool:
        """Whether all gradients of a bucket are there that will come."""
        awaited = zip(self.buckets[number].parameters, self._left[number], strict=True)
        return not any(passes and parameter.requires_grad for parameter, passes in awaited)

    def _start(self, bucket: Bucket) -> None:
        if self._tracer is not None and self._next == 0:
            self._tracer.begin()
        self._next += 1
        handle = bucket.start(self.check, self.density)
        if self._tracer is not None:
            self._tracer.watch(handle, bucket.reducer)

    def _current_scale(self) -> float:
        """The loss scale of the gradients under way: the scaler changes it between steps only."""
        if self._scale is None:
            self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0
        return self._scale

    def _overflowed(self) -> bool:
        """With a loss scaler, whether any rank has a gradient that is not finite; the same on all ranks."""
        if self._scaler is None:
            return False
        mine = np.array([not all(bool(bucket.flat.isfinite().all()) for bucket in self.buckets)], np.uint8)
        return bool(self.comm.allreduce(mine, "max", control=True)[0])

    def _agree_on_kinds(self) -> None:
        """What is a sparse tensor on one rank is one on all; until all gradients have been seen somewhere."""
        if self._kinds_known:
            return
        mine = np.concatenate([bucket.seen for bucket in self.buckets])
        kinds = progress_thread_of(self.comm).start(lambda: self.comm.allreduce(mine, "max", control=True)).wait()
        for bucket in self.buckets:
            bucket.kinds, kinds = kinds[: len(bucket.seen)].copy(), kinds[len(bucket.seen) :]
        self._kinds_known = all(bucket.kinds.all() for bucket in self.buckets)
