"""Progress bars on long work: in a terminal, where there is tqdm."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Bar:
    """A bar for ``total`` steps, if it is to be ``shown`` by this rank; leaving a ``with`` block removes it.

    Without a terminal or tqdm it shows nothing; ``visible`` tells.
    """

    def __init__(self, total: int | None, title: str, shown: bool = True) -> None:
        self._bar = _tqdm(total=total, desc=title) if shown else None
        self.visible = self._bar is not None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, steps: int = 1) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.update(steps)

    def say(self, text: str) -> None:
        """Show ``text`` beside the bar until there is another one; an empty text removes it."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)


def progress(items: Iterable[T], title: str, shown: bool = True) -> Iterable[T]:
    """Return ``items`` behind a bar, if it is to be ``shown`` by this rank."""
    bar = _tqdm(iterable=items, desc=title) if shown else None
    return items if bar is None else bar


def _tqdm(**options: Any) -> Any:
    """Return a tqdm bar that goes when it is done, or None where there is no terminal or no tqdm."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(leave=False, **options)
