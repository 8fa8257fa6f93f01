"""Tables in Markdown, from docstrings and numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence


def document(thing: object) -> str:
    """Return the docstring of a module or class, in one line."""
    return " ".join((inspect.getdoc(thing) or "").split())


def first_sentence(thing: object) -> str:
    """Return the first sentence of its docstring, without the full stop."""
    return re.split(r"\.(?: |$)", document(thing), maxsplit=1)[0]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of ``rows``, of which the second says how columns are aligned."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
