"""Arguments of the collectives: checked, compared between ranks, and made ready for messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.algorithms.quantiles import Pool, pool_of, told
from sparse_mpi.arrays import describe, to_host
from sparse_mpi.checks import check_choice
from sparse_mpi.collectives import inline
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.choice import FEW, USUAL
from sparse_mpi.collectives.device import HostInput
from sparse_mpi.collectives.dictionary import Dictionary
from sparse_mpi.collectives.entries import Entries, canonical, combined
from sparse_mpi.collectives.kinds import InputAdapter, adapt, plain_type
from sparse_mpi.collectives.messages import Format, codec_of
from sparse_mpi.collectives.network import Network
from sparse_mpi.collectives.operations import WRAPPING, check_exact, may_wrap, named, operation
from sparse_mpi.collectives.ownership import SAMPLES, WORDS
from sparse_mpi.collectives.strings import STRINGS, WIDE, StringKeys, type_of_all
from sparse_mpi.collectives.wide import WideKeys
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.wire import BitPacked

AUTO, FITTED = "auto", "fitted"
ZEROS = ("keep", "drop")
HEAD = 4  # words of types and widths, before a pool's


class Ready(NamedTuple):
    op: np.ufunc
    entries: Entries
    pool: Pool
    form: Format
    few: tuple[Entries, np.ndarray] | None  # all ranks' entries, as `gathered`, where they travelled with the arguments
    words: np.ndarray  # (P,) size of these entries; too large where not counted
    adapter: InputAdapter
    dictionary: Dictionary | None  # dictionary of keys that are strings or pairs
    watched: bool  # True: integers may leave the range of their type

    def exact(self, run: Callable[[Ready], Entries], comm: Comm) -> Entries:
        """Return ``run`` of this call; all ranks raise ValueError if integers have wrapped around."""
        found = run(self)
        if self.watched:
            few = self.few and (_as_floats(self.few[0]), self.few[1])
            form = replace(self.form, dtype=np.dtype(np.float64))
            with np.errstate(all="ignore"):
                floats = run(self._replace(entries=_as_floats(self.entries), form=form, few=few)).values
            with same_on_all_ranks(comm):
                check_exact(found.values, floats, self.op)
        return found

    def leave(self, results: list[Entries], ranges: np.ndarray) -> list[Any]:
        """Return results in the caller's kind of data. Collective where keys are strings.

        ``ranges`` ``(P, 2)`` int64 are the smallest and largest possible keys of each rank's results.
        """
        if self.dictionary is not None:
            strings, first = self.dictionary.strings(ranges), ranges[self.dictionary.rank, 0]
            results = [Entries(strings[entries.keys - first], entries.values) for entries in results]
        return [self.adapter.leave(entries._replace(values=canonical(entries.values))) for entries in results]

    @property
    def everywhere(self) -> np.ndarray:
        """Return the ``ranges`` of `leave` where every rank has all keys."""
        return np.tile(self.pool.range, (len(self.pool.counts), 1))


def ready(
    source: HostInput,
    op: object,
    transport: Comm,
    zeros: str,
    algorithm: str = AUTO,
    root: int = 0,
    network: Network | str = USUAL,
    wire: str | BitPacked | None = None,
    tell: object = None,
) -> Ready:
    """Check arguments; agree on numbers of entries and the keys' range. Collective: one allgather of control.

    A dictionary numbers strings first, and a second allgather gathers the numbers' range.
    """
    agreement = same_on_all_ranks(transport, HEAD + WORDS + inline.room(transport))
    with agreement as say:
        mine, op = adapt(source.read()), named(op)
        check_choice("zeros", zeros, ZEROS)
        if tell is not None and not callable(tell):
            raise TypeError(f"tell must be a function of a Choice, or None, got {describe(tell)}")
        check_choice("algorithm", algorithm, (AUTO, *ALGORITHMS))
        if not isinstance(network, Network) and not (isinstance(network, str) and network == FITTED):
            raise TypeError(f"network must be a Network, such as Network.of(25, 2), or {FITTED!r}, got {network!r}")
        if not isinstance(root, (int, np.integer)) or not 0 <= root < transport.size:
            raise ValueError(f"root must be a rank in [0, {transport.size}), got {root!r}")
        # The type of a dict's numbers depends on other ranks; its keys are distinct, so that nothing is combined yet.
        ufunc = np.add if mine.plain is not None else operation(op, mine.values.dtype)
        if mine.plain is None:
            codec_of(wire, ufunc, mine.values.dtype)
        entries = combined(mine.keys, mine.values, ufunc)
        if len(entries.keys) < len(mine.keys) and ufunc in WRAPPING and may_wrap(mine.values, op, len(mine.keys)):
            with np.errstate(all="ignore"):
                floats = combined(mine.keys, mine.values.astype(np.float64), ufunc)
            check_exact(entries.values, floats.values, ufunc)
        agreement.flag = may_wrap(entries.values, op, transport.size)
        say(memory=source.memory, **mine.facts, op=getattr(op, "__name__", op), zeros=zeros)
        say(algorithm=algorithm, root=root, network=network, wire=wire)
        _tell(agreement.words, mine, entries, transport)
    table: np.ndarray = agreement.rows
    dictionary: Dictionary | None = None
    kind = type_of_all(table[:, 0], mine.type, transport)
    if kind in (*STRINGS, WIDE):
        dictionary = Dictionary(mine.strings, WideKeys() if kind == WIDE else StringKeys(kind), transport)
        entries = entries._replace(keys=dictionary.numbers)
        _tell(agreement.words, mine, entries, transport)
        table = to_host(transport.allgather(agreement.words, control=True))
    # Read the table: how many entries they have and where, and the entries themselves if they are few.
    mine.words.extend(table[:, 3].tolist())
    types, widths, rows, few = *table[:, 1:3].T, table[:, HEAD:], table[:, HEAD + WORDS :]
    pool, dtype, shape = pool_of(rows[:, :WORDS]), entries.values.dtype, entries.values.shape[1:]
    dtypes = {own: plain_type(own) if own else dtype for own in set(types.tolist())}
    each, all_of_them = inline.Announced(pool.counts, rows[:, 1:3], types, widths, dtypes, shape), None
    words = -(-each.lengths() // 8) if pool.counts.sum() <= FEW else np.array([inline.APART + 1])
    if words.max() <= few.shape[1]:
        all_of_them = inline.read(few, each)
    if mine.plain is not None:
        dtype = plain_type(types.max())
        entries = entries._replace(values=entries.values.astype(dtype))
        if all_of_them is not None:
            all_of_them = all_of_them[0]._replace(values=all_of_them[0].values.astype(dtype)), pool.counts
        ufunc = operation(op, dtype)  # raises on all ranks or on none
    form = Format(dtype, shape, pool.span, codec_of(wire, ufunc, dtype))
    words *= form.codec.lossless  # rounded values go in messages
    inline.expect(transport, words)
    few_of_all = all_of_them if form.codec.lossless else None
    watched = agreement.flag and dtype.kind in "iu" and ufunc in WRAPPING
    return Ready(ufunc, entries, pool, form, few_of_all, words, mine, dictionary, watched)


def _as_floats(entries: Entries) -> Entries:
    return entries._replace(values=entries.values.astype(np.float64))


def _tell(words: np.ndarray, mine: InputAdapter, entries: Entries, comm: Comm) -> None:
    width = inline.write(entries, words[HEAD + WORDS :])
    words[:HEAD] = mine.type, mine.plain or 0, width, mine.word
    words[HEAD : HEAD + WORDS] = told(entries.keys, SAMPLES, comm.rank)
