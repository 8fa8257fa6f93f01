"""Progress of long work: a bar on a terminal, a line now and then in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from time import monotonic, time
from typing import Any, TextIO, TypeVar

from sparse_mpi.comm.job.launcher import told_terminal

T = TypeVar("T")
EVERY = 30.0  # seconds from one line in a file to the next, of work that takes minutes; less before, from `SOON` on
SOON = 5.0
BETWEEN = 0.5  # seconds from one look of a bar to the next, at least
FIRST = 3.0  # seconds until the first one
FORMAT = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def terminal() -> TextIO | None:
    """Return the terminal that shows stderr, directly or as `run` tells of its own; None where a file has it."""
    if sys.stderr.isatty():
        return sys.stderr
    with suppress(OSError):
        return told_terminal()
    return None


class Bar:
    """Progress over ``total`` steps, if it is to be ``shown`` by this rank.

    On a terminal it is a bar no wider than that; leaving a ``with`` block removes it unless it is to ``stay``. In a
    file, or without tqdm, it is a line every `EVERY` seconds, and one at the end if it stays.
    """

    def __init__(self, total: int | None, title: str, shown: bool = True, initial: int = 0, stay: bool = False) -> None:
        self._bar: Any = None
        if shown and (screen := terminal()):
            look: dict[str, Any] = {"dynamic_ncols": True, "mininterval": BETWEEN, "leave": stay}
            with suppress(ImportError):
                from tqdm import tqdm

                form = FORMAT if total else None
                self._bar = tqdm(total=total, desc=f"{title}: ", initial=initial, file=screen, bar_format=form, **look)
        self.shown, self._stays = shown, stay
        self._total, self._done, self._title, self._beside = total, initial, title, ""
        self._began, self._next = monotonic(), monotonic() + FIRST
        self._lines = shown and self._bar is None  # are printed
        self._told = True  # the last line says how far the work is

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start_at(self, step: int) -> None:
        """Count from ``step`` on, as a run that is resumed does."""
        self._done = step
        if self._bar is not None:
            self._bar.initial = self._bar.n = step

    def update(self, steps: int = 1) -> None:
        self._done += steps
        self._told = False
        if self._bar is not None:
            self._bar.update(steps)
        elif self._lines and monotonic() >= self._next:
            self._line()

    def title(self, text: str) -> None:
        self._title = text
        if self._bar is not None:
            self._bar.set_description(text, refresh=False)

    def say(self, text: str, refresh: bool = True) -> None:
        """Show ``text`` beside the bar until there is another one; an empty text removes it."""
        self._beside = f", {text}" if text else ""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=refresh)
        elif self._lines and monotonic() >= self._next:
            self._line()

    def write(self, text: str, file: TextIO | None = None) -> None:
        """Print a line to ``file``, by default stdout, in place of the bar, which comes back after it."""
        if self._bar is not None:
            self._bar.clear()
            self._bar.last_print_t = time()  # a launcher may take a while to show the line
        print(text, file=file, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._lines and self._stays and not self._told:
            self._line()

    def _line(self) -> None:
        now = monotonic()
        count = f"{self._done}/{self._total}" if self._total else str(self._done)
        print(f"{self._title}: {count} after {now - self._began:.0f} s{self._beside}", file=sys.stderr, flush=True)
        self._next, self._told = now + min(EVERY, max(SOON, (now - self._began) / 4)), True


def progress(items: Iterable[T], title: str, shown: bool = True, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` while a `Bar` shows how many of ``total`` are done, if it is to be ``shown`` by this rank."""
    with Bar(len(items) if isinstance(items, Sized) else total, title, shown) as bar:
        for item in items:
            yield item
            bar.update()
