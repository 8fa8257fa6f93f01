"""Documents as one array of pieces, cut into runs for a model to read; every 20th document is for the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from sparse_mpi.comm import Comm
from sparse_train.data.reference import Document
from sparse_train.data.wordpiece import WordPiece

EVERY = 20  # documents 0, 20, 40 and so on are the test part
MIN_RUN_PIECES = 8  # a shorter run is left out
AT_ONCE = 1000  # documents that are cut into pieces together


def is_test(number: np.ndarray) -> np.ndarray:
    """Return whether the documents of these numbers are for the test, (any,) bool."""
    return number % EVERY == 0


class Corpus(NamedTuple):
    """N pieces in R runs, each of one document and in document order; the same on all ranks."""

    pieces: np.ndarray  # (N,) uint16, or int32 with a vocabulary beyond that
    begins: np.ndarray  # (R,) int64: where a run begins in ``pieces``
    ends: np.ndarray  # (R,) int64
    document: np.ndarray  # (R,) int64: the number of its document

    def run(self, number: int) -> np.ndarray:
        """Return the pieces of a run."""
        return self.pieces[self.begins[number] : self.ends[number]]


def encoded(documents: Iterable[Document], wordpiece: WordPiece, comm: Comm) -> tuple[np.ndarray, np.ndarray]:
    """Encode every ``comm.size``-th of ``documents``; return their pieces one after the other, and their lengths."""
    kind = np.dtype(np.uint16 if len(wordpiece.vocabulary) <= 1 << 16 else np.int32)
    share = islice(documents, comm.rank, None, comm.size)
    found = []
    while texts := [document.text for document in islice(share, AT_ONCE)]:
        found += [pieces.ids.astype(kind) for pieces in wordpiece.encode(texts)]
    return np.concatenate([np.empty(0, kind), *found]), np.array([len(ids) for ids in found], np.int64)


def gathered(pieces: np.ndarray, lengths: np.ndarray, longest: int, comm: Comm) -> Corpus:
    """Gather what all ranks encoded, in runs of at most ``longest`` pieces; collective.

    A longer document is cut into as few runs as possible, of about equal length.

    Raises:
        ValueError: fewer than 2 documents for the test, or for training.
    """
    pieces, _ = comm.allgatherv(pieces)
    lengths, counts = comm.allgatherv(lengths)
    numbers = np.concatenate([np.arange(count) * comm.size + rank for rank, count in enumerate(counts)])
    runs = -(-lengths // longest)
    owner = np.repeat(np.arange(len(lengths)), runs)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(runs) - runs, runs)
    start = (np.cumsum(lengths) - lengths)[owner]
    begins = start + lengths[owner] * part // runs[owner]
    ends = start + lengths[owner] * (part + 1) // runs[owner]
    long_enough = np.flatnonzero(ends - begins >= MIN_RUN_PIECES)
    long_enough = long_enough[np.argsort(numbers[owner[long_enough]], kind="stable")]
    corpus = Corpus(pieces, begins[long_enough], ends[long_enough], numbers[owner[long_enough]])
    used = np.unique(corpus.document)
    if min(is_test(used).sum(), (~is_test(used)).sum()) < 2:
        raise ValueError(
            f"{len(used)} documents of {MIN_RUN_PIECES} pieces or more are too few: at least 2 are needed for training "
            f"and 2 for the test, which gets every {EVERY}th"
        )
    return corpus


def training(documents: Iterable[Document]) -> Iterator[Document]:
    """Return those of ``documents`` that are not for the test."""
    return (document for number, document in enumerate(documents) if number % EVERY)
