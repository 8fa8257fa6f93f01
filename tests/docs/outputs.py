"""Compare what a block printed with what its page shows."""

from __future__ import annotations

import re
from textwrap import indent

TAB = " " * 4
NUMBER = r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"


def difference(shown: str, printed: str, percent: float = 0.0) -> str | None:
    """Return how ``printed`` differs from what is ``shown``, None if it does not.

    Args:
        shown: what the page has; ``...`` stands for anything.
        printed: what came; blanks at the ends of lines, and empty lines at both ends, do not count.
        percent: how far a number may be off.
    """
    shown, printed = tidy(shown), tidy(printed)
    pattern = NUMBER if percent else r"(?!)"
    parts = re.split(rf"({pattern}|\.\.\.)", shown)
    found = re.fullmatch("".join(_part(part, percent) for part in parts), printed, re.DOTALL)
    near = found and all(
        abs(number(came) - number(wanted)) <= percent / 100 * abs(number(wanted))
        for wanted, came in zip([part for part in parts[1::2] if part != "..."], found.groups(), strict=True)
    )
    if near:
        return None
    return f"the page shows\n\n{indent(shown, TAB)}\n\nand this was printed:\n\n{indent(printed, TAB)}"


def _part(part: str, percent: float) -> str:
    """Return the pattern of a part of what is shown: a number, anything, or itself."""
    if part == "...":
        return ".*?"
    if percent and re.fullmatch(NUMBER, part):
        return f"({NUMBER})"
    return re.escape(part)


def number(text: str) -> float:
    """Return the number that ``text`` is, with commas between thousands or without."""
    return float(text.replace(",", ""))


def tidy(text: str) -> str:
    """Return ``text`` without blanks at the ends of lines and empty lines at both ends."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
