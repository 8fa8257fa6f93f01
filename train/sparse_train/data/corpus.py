"""Documents of Wikipedia, and any documents as one array of pieces, cut into runs; every 20th document is for the test.

A dump (https://dumps.wikimedia.org, ``enwiki-latest-pages-articles.xml.bz2``) becomes a folder of files by
https://github.com/attardi/wikiextractor.
"""

from __future__ import annotations

import bz2
import html
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_mpi.comm import Comm
from sparse_train.data.reference import Document
from sparse_train.data.vocabulary import WordPiece

HEAD = re.compile(r'<doc [^>]*?title="(?P<title>.*)">$')
TAIL = "</doc>"


def wikipedia(folder: Path) -> Iterator[Document]:
    """Yield the documents under ``folder``, file by file in the order of their paths, with white space collapsed.

    Names and first lines of files tell their format: ``AA/wiki_00`` and so on with ``<doc ...>`` before a
    document and ``</doc>`` after it, or with a JSON object a line, possibly compressed as ``wiki_00.bz2``;
    ``*.txt`` with blank lines between documents. Documents without text are left out.

    Raises FileNotFoundError: there are no such files; ValueError: a file is damaged.
    """
    paths = sorted(p for pattern in ("wiki_*", "*.txt") for p in folder.rglob(pattern) if p.is_file())
    if not paths:
        raise FileNotFoundError(
            f"no files wiki_* or *.txt under {folder}; expected the folder that WikiExtractor wrote "
            "(https://github.com/attardi/wikiextractor) or text files with blank lines between documents: name it "
            "with --data-dir, or take --data python-reference, which is always there"
        )
    for path in paths:
        try:
            for title, text in _read(path):
                if words := text.split():
                    yield Document(title, " ".join(words))
        except (EOFError, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}); extract it again") from None


def _read(path: Path) -> Iterator[tuple[str, str]]:
    opened = bz2.open(path, "rt", encoding="utf-8") if path.suffix == ".bz2" else path.open(encoding="utf-8")
    with opened as lines:
        first = next((line for line in lines if not line.isspace()), "")
        rest = chain([first], lines)
        if path.name.startswith("wiki_") and first.startswith("{"):
            yield from _from_json(rest, path)
        elif path.name.startswith("wiki_") and first:
            yield from _from_tags(rest, path)
        else:
            yield from _from_plain(rest, path.stem)


def _from_tags(lines: Iterator[str], path: Path) -> Iterator[tuple[str, str]]:
    """Yield title and text of documents between tags, without the first line, which repeats the title."""
    for line in lines:
        if line.isspace():
            continue
        head = HEAD.match(line.rstrip())
        if head is None:
            raise ValueError(f"{path}: expected <doc id=... url=... title=...>, got {line[:60]!r}; extract it again")
        body = []
        for line in lines:
            if line.rstrip() == TAIL:
                break
            body.append(line)
        else:
            raise ValueError(f"{path} ends within the document {head['title']!r}, without {TAIL}; extract it again")
        title = html.unescape(head["title"])
        text = html.unescape("".join(body)).lstrip()
        yield title, text.removeprefix(f"{title}\n")


def _from_json(lines: Iterator[str], path: Path) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.isspace():
            continue
        try:
            article = json.loads(line)
            yield html.unescape(article["title"]), html.unescape(article["text"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f'{path}: expected an object with "title" and "text" a line, got {line[:60]!r} ({error!r}); '
                "extract it again"
            ) from None


def _from_plain(lines: Iterator[str], title: str) -> Iterator[tuple[str, str]]:
    body: list[str] = []
    for line in chain(lines, ["\n"]):
        if not line.isspace():
            body.append(line)
        elif body:
            yield title, "".join(body)
            body = []


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

    Raises ValueError: fewer than 2 documents for the test, or for training.
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
