"""What a launcher prints on stderr, passed on as it comes but for its banners: one line says how the job ended."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Sequence

RULE = re.compile(rb"-{70,}\r?\n")  # above and below a banner
LONGEST = 40  # lines of a banner
HELD = 0.5  # seconds after which an unfinished one is no banner, but output of the program

Banners = Sequence[tuple[str, str]]  # pattern, and template of the line that replaces what matches; "" for none


class Filter:
    """Replaces banners, blocks of lines between two rules, in a stream of bytes; all else passes unchanged at once.

    Args:
        banners: what to look for, and what to say in its place, as `re.Match.expand` has it.
    """

    def __init__(self, banners: Banners) -> None:
        self._banners = [(re.compile(pattern, re.DOTALL), said) for pattern, said in banners]
        self._block: list[bytes] = []  # lines of what may be a banner
        self._line = b""  # the beginning of a line that may be a rule
        self._inside = False  # the beginning of the line has passed already

    @property
    def holds(self) -> bool:
        """Return True if there are bytes that have not passed yet."""
        return bool(self._block or self._line)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return those that pass."""
        passed = b""
        *lines, rest = (self._line + data).split(b"\n")
        self._line = b""
        for line in lines:
            passed += self._take(line + b"\n")
        if rest and (self._inside or not (self._block or rest.strip(b"-") == b"")):
            self._inside = True
            return passed + rest
        self._line = rest
        return passed

    def flush(self) -> bytes:
        """Return all bytes that are held."""
        held = b"".join(self._block) + self._line
        self._inside = self._inside or bool(self._line)
        self._block, self._line = [], b""
        return held

    def _take(self, line: bytes) -> bytes:
        """Take a whole line, or the end of one, and return what passes."""
        inside, self._inside = self._inside, False
        is_rule = not inside and RULE.fullmatch(line) is not None
        if not self._block:
            if is_rule:
                self._block = [line]
                return b""
            return line
        self._block.append(line)
        if is_rule:
            return self._replaced()
        return self.flush() if len(self._block) > LONGEST else b""

    def _replaced(self) -> bytes:
        """Return what is said in place of the block that is complete now."""
        text = b"".join(self._block)
        for pattern, said in self._banners:
            if found := pattern.search(text.decode(errors="replace")):
                self._block = []
                return f"{found.expand(said)}\n".encode() if said else b""
        return self.flush()


def relay(source: int, target: int, banners: Banners) -> None:
    """Pass all bytes of the file descriptor ``source`` to ``target`` until its end, but for banners."""
    through = Filter(banners)
    while True:
        ready = select.select([source], [], [], HELD if through.holds else None)[0]
        data = os.read(source, 1 << 16) if ready else b""
        passed = through.feed(data) if data else through.flush()
        while passed:
            passed = passed[os.write(target, passed) :]
        if ready and not data:
            return
