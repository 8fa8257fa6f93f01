"""Rates of links as text: ``1gbit`` as tc has it, ``25 Gbit/s`` or ``25Gb/s`` as people write it."""

from __future__ import annotations

import re
from math import inf

from sparse_mpi.cli.values import checked

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
PREFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)}
GRAMMAR = re.compile(r"(\d+\.?\d*)\s*((?:[kmgt]i?)?)(bits?(?:/s)?|b/s|bps)", re.IGNORECASE)
LEAST, MOST = 1_000_000, 100_000_000_000


def parse(text: str) -> int | None:
    """Return the bits a second of a rate that can be emulated; None for ``none``, no limit.

    Raises ValueError: no rate, or one that cannot be emulated.
    """
    if text == "none":
        return None
    found = bits(text)
    if not LEAST <= found <= MOST:
        raise ValueError(f"rate must be between 1mbit and 100gbit, got {text}; none sets no limit")
    return found


def bits(text: str) -> int:
    """Return the bits a second of a rate, as ``1gbit``, ``25Gb/s`` or ``12.5MB/s``.

    Raises ValueError: no rate.
    """
    match = GRAMMAR.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"rate must be a number with a unit such as 1gbit, 25Gb/s or 12.5MB/s, or none, got {text!r}")
    number, prefix, unit = match.groups()
    if unit.lower() == "bps":
        raise ValueError(
            f"rate must say bits or bytes, as in {number}{prefix}bit or {number}{prefix}B/s, got {text!r}: bps are "
            "bytes for tc, and bits elsewhere"
        )
    found = float(number) * PREFIXES[prefix.lower()] * (8 if unit.startswith("B/") else 1)
    if not 1 <= found < inf:
        raise ValueError(f"rate must be finite and more than 0, got {text}")
    return round(found)


def show(bits: int | None) -> str:
    """Return the shortest text that `parse` turns into ``bits`` a second, in powers of 1000."""
    if bits is None:
        return "none"
    prefix = next(prefix for prefix in ("g", "m", "k", "") if bits >= PREFIXES[prefix])
    return f"{bits / PREFIXES[prefix]:.12g}{prefix}bit"


rate = checked(parse, "100mbit", "rate")
