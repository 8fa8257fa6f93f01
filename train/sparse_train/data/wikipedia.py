"""Wikipedia as text: folders that WikiExtractor wrote, with or without its --json, or plain text files.

A dump (https://dumps.wikimedia.org, ``enwiki-latest-pages-articles.xml.bz2``) becomes such a folder by
https://github.com/attardi/wikiextractor.
"""

from __future__ import annotations

import bz2
import html
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sparse_train.data.reference import Document

HEAD = re.compile(r'<doc [^>]*?title="(?P<title>.*)">$')
TAIL = "</doc>"


def documents(folder: Path) -> Iterator[Document]:
    """Yield the documents under ``folder``, file by file in the order of their paths, with white space collapsed.

    Names and first lines of files tell their format: ``AA/wiki_00`` and so on with ``<doc ...>`` before a
    document and ``</doc>`` after it, or with a JSON object a line, possibly compressed as ``wiki_00.bz2``;
    ``*.txt`` with blank lines between documents. Documents without text are left out.

    Raises:
        FileNotFoundError: there are no such files.
        ValueError: a file is damaged.
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
