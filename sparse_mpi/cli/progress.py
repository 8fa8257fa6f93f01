"""Progress of long work: one line renewed on a terminal, or a line now and then in a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sized
from threading import Event, RLock, Thread
from time import monotonic
from typing import TextIO, TypeVar
from weakref import ref

T = TypeVar("T")
EVERY = 30.0  # seconds from one line in a file to the next, of work that takes minutes
SOON = 4.5  # likewise, in the first minute
FIRST = 3.0  # seconds until the first one
BETWEEN = 0.5  # seconds from one look of a terminal to the next, and from one look at the clock while no step ends
CLEARED = "\r\x1b[K"  # begins the line of a terminal anew


class Bar:
    """Progress over ``total`` steps, ``done`` so far; only ranks with ``shown`` print it.

    A terminal has one line, cut to its width, gone after a ``with`` block. A file has a line every `SOON` seconds,
    later every `EVERY`, also while no step ends.
    """

    def __init__(self, total: int | None, title: str, shown: bool = True, done: int = 0) -> None:
        self.shown, self._anew = shown, shown and sys.stderr.isatty()
        self._total, self._done, self._title, self._beside = total, done, title, ""
        self._began = monotonic()
        self._next = self._began + (0 if self._anew else FIRST)
        self._printing, self._ended = RLock(), Event()
        if shown:
            Thread(target=_keep_showing, args=(ref(self), self._ended), daemon=True).start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def title(self, text: str) -> None:
        self._title = text

    def update(self, steps: int = 1) -> None:
        self._done += steps
        self.show()

    def say(self, text: str) -> None:
        """Show ``text`` beside the count until the next one; an empty text removes it."""
        self._beside = f", {text}" if text else ""
        self.show()

    def write(self, text: str, file: TextIO | None = None) -> None:
        """Print a line to ``file``, by default stdout, in place of the terminal's line, which comes back."""
        with self._printing:
            self._clear()
            print(text, file=file, flush=True)

    def close(self) -> None:
        with self._printing:
            self._ended.set()
            self._clear()

    def _clear(self) -> None:
        if self._anew:
            print(CLEARED, end="", file=sys.stderr, flush=True)

    def show(self) -> None:
        """Print the line if it is due."""
        now = monotonic()
        if not self.shown or now < self._next:
            return
        with self._printing:
            if now < self._next or self._ended.is_set():
                return
            count = f": {self._done}/{self._total}" if self._total else f": {self._done}" if self._done else ""
            text = f"{self._title}{count} after {now - self._began:.0f} s{self._beside}"
            if self._anew:
                text = CLEARED + text[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
            print(text, end="" if self._anew else "\n", file=sys.stderr, flush=True)
            self._next = now + (BETWEEN if self._anew else min(EVERY, max(SOON, (now - self._began) / 12)))


def _keep_showing(bar: ref[Bar], ended: Event) -> None:
    while not ended.wait(BETWEEN) and (shown := bar()) is not None:
        shown.show()
        del shown  # or the bar would never end


def progress(items: Iterable[T], title: str, shown: bool = True, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` beside a `Bar` of the ``total``, which prints if ``shown``."""
    with Bar(len(items) if isinstance(items, Sized) else total, title, shown) as bar:
        for item in items:
            yield item
            bar.update()
