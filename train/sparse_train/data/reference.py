"""The Python Language Reference, 350 kB of technical English in some 80 topics, which every Python brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

PARAGRAPHS = re.compile(r"\n\s*\n")
SENTENCES = re.compile(r'(?<=[.:!?]) +(?=[A-Z"])')


class Document(NamedTuple):
    """A text with a title."""

    title: str
    text: str


def documents() -> list[Document]:
    """Return the topics, sorted by title; they differ a little from one version of Python to the next.

    Topics repeat each other, and two are the same. Each sentence stays in the first topic that has it: a test on some
    topics must not ask for what was learned by heart from others. A topic without sentences of its own is left out.

    Raises ImportError: this Python was installed without its documentation.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ImportError(
            "the data set python-reference is the module pydoc_data.topics, which this Python was installed without; "
            "take another --data"
        ) from None
    first: dict[str, str] = {}  # by sentence: the topic it is in
    for title in sorted(topics):
        for part in parts(topics[title]):
            first.setdefault(part, title)
    return [Document(title, " ".join(own)) for title, own in groupby(first, first.__getitem__)]


def parts(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` without line breaks; the end of a paragraph, or a heading, ends a sentence."""
    for paragraph in PARAGRAPHS.split(text):
        yield from filter(None, SENTENCES.split(" ".join(paragraph.split())))
