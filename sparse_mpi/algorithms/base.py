"""The interface of an algorithm: the two laws, and what an algorithm declares about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import field, fields, replace
from math import ceil, floor, log2
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from sparse_mpi.arrays import Array
from sparse_mpi.checks import check_instance
from sparse_mpi.comm import Comm
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.sparse import Layout, SparseVector
from sparse_mpi.wire import Most, Wire

A = TypeVar("A", bound="Algorithm")
DENSITY = 0.01  # k over n in most papers


class Reduction(NamedTuple):
    """The result of an allreduce: the sum, and this rank's part in it.

    The sum of ``sent`` over all ranks is ``total`` (to rounding), so ``x - sent`` is what this rank still owes.
    """

    total: SparseVector | Array  #: the same bytes on every rank; dense where the algorithm's result is dense
    sent: SparseVector | Array  #: this rank's net contribution


class Bound(NamedTuple):
    """The most one rank sends in one step."""

    pairs: float  #: (index, value) pairs
    values: float  #: values without index
    messages: float  #: all messages, those of control too
    control: float  #: bytes of counts, boundaries, histograms
    extra: float = 0.0  #: payload bytes that are neither, of packed or short indices, rounded values, heads of messages

    def payload(self, pair_bytes: int, value_bytes: int) -> float:
        """Return the payload in bytes, for pairs and values of these sizes in bytes."""
        return self.pairs * pair_bytes + self.values * value_bytes + self.extra

    @property
    def words(self) -> float:
        """Return the payload in 4-byte words, for float32 values and int32 indices: the papers' unit."""
        return 2 * self.pairs + self.values + self.extra / 4


def bound_of(messages: float, control: float, first: Most, *others: Most) -> Bound:
    """Return the bound of one rank's messages of payload, whose most bytes their formats tell, and of control."""
    pairs, values, extra = first.beside(*others)
    return Bound(pairs, values, messages, control, extra)


class Part(Protocol):
    """Some tensors of the gradient, and the algorithm that reduces them: a dataclass, see `hybrid.Fused`."""

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm that reduces these tensors."""

    @property
    def tensors(self) -> tuple[int, ...]:
        """Return the numbers of the tensors in the layout."""


class Algorithm(ABC):
    """The base class of all algorithms, which are frozen dataclasses of hyperparameters.

    ``reduce`` obeys two laws on any number of ranks and any input:

    1. Agreement: ``total`` has the same bytes on every rank.
    2. Nothing is lost: the sum of ``sent`` over the ranks is ``total``, to rounding.

    No return may depend on one rank's data before the last message: a rank with nothing to say still takes part.

    An algorithm implements ``init``, ``reduce`` and ``bound``. All other members have a default; an algorithm for
    which the default is not true overrides it, by a field, a ``ClassVar`` or a property.
    """

    selector: Selector | None = None  # picks the entries to send, from all of acc
    wire: Wire | None = None  # the message format
    inner: Algorithm | None = None  # reduces what this algorithm prepares for it
    parts: tuple[Part, ...] = ()  # reduce some tensors each
    usual_density: ClassVar[float] = DENSITY  # k over n where a caller gives neither

    def __post_init__(self) -> None:
        """Raise TypeError if the class has a selector or a wire, and was given something else for it."""
        if type(self).selector is not None:
            check_instance("selector", self.selector, Selector)
        if type(self).wire is not None:
            check_instance("wire", self.wire, Wire)

    @abstractmethod
    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """Return the state before the first step: a frozen dataclass of numbers, arrays and such dataclasses."""

    @abstractmethod
    def reduce(
        self, acc: Array, k: int, comm: Comm, state: Any, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        """Reduce ``acc`` over the ranks of ``comm``; return the reduction and the next state.

        Args:
            acc: ``(n,)``, left as it is, but for ``add``.
            k: entries to keep, 1 <= k <= n.
            comm: the transport.
            state: what `init` or the last step returned; its arrays may be written to.
            layout: the shapes of the tensors that make up ``acc``, the same as in `init`.
            add: ``(n,)`` what has yet to be added to ``acc``, in place. An algorithm that `accumulates` hands it on to
                ``selector.select``, which adds it in the pass that selects. All others are given None.
        """

    @abstractmethod
    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in one step."""

    @property
    def prepares(self) -> bool:
        """Tell if `prepare` does a part of the next step's work, which may then overlap the backward pass."""
        return False

    def prepare(self, residual: Array, comm: Comm, state: Any) -> Any:
        """Do what can be done for the next step before its gradient is known, and return the state. Collective.

        It is called between two steps, or at the beginning of the next; once more for the same step changes nothing.
        An algorithm whose caller never calls it, because it is a part of another one, does all its work in `reduce`.

        Args:
            residual: ``(n,)`` what this rank has not sent yet; left as it is.
            comm: the transport.
            state: what the last step returned.
        """
        return state

    def forget(self, state: Any) -> Any:
        """Return the state for a next step whose residual is empty, because all that was owed has been sent at once."""
        return state

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the smallest and the largest number of entries that ``total`` may have; all n if it is dense."""
        return 0, layout.size

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the fewest and the most entries that one rank selects; all n where nothing is selected.

        What `inner` does some ranks may do without, or with a part of k.
        """
        selector = (self.inner or self).selector
        if selector is None:
            return 0, layout.size
        return 0 if self.inner else floor(selector.band[0] * k), most_selected(selector, layout, k)

    def exact_order(self, layout: Layout, k: int) -> bool:
        """Tell if sums are taken in rank order by this library, and so have the same bytes on every transport.

        An allreduce of floating-point values is not: each transport adds them in an order of its own.
        """
        return True

    @property
    def conserves(self) -> bool:
        """Tell if the second law holds; False declares the algorithm exempt from it."""
        return True

    @property
    def gives_away(self) -> bool:
        """Tell if ``sent`` may have entries that are not in ``total``: another rank keeps them."""
        return any(part.algorithm.gives_away for part in self.parts)

    @property
    def normwise(self) -> bool:
        """Tell if elements of ``sent`` are rounded relative to the norm of the vector, not to themselves."""
        return False

    @property
    def lossless(self) -> bool:
        """Tell if values are sent in full precision."""
        return self.wire is None or self.wire.lossless

    @property
    def accumulates(self) -> bool:
        """Tell if `reduce` hands ``add`` on to its selector; otherwise the caller adds it to ``acc`` beforehand."""
        return False

    @property
    def automatic(self) -> bool:
        """Tell if ``algorithm="auto"`` may choose it, for any gradient."""
        return False

    @property
    def planned(self) -> bool:
        """Tell if it is one of the options that plans are made of, unless the caller names others."""
        return False

    @classmethod
    def presets(cls) -> dict[str, dict[str, Any]]:
        """Return the hyperparameters of published programs, by workload; "" where all workloads have the same."""
        return {}

    @classmethod
    def published(cls: type[A], workload: str = "") -> A:
        """Return the algorithm with the hyperparameters of the published program, to compare with.

        Raises:
            ValueError: there are none, or none for ``workload``.
        """
        known = cls.presets()
        if workload not in known:
            choice = f"must be one of {', '.join(known)}" if any(known) else "are the same for all workloads"
            which = f"published settings of {cls.__name__} {choice if known else 'are not known'}"
            raise ValueError(f"{which}, got {workload!r}")
        return cls(**known[workload])

    def __repr__(self) -> str:
        """Return the call that makes it, for classes with `later` fields; dataclasses make one of their own."""
        declared = [(f, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        shown = [f"{f.name}={value!r}" for f, value in declared if f.repr or value != f.default]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def with_selectors(self: A, wrap: Callable[[Selector], Selector]) -> A:
        """Return this algorithm with every selector replaced by ``wrap(selector)``: its own and those of its parts."""
        changes: dict[str, Any] = {}
        if self.selector is not None:
            changes["selector"] = wrap(self.selector)
        if self.inner is not None:
            changes["inner"] = self.inner.with_selectors(wrap)
        if self.parts:
            wrapped = [part.algorithm.with_selectors(wrap) for part in self.parts]
            changes["parts"] = tuple(
                replace(part, algorithm=algorithm)  # type: ignore[type-var]
                for part, algorithm in zip(self.parts, wrapped, strict=True)
            )
        return replace(self, **changes) if changes else self  # type: ignore[type-var]


def later(default: Any) -> Any:
    """Declare a field that an earlier release lacks.

    The repr, which checkpoints identify an algorithm by, has it only where it is not the default. The class must be a
    ``dataclass(repr=False)``, so that it has `Algorithm.__repr__`.
    """
    return field(default=default, repr=False)


def rounds(ranks: int) -> int:
    """Return L = ceil(log2 P), the depth of a binary tree over P ranks."""
    return ceil(log2(ranks))
