"""Progress bars on long work: in a terminal, where there is tqdm."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], title: str, shown: bool = True) -> Iterable[T]:
    """``items`` behind a bar, if it is to be ``shown`` by this rank."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, disable=not shown or not sys.stderr.isatty(), leave=False, desc=title)
