"""Protocol of kernel sets, which return the same bits for the same input, except sums in `moments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sparse_mpi.arrays import Array
from sparse_mpi.kernels.parts import EqualParts

LONG = 1 << 13  # entries from which on a row is long
SKETCH = 1024  # numbers in the result of `Kernels.sketch`
SKETCHED_ROWS = 128  # rows of `SKETCH` entries that are added up by themselves, before these sums in order
LEAST_SQUARE = 1e-20  # least square in `Kernels.standardized`
BALLOTS = 16  # codes of `Kernels.to_ballots`: a sign and 7 levels, not finite, and 0
SCALED = 128  # neighbouring values of a message, a block, that share a scale in `Kernels.to_int8`, `to_int4`, `to_int2`
# The layout of packed messages that stand one after another in a buffer of bytes: a structured array (m,), m >= 1, on
# the host, with one record a message. `wire.packed` explains the format.
#
# A message is a number, the codes of its values, their scales, the low bits of its indices and their high bits. Indices
# count from the start of the message's region. The low bits of all entries, `shift` each, stand side by side. The high
# part h of the i-th entry is one bit: at position h + i of the high section if `spread` is 1, else at position h. Bits
# fill each byte from its lowest bit up. A message of every index of its region has neither low nor high bits; a message
# without entries is empty.
MESSAGE = np.dtype(
    [
        ("entries", np.int64),
        ("first", np.int64),  # entries of all messages before
        ("start", np.int64),  # first index of the region
        ("shift", np.int64),  # low bits of an index
        ("spread", np.int64),  # 1 or 0: Elias-Fano or bitmap
        ("span", np.int64),  # bits of the high section
        ("block", np.int64),  # scales of all messages before
        ("code", np.int64),  # bytes of the codes of all messages before
        ("scale_bytes", np.int64),  # 2 or 4, the upper bytes of a float32 scale that are sent
        # Byte offsets in the buffer:
        ("head", np.int64),  # the number, which is entries - 1 in little endian
        ("values", np.int64),  # the codes
        ("scales", np.int64),  # the scales
        ("lows", np.int64),  # the low bits
        ("highs", np.int64),  # the high bits
        ("end", np.int64),  # the end of the message
    ]
)
MISCOUNTED = "it does not have as many indices as entries"


class Moments(NamedTuple):
    """Sums, in float64, over the entries that reach a threshold."""

    entries: int
    total: float  # sum of |x|
    squares: float  # sum of x^2
    logs: float  # sum of ln |x|, zeros left out
    nonzero: int
    largest: float  # |x|, 0 where there is none


class Later:
    """A number still being computed on a device; to read it synchronizes.

    Args:
        find: function that waits for the number and returns it.
        known: function that returns True once reading does not wait.
        before: number that serves until then, see `latest`.
    """

    def __init__(self, find: Callable[[], float], known: Callable[[], bool] = lambda: True, before: Real = 0) -> None:
        self._find: Callable[[], float] | None = find
        self._number, self.known, self._before = 0.0, known, before

    def number(self) -> float:
        if self._find is not None:
            self._number, self._find, self._before = self._find(), None, 0  # releases what it was computed from
        return self._number

    def latest(self) -> float:
        if self._find is None or self.known():
            return self.number()
        return self._before.latest() if isinstance(self._before, Later) else self._before

    def __int__(self) -> int:
        return int(self.number())

    def __float__(self) -> float:
        return float(self.number())

    def __deepcopy__(self, _: object) -> float:
        return self.number()


Number = int | Later
Real = float | Later


def code_places(edges: np.ndarray, bits: int) -> np.ndarray:
    """Return the byte ``(b + 1,)`` at which each block's codes, of 1 to 8 ``bits``, begin.

    A block's values lie between ``edges`` ``(b + 1,)``.
    """
    return np.append(0, np.cumsum(-(-np.diff(edges) * bits // 8)))


def totals(messages: np.ndarray) -> tuple[int, int, int]:
    """Return the entries, bytes of codes and scales of all ``messages``, a table of `MESSAGE`."""
    # As plain numbers: NumPy takes long to read a field of a record
    last = messages[-1:].view(np.int64).tolist()
    entries, first, *_, block, code, scale_bytes, _, values, scales, lows, _, _ = last
    return first + entries, code + scales - values, block + (lows - scales) // scale_bytes


class Kernels(Protocol):
    """A set of kernels. ``x`` is a dense vector ``(n,)``, contiguous or not; thresholds are `magnitude_bits`.

    All kernels take float32 and float64. `count`, `select` and `moments` take half precision in ``x`` too, float16 or
    bfloat16 as uint16 bit patterns, and so does what is added to ``x``. Results are as if widened to float32 first,
    without a copy.
    """

    def count(self, x: Array, thresholds: np.ndarray, among: Array | None = None) -> np.ndarray:
        """Count the entries that reach each of the ascending ``thresholds`` ``(t,)``: ``(t,)`` int64, on the host.

        Only entries of the mask ``among`` ``(n,)``, as from `merge_loosely`, count.
        """

    def select(self, x: Array, threshold: int, most: int) -> tuple[Array, Array] | None:
        """Return ascending indices and values ``(nnz,)`` that reach ``threshold``; None if over ``most``."""

    def accumulate(self, residual: Array, gradient: Array) -> None:
        """Add ``gradient``, of any precision, to the contiguous ``residual`` in place; half precision is widened."""

    def top_k_rows(self, matrix: Array, k: int) -> tuple[Array, Array]:
        """Find the k largest magnitudes of each row of ``matrix`` ``(rows, columns)``; of equal ones the first.

        Return columns ``(rows, k)`` int32, ascending in each row, and values ``(rows, k)``.
        """

    def select_parts(self, x: Array, parts: EqualParts, thresholds: Array, add: Array | None = None) -> Array:
        """Return the q largest magnitudes of each part of ``x``, after adding ``add`` to it in place.

        Args:
            x: ``(n,)`` float32 or float64, contiguous.
            parts: V parts, with quota q.
            thresholds: magnitude bits ``(V + 1,)``, int64, of each part, and a margin below them; rewritten for the
                next step, and only its time depends on them.
            add: ``(n,)``, of any precision.

        Returns:
            Messages to all owners, ``(P, length)`` uint8: the first entries if magnitudes tie, zeros if too few are
            nonzero.
        """

    def add_parts(self, messages: Array, parts: EqualParts, thresholds: Array, real: np.dtype) -> Array:
        """Add up ``messages`` ``(P, length)`` of all ranks, in their order; return the q largest sums of each part.

        The result is a message ``(length,)``, with values of type ``real``. ``thresholds`` ``(V / P + 1,)`` have the
        least magnitude bits of each part's result in the step before, and then in this one; only time depends on them.
        """

    def from_parts(
        self, messages: Array, parts: EqualParts, own: Array, owed: Array | None, rank: int, real: np.dtype
    ) -> tuple[Array, Array, Array]:
        """Return results by index: ascending indices, values, and this rank's contributions, all ``(m,)``.

        Args:
            messages: ``(P, length)`` of all owners, from `add_parts`. Zeros are left out on the host.
            parts: V parts, with quota q.
            own: messages of this rank to all owners, as they arrive.
            owed: ``(V q / P,)``, taken off the contributions to this rank's parts; None: nothing.
            rank: number of this rank.
            real: type of values.
        """

    def to_bfloat16(self, x: Array, back: Array | None = None) -> Array:
        """Round ``x`` to float32 and then to bfloat16, ties to even: bit patterns ``(n,)`` uint16.

        Too large values become Inf; NaN stays NaN. ``back``, contiguous ``(n,)`` of the dtype of ``x``, receives the
        rounded values.
        """

    def moments(self, x: Array, threshold: int) -> Moments:
        """Sum over the entries that reach ``threshold``, in the set's own order."""

    def sketch(self, x: Array, seed: int) -> np.ndarray:
        """Return a sketch of ``x``: `SKETCH` sums, each of the entries of a bucket, each times +1 or -1.

        An entry's bucket and sign are hashes of its index and ``seed``, below 2^32, which parts of one vector must not
        share. Sketches ``(SKETCH,)``, float64 on the host, add up to the sketch of the sum. A sketch's sum of squares
        estimates the squared norm, with a standard error of at most ``sqrt(2 / SKETCH)``, 4.4 %, for any vector (Alon,
        Matias and Szegedy, STOC'96; Charikar, Chen and Farach-Colton, ICALP'02).
        """

    def add(self, x: Array, indices: Array, values: Array) -> None:
        """Add ``values`` to ``x[indices]`` in place; ``indices`` are distinct."""

    def subtract(self, x: Array, indices: Array, values: Array) -> None:
        """Subtract ``values`` from ``x[indices]`` in place; set 0 where a value is not finite. Indices are distinct."""

    def subtract_dense(self, x: Array, values: Array) -> None:
        """Subtract ``values`` ``(n,)`` from ``x`` in place; set 0 where a value is not finite. ``x`` is contiguous."""

    def follow_squares(self, mean: Array, x: Array, weight: float) -> None:
        """Move ``mean`` ``(n,)``, contiguous, towards the squares of ``x`` in place: ``mean += weight (x^2 - mean)``.

        An element is unchanged where it or ``x`` is not finite. Both have one dtype, float32 or float64.
        """

    def adam(
        self,
        kind: int,
        gradient: Array,
        arrived: Array | None,
        seconds: Array | None,
        state: tuple[Array, Array, Array],
        weights: Array | None,
        table: np.ndarray,
        ends: np.ndarray,
        update: Array,
    ) -> Array | None:
        """Write Adam's ``update`` of entries that arrived late, and move their state on, see `kernels.adam`.

        An entry has arrived if ``arrived`` has it, or its gradient is not 0. All vectors but indices are contiguous and
        of one dtype, float32 or float64.

        Args:
            kind: ``ADAM``, ``NADAM`` or ``RMSPROP``.
            gradient: means ``(n,)``.
            arrived: indices ``(m,)``, ascending; None: all entries have arrived.
            seconds: second moments that travelled, of arrived entries ``(m,)`` or of all ``(n,)``; None: they are
                estimated from arrivals, as where all have arrived, and in the step before.
            state: rest of earlier arrivals, second moments, and step of the last arrival ``(n,)``, int32; changed in
                place. Empty for RMSprop.
            weights: weights ``(n,)``, where their decay is part of the gradient; else None.
            table: numbers of each tensor ``(tensors, COLUMNS)``, float64 on the host.
            ends: end of each tensor ``(tensors,)``, int64 on the host.
            update: zeros ``(n,)``; what weights lose, afterwards.

        Returns:
            Indices of the entries that were written; None: perhaps all.
        """

    def standardized(self, x: Array, squares: Array) -> Array:
        """Return ``x / sqrt(squares)`` ``(n,)``, squares clipped to 1e-20 and the largest number.

        Both have one dtype, float32 or float64. NaN and Inf in ``x`` stay.
        """

    def gather(self, x: Array, indices: Array) -> Array:
        """Return ``x[indices]`` ``(m,)``."""

    def add_in_order(
        self, x: Array, indices: Array, values: Array, low: int = 0, lengths: np.ndarray | None = None
    ) -> None:
        """Add pairs of several ranks to ``x`` in place, in order where indices are equal.

        An index is ``low`` more than its place in ``x``. For ``lengths`` see `merge`.
        """

    def clear(self, x: Array, indices: Array) -> None:
        """Set ``x[indices]`` to 0 in place."""

    def mark(self, bits: Array, indices: Array) -> None:
        """Set bit ``i % 8`` of ``bits[i // 8]``, of uint8, to 1 for every i of ``indices``."""

    def merge(
        self, indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
    ) -> tuple[Array, Array]:
        """Return the distinct ``indices``, ascending, and each one's sum of ``values``, in the order given.

        The indices lie in ``[low, low + size)``, in any order, or in strictly ascending runs of ``lengths``
        ``(runs,)``.
        """

    def merge_loosely(
        self, indices: Array, values: Array, size: int, low: int = 0, lengths: np.ndarray | None = None
    ) -> tuple[Array, Array, Array | None]:
        """`merge` without a wait of the host: the result may have gaps.

        The mask is False at gaps, which have undefined indices; None: no gaps.
        """

    def merge_runs(self, runs: Sequence[tuple[Array, Array]], size: int, low: int = 0) -> tuple[Array, Array]:
        """`merge` one or more ``runs`` of strictly ascending indices and their values."""

    def truncate(self, indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array]:
        """Return the k >= 1 pairs of largest magnitude, or all if there are fewer.

        Indices ascend before and after; the lower one wins a tie. With ``reuse`` the arguments may be overwritten.
        """

    def truncate_least(self, indices: Array, values: Array, k: int, reuse: bool = False) -> tuple[Array, Array, Number]:
        """`truncate`, and return the least magnitude bits of the k values; 0 if there are fewer than k."""

    def compress(
        self, indices: Array, values: Array, chosen: Array | None, count: int | None = None, threshold: int = 0
    ) -> tuple[Array, Array]:
        """Return the pairs that reach ``threshold``, of a mask ``chosen`` ``(m,)`` if given.

        With their ``count`` a device does not make the host wait.
        """

    def split_counts(self, indices: Array, boundaries: np.ndarray) -> np.typing.ArrayLike:
        """Count the ascending ``indices`` in each region between the ascending ``boundaries`` ``(P + 1,)`` int64.

        The counts ``(P,)`` int64 are on the host; `numpy.asarray` waits for a device's.
        """

    def to_pairs(self, indices: Array, values: Array, unit: np.dtype) -> Array:
        """Return pairs as rows ``(m, w)`` of integers of type ``unit``: the index's, then the value's."""

    def from_pairs(self, pairs: Array, index: np.dtype, value: np.dtype) -> tuple[Array, Array]:
        """Invert `to_pairs`: return indices and values ``(m,)`` of these types, in new arrays."""

    def contains(self, indices: Array, sought: Array) -> Array:
        """Return a mask ``(m,)`` of the ``sought`` ``(m,)`` that are among ``indices``; both ascend."""

    def among(self, indices: Array, sought: Array, values: Array) -> Array:
        """Return the ``values`` ``(m,)``, but 0 where ``sought`` ``(m,)`` is not among ``indices``; both ascend."""

    def to_float16(self, x: Array) -> Array:
        """Round ``x``, float32, to float16, ties to even; finite values that are too large become +-65504."""

    def to_int8(self, x: Array, indices: Array, edges: np.ndarray, short: bool = False) -> tuple[Array, Array]:
        """Quantise ``x`` ``(n,)`` float32 to whole steps of a scale for each block of neighbours.

        Rounding is stochastic: 24 bits of a hash of index and value serve as the random number. Inf and NaN become
        -128.

        Args:
            x: the values.
            indices: ``(n,)``, for the hash.
            edges: ``(b + 1,)``, on the host: block i is ``[edges[i], edges[i + 1])``, of 1 to `SCALED` values.
            short: round scales to bfloat16, ties to even.

        Returns:
            Codes ``(n,)`` int8, and scales ``(b,)`` float32: the largest finite magnitude of the block over 127.
        """

    def from_int8(self, codes: Array, scales: Array, edges: np.ndarray) -> Array:
        """Return each code times the scale of its block, ``(n,)`` float32, and NaN for -128."""

    def to_int4(self, x: Array, indices: Array, edges: np.ndarray) -> tuple[Array, Array]:
        """Quantise ``x`` ``(n,)`` float32 to a sign and one of 8 evenly spaced magnitudes of each block.

        They reach from the smallest finite magnitude of the block, or 0 if a value is not finite, to the largest.
        Rounding and arguments are as in `to_int8`. Inf and NaN have their own code. Codes are two in a uint8, the lower
        bits first, see `code_places`; scales ``(b,)`` float32 are for `from_levels`.
        """

    def to_int2(self, x: Array, edges: np.ndarray) -> tuple[Array, Array]:
        """Quantise ``x`` ``(n,)`` float32 to a sign and one of 2 magnitudes of each block.

        They are the means of the magnitudes that reach the block's mean and of the others; the lower one is 0 if a
        value is 0 or not finite, and Inf and NaN then have their own code. Codes, four in a byte, and scales are as in
        `to_int4`.
        """

    def from_levels(self, codes: Array, scales: Array, edges: np.ndarray, bits: int) -> Array:
        """Return the rounded values ``(n,)`` float32 of `to_int4` (``bits`` 4) or `to_int2` (2); else NaN."""

    def to_log4(self, x: Array, edges: np.ndarray) -> tuple[Array, Array]:
        """Quantise ``x`` ``(n,)`` float32, not negative, to powers of 4, with codes and scales as of `to_int4`."""

    def from_log4(self, codes: Array, scales: Array, edges: np.ndarray) -> Array:
        """Return the rounded values ``(n,)`` float32 of `to_log4`; what was not finite is Inf."""

    def cast_votes(
        self, x: Array, indices: Array, values: Array, quotas: np.ndarray, own: int = 0, more: int = 0
    ) -> tuple[Array, Array]:
        """Deal candidates out to P < 2^16 ranks, number them by rank, and keep each rank's quota of them.

        Each round deals P neighbouring indices, one to each rank, beginning at a rank hashed from the round's number.
        Rank q's index in round r has the number ``q * ceil(n / P) + r``. A vote is ``delta = values - x[indices]``;
        those with the largest ``sqrt(|delta|) * sqrt(|values|)`` are kept, the first of equal ones. A rank that has too
        few candidates also gets its first other numbers, with delta 0.

        Args:
            x: ``(n,)``, sums of earlier votes.
            indices: ``(m,)``, ascending.
            values: ``(m,)``, of the dtype of x.
            quotas: ``(P,)`` int64, on the host.
            own: number of a rank whose quota gets no votes unless ``more`` is 0.
            more: number of votes of rank ``own``, behind all others; hosts return fewer if it has fewer candidates.

        Returns:
            The numbers, ascending, and their deltas, as many as all quotas together, and those of rank ``own``.
        """

    def undeal(self, numbers: Array, size: int, ranks: int) -> Array:
        """Return the indices ``(m,)`` to which `cast_votes` gives ascending ``numbers`` ``(m,)``, in their order."""

    def add_dealt(self, x: Array, numbers: Array, values: Array, size: int, ranks: int) -> None:
        """Add ``values`` to ``x`` in place at the indices to which `cast_votes` gives distinct ``numbers`` ``(m,)``."""

    def to_ballots(self, values: Array, indices: Array, size: int) -> tuple[Array, Array, Array]:
        """Round votes, float32, to a sign and one of 7 magnitudes, to Inf or 0; see `wire.packed`.

        Returns:
            Each index times `BALLOTS` plus its code; the smallest magnitude of the codes, ``(m,)`` float32, all alike;
            and the rounded votes, ``(m,)`` float32.
        """

    def from_ballots(self, messages: np.ndarray, coded: Array, lows: Array, size: int) -> tuple[Array, Array]:
        """Return the indices and the values ``(m,)`` float32 of ballots that `read_messages` has ``coded``.

        ``messages`` are a table of `MESSAGE`, and ``lows`` the smallest magnitude of each sender.
        """

    def add_rows(self, matrix: Array) -> Array:
        """Return the sums ``(n,)`` of the rows of a contiguous ``matrix`` ``(m, n)``, added in their order."""

    def write_messages(self, messages: np.ndarray, indices: Array, codes: Array, scales: Array) -> Array:
        """Write ``messages``, a table of `MESSAGE`, into a new buffer ``(bytes,)`` uint8; indices ascend in each.

        Codes have 1, 2, 4 or 8 bytes each, or share bytes within a message.
        """

    def read_messages(self, messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array, Array]:
        """Invert `write_messages`: return indices of a vector of length ``size``, codes as bytes, and scales."""


class MalformedMessage(ValueError):
    """Raised for a message that no rank in the same state can have sent."""

    def __init__(self, number: int, messages: int, problem: str) -> None:
        sender = f", of rank {number} where each rank sent one" if messages > 1 else ""
        super().__init__(
            f"message {number} of {messages}{sender}, must be as it was packed, but {problem}; check that all ranks "
            "have loaded states of one step, that they run the same release, and their memory and network"
        )


class DeviceKernels(Kernels, Protocol):
    """A device's kernel set, with more kernels where small launches would take longer than their work."""

    def top_k(self, x: Array, k: int) -> tuple[Array, Array, Number]:
        """Find the k largest magnitudes of ``x`` ``(n,)``, n < 2^32, zeros included; the lower index wins a tie.

        Return indices and values ``(k,)``, and the least magnitude bits, for which the host waits when it reads them.
        """

    def largest(
        self, x: Array, k: int, threshold: int, most: int, add: Array | None = None, squares: Array | None = None
    ) -> tuple[Array, Array, Number, Number]:
        """Find the same as `top_k`, in less time if k to ``most`` entries reach ``threshold``; say how many do.

        Arrays ``add`` and ``squares`` ``(n,)`` join ``x`` as in `HostKernels.select_standardized`.
        """

    def select_rows(self, x: Array, tables: tuple[np.ndarray, np.ndarray], entries: int) -> tuple[Array, Array]:
        """Select the largest magnitudes of several rows of ``x`` ``(n,)``; of equal ones the first.

        The ``tables`` ``(rows, 4)`` int64, of rows below `LONG` and of others, are never changed. Columns: a row's
        start, length, entries to select, and their place in the result ``(entries,)``.
        """

    def write_int8(self, messages: np.ndarray, values: Array, short: bool) -> tuple[Array, Array]:
        """Write complete ``messages``, a table of `MESSAGE`, with ``values`` ``(n,)`` float32 as of `to_int8`.

        A complete message has every index of its region. Return the buffer ``(bytes,)`` uint8, and the later result of
        `read_int8`.
        """

    def read_int8(self, messages: np.ndarray, buffer: Array, size: int) -> tuple[Array, Array]:
        """Invert `write_int8`: return indices of a vector of length ``size``, and values ``(n,)`` float32."""


class HostKernels(Kernels, Protocol):
    """A kernel set for host memory, with contents that the host can check without waiting.

    Its `read_messages` raises `MalformedMessage` if a message's numbers of indices and entries differ.
    """

    def accumulate_select(
        self, residual: Array, gradient: Array, threshold: int, most: int
    ) -> tuple[Array, Array] | None:
        """Add all of ``gradient`` to the contiguous ``residual`` in place, and `select` from the sum, in one pass."""

    def select_standardized(
        self, x: Array, squares: Array, threshold: int, most: int, add: Array | None = None
    ) -> tuple[Array, Array] | None:
        """Return `select` of ``standardized(x, squares)``, in one pass that allocates no n entries.

        ``add`` is first added to the contiguous ``x`` in place, as in `accumulate_select`.
        """

    def histogram(self, x: Array, shift: int, prefix: int, width: int) -> Array:
        """Count entries with ``bits >> shift == prefix`` by the ``width`` bits that follow: ``(2**width,)`` int64."""

    def misplaced(self, indices: Array, counts: np.ndarray, regions: np.ndarray, beyond: int) -> int:
        """Return the first message that fails `check_indices`, with its arguments; -1: none."""

    def sizes(
        self, entries: np.ndarray, regions: np.ndarray, counted: bool, together: int, code: int, block: int
    ) -> np.ndarray:
        """Return ``numbers``, ``codes`` and ``blocks`` of `lay_out` as ``(3, m)`` int64.

        Args:
            entries: entries of each message, see `lay_out`.
            regions: regions of the messages, see `lay_out`.
            counted: True: numbers of entries are sent.
            together: entries that share a code.
            code: bytes of a code.
            block: entries that share a scale; 0 if there are no scales.
        """

    def edges(self, messages: np.ndarray, block: int) -> np.ndarray:
        """Return the edges ``(b + 1,)`` int64 of blocks of ``block`` entries; each message begins a new block."""

    def numbers(
        self, buffer: np.ndarray, lengths: np.ndarray, regions: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Read the numbers of entries ``(m,)`` of messages of ``lengths`` that begin at ``starts``.

        Return also the first message without room for its number, or with more entries than its region; -1: none is.
        """

    def lay_out(
        self,
        entries: np.ndarray,
        regions: np.ndarray,
        numbers: np.ndarray,
        codes: np.ndarray,
        blocks: np.ndarray,
        tail: int = 0,
        scale_bytes: int = 4,
    ) -> np.ndarray:
        """Return the starts of all sections of consecutive messages: a table ``(m,)`` of `MESSAGE`.

        Args:
            entries: ``(m,)`` int64 on the host, as all arrays here: entries of each message.
            regions: ``(m, 2)``, start and stop of each message's region. A stop may have wrapped around.
            numbers: bytes of the number of entries of a message with any.
            codes: bytes of the codes of each message; 0 without entries.
            blocks: scales of each message; 0 without entries.
            tail: bytes that the caller will write at the end of each message with entries.
            scale_bytes: bytes of a scale; 2 omits the lower two bytes, which must be 0.
        """
