"""The arguments of the collectives: checked, compared between ranks, and made ready for messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.arrays import to_host
from sparse_mpi.checks import meant
from sparse_mpi.collectives import inline
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.choice import FEW, USUAL
from sparse_mpi.collectives.device import HostInput
from sparse_mpi.collectives.dictionary import Dictionary
from sparse_mpi.collectives.entries import Entries, canonical, combined
from sparse_mpi.collectives.kinds import InputAdapter, adapt, plain_type
from sparse_mpi.collectives.messages import Format, codec_of
from sparse_mpi.collectives.operations import named, operation
from sparse_mpi.collectives.ownership import SAMPLES, WORDS
from sparse_mpi.collectives.strings import STRINGS, WIDE, StringKeys, type_of_all
from sparse_mpi.collectives.wide import WideKeys
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import same_on_all_ranks
from sparse_mpi.comm.network import Network
from sparse_mpi.comm.quantiles import Pool, pool_of, told
from sparse_mpi.wire import BitPacked

AUTO, FITTED = "auto", "fitted"
ZEROS = ("keep", "drop")
HEAD = 3  # words that tell of types and widths, before those of a pool


class Ready(NamedTuple):
    """The input of a collective, once all ranks have good and equal arguments."""

    op: np.ufunc
    entries: Entries
    pool: Pool
    form: Format
    few: tuple[Entries, np.ndarray] | None  # all ranks' entries, as `gathered`, where they came with the arguments
    words: np.ndarray  # (P,) that those take; too many where it was not counted
    adapter: InputAdapter
    dictionary: Dictionary | None  # of keys that are strings or pairs

    def leave(self, results: list[Entries], ranges: np.ndarray) -> list[Any]:
        """Return results as the kind of data that was given. Collective where keys are strings.

        ``ranges`` ``(P, 2)`` int64 are the smallest and the largest key that results of each rank may have.
        """
        if self.dictionary is not None:
            strings, first = self.dictionary.strings(ranges), ranges[self.dictionary.rank, 0]
            results = [Entries(strings[entries.keys - first], entries.values) for entries in results]
        return [self.adapter.leave(entries._replace(values=canonical(entries.values))) for entries in results]

    @property
    def everywhere(self) -> np.ndarray:
        """Return the `ranges` of `leave` where every rank has all keys."""
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
) -> Ready:
    """Check arguments, and learn how many entries the ranks have and where. Collective: one allgather of control.

    Where keys are strings, a dictionary numbers them first, and a second allgather tells where the numbers are.
    """
    agreement = same_on_all_ranks(transport, HEAD + WORDS + inline.room(transport))
    with agreement as say:
        mine, op = adapt(source.read()), named(op)
        if zeros not in ZEROS:
            raise ValueError(f"zeros must be {' or '.join(map(repr, ZEROS))}, got {zeros!r}")
        if algorithm not in (AUTO, *ALGORITHMS):
            names = AUTO, *ALGORITHMS
            raise ValueError(f"algorithm must be one of {', '.join(names)}, got {algorithm!r}{meant(algorithm, names)}")
        if not isinstance(network, Network) and network != FITTED:
            raise TypeError(f"network must be a Network, such as Network.of(25, 2), or {FITTED!r}, got {network!r}")
        if not isinstance(root, (int, np.integer)) or not 0 <= root < transport.size:
            raise ValueError(f"root must be a rank in [0, {transport.size}), got {root!r}")
        # The type of a dict's numbers depends on other ranks; its keys are distinct, so that nothing is combined yet.
        ufunc = np.add if mine.plain is not None else operation(op, mine.values.dtype)
        if mine.plain is None:
            codec_of(wire, ufunc, mine.values.dtype)
        entries = combined(mine.keys, mine.values, ufunc)
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
    types, widths, rows, few = *table[:, 1:HEAD].T, table[:, HEAD:], table[:, HEAD + WORDS :]
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
        ufunc = operation(op, dtype)  # which raises on all ranks or on none
    form = Format(dtype, shape, pool.span, codec_of(wire, ufunc, dtype))
    words *= form.codec.lossless  # rounded values go in messages
    inline.expect(transport, words)
    return Ready(ufunc, entries, pool, form, all_of_them if form.codec.lossless else None, words, mine, dictionary)


def _tell(words: np.ndarray, mine: InputAdapter, entries: Entries, comm: Comm) -> None:
    width = inline.write(entries, words[HEAD + WORDS :])
    words[:HEAD] = mine.type, mine.plain or 0, width
    words[HEAD : HEAD + WORDS] = told(entries.keys, SAMPLES, comm.rank)
