"""The interface of an algorithm: the two laws, and its declarations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from math import floor
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from sparse_mpi.arrays import A, Array
from sparse_mpi.checks import check_instance, check_whole
from sparse_mpi.comm import Comm
from sparse_mpi.comm.base import rounds as rounds  # part of the bounds of algorithms
from sparse_mpi.select import Selector
from sparse_mpi.select.base import most_selected
from sparse_mpi.sparse import Layout, NoState, SparseVector
from sparse_mpi.wire import SizeBound, Wire

T = TypeVar("T")
DENSITY = 0.01  # k over n in most papers

if TYPE_CHECKING:

    class Reduction(NamedTuple, Generic[A]):
        total: SparseVector[A] | A
        sent: SparseVector[A] | A

else:

    class Reduction(NamedTuple):
        """The result of an allreduce: the sum, and this rank's part in it.

        The ranks' ``sent`` add up to ``total`` (to rounding), so ``x - sent`` is what this rank still owes.
        """

        total: SparseVector | Array  #: the same bytes on every rank; dense where the algorithm's result is dense
        sent: SparseVector | Array  #: this rank's net contribution


class Carried(Reduction):
    """A `Reduction` with an attribute ``beside``: the sums of a second vector at the entries of ``total``."""

    beside: Array

    def __new__(cls, total: SparseVector | Array, sent: SparseVector | Array, beside: Array) -> Carried:
        made = tuple.__new__(cls, (total, sent))
        made.beside = beside
        return made


class Bound(NamedTuple):
    """The most one rank sends in one step."""

    pairs: float  #: (index, value) pairs
    values: float  #: values without index
    messages: float  #: all messages, control included
    control: float  #: bytes of counts, boundaries, histograms
    extra: float = 0.0  #: payload bytes that are neither, of packed or short indices, rounded values, heads of messages

    @staticmethod
    def of(payload: SizeBound, messages: float, control: float) -> Bound:
        """Return the bound of payload messages, by their formats, and of control."""
        return Bound(payload.pairs, payload.values, messages, control, payload.extra)

    def payload(self, pair_bytes: int, value_bytes: int) -> float:
        """Return the payload in bytes, with these sizes of pairs and values."""
        return self.pairs * pair_bytes + self.values * value_bytes + self.extra

    @property
    def words(self) -> float:
        """Return the payload in 4-byte words, for float32 values and int32 indices: the papers' unit."""
        return 2 * self.pairs + self.values + self.extra / 4


@dataclass(frozen=True)
class Traits:
    """Properties that an algorithm declares where they differ from these defaults."""

    conserves: bool = True  #: the second law holds; False declares the algorithm exempt from it
    delegates_residual: bool = False  #: ``sent`` may have entries that ``total`` lacks: another rank keeps them
    rounds_relative_to_norm: bool = False  #: ``sent`` is rounded relative to the norm of acc, not element by element
    lossless: bool = True  #: values are sent in full precision
    accumulates: bool = False  #: `reduce` hands ``add`` on to its selector; otherwise the caller adds it beforehand
    carries: bool = (
        False  #: `reduce` takes second moments too, ``beside``, and adds them up where ``total`` has entries
    )
    in_default_plans: bool = False  #: plans are made of it, unless the caller names other options
    #: sums are taken in rank order by this library, and so have the same bytes on every transport: sums of an
    #: allreduce of floating-point values are not, which each transport adds in an order of its own
    exact_order: bool = True
    usual_density: float = DENSITY  #: k over n where a caller gives neither
    #: how far results on two devices may be apart: norm of the difference over that of the result; 0: the same bytes
    device_difference: float = 0.0


def levels_field(default: int | None = None) -> Any:
    """Return the field ``levels`` of an algorithm that can run between nodes, with the same state for any value."""
    return field(default=default, kw_only=True, metadata={"of_ranks": True})


class Part(Protocol):
    """Some tensors of the gradient, and their algorithm: a dataclass, see `hybrid.Fused`."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def tensors(self) -> tuple[int, ...]: ...


class Algorithm(ABC):
    """Base class of all algorithms, which are frozen dataclasses of hyperparameters.

    ``reduce`` obeys two laws on any number of ranks and any input:

    1. Agreement: ``total`` has the same bytes on every rank.
    2. Nothing is lost: the ranks' ``sent`` add up to ``total``, to rounding.

    No return may depend on one rank's data before the last message: a rank with an empty selection still takes part.

    An algorithm implements ``reduce``, and overrides other members, by a field, a ``ClassVar`` or a property, if their
    default is wrong.
    """

    selector: Selector | None = None  # picks the entries to send, from all of acc
    wire: Wire | None = None  # the message format
    parts: tuple[Part, ...] = ()  # reduce some tensors each
    # 2: between nodes it reduces what their ranks sum densely, see `two_level`; None: where nodes have several ranks
    levels: int | None = 1

    def __post_init__(self) -> None:
        if type(self).selector is not None:
            check_instance("selector", self.selector, Selector, _entry("SELECTORS", self.selector))
        if type(self).wire is not None:
            check_instance("wire", self.wire, Wire, _entry("WIRES", self.wire))
        if self.levels is not None:
            check_whole("levels", self.levels, 1, remedy="None goes by the ranks of each node", most=2)

    @property
    def traits(self) -> Traits:
        """Return the declared properties."""
        return Traits(lossless=self.wire is None or self.wire.lossless)

    def init(self, layout: Layout, k: int, ranks: int) -> Any:
        """Return the state before the first step: a frozen dataclass of numbers and arrays."""
        return NoState() if self.selector is None else self.selector.init(layout, k)

    @abstractmethod
    def reduce(
        self, acc: Array, k: int, comm: Comm, state: Any, layout: Layout, add: Array | None = None
    ) -> tuple[Reduction, Any]:
        """Reduce ``acc`` over the ranks of ``comm``; return the reduction and the next state.

        Args:
            acc: ``(n,)``, unchanged unless ``add`` is given.
            k: entries to send, 1 <= k <= n.
            comm: the transport.
            state: the result of `init` or of the last step; its arrays may be written to.
            layout: the shapes of the tensors in ``acc``, as in `init`.
            add: ``(n,)`` to add to ``acc`` in place. An algorithm that `accumulates` passes it to ``selector.select``,
                which adds it in the pass that selects. Others are given None.

        An algorithm that `carries` also takes ``beside``: ``(n,)`` of the dtype of acc, not negative. It divides the
        gradient by the root of ``beside`` to select, sums ``beside`` coarsely at the entries of the result, and returns
        a `Carried`.
        """

    def bound(self, layout: Layout, k: int, ranks: int) -> Bound:
        """Return the most that one rank sends in one step, or raise NotImplementedError."""
        raise NotImplementedError(f"{self!r} must declare its bound here: write bound(layout, k, ranks) -> Bound")

    def forget(self, state: Any) -> Any:
        """Return the state after a step that sent everything, for a next one with an empty residual."""
        return state

    def result_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the fewest and the most entries of ``total``; n if it is dense."""
        return 0, min(layout.size, self.selected_band(layout, k, ranks)[1] * ranks)

    def selected_band(self, layout: Layout, k: int, ranks: int) -> tuple[float, float]:
        """Return the fewest and the most entries that a rank selects; n if it does not select."""
        if self.selector is None:
            return 0, layout.size
        return floor(self.selector.band[0] * k), most_selected(self.selector, layout, k)

    def exact_order(self, layout: Layout, k: int) -> bool:
        """Tell if the trait ``exact_order`` holds for this layout and k."""
        return self.traits.exact_order


def _entry(registry: str, given: object) -> str:
    return f"by its name it is {registry}[{given!r}]" if isinstance(given, str) else ""


def with_selectors(part: T, wrap: Callable[[Selector], Selector]) -> T:
    made: Any = part
    if isinstance(part, Selector):
        made = wrap(part)
    elif type(part) is tuple:
        made = tuple(with_selectors(each, wrap) for each in made)
    elif is_dataclass(part) and isinstance(getattr(part, "algorithm", part), Algorithm):
        made = copy(part)  # not by `replace`, which takes no fields that an instance makes itself
        for one in fields(part):
            object.__setattr__(made, one.name, with_selectors(getattr(part, one.name), wrap))
    return made
