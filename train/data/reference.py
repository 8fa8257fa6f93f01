"""The Python Language Reference, 460 kB of technical English in some 80 topics, which every Python brings along."""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """A text with a title."""

    title: str
    text: str


def documents() -> list[Document]:
    """The topics, sorted by title; they differ a little from one version of Python to the next.

    Raises:
        ImportError: this Python was installed without its documentation.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ImportError(
            "the data set python-reference is the module pydoc_data.topics, which this Python was installed without; "
            "take another --data"
        ) from None
    return [Document(title, " ".join(topics[title].split())) for title in sorted(topics)]
