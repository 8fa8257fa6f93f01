"""Rates of links, in the notation of tc."""

from __future__ import annotations

import re

# Bits a second of tc's units: a b is a bit, bps are bytes a second, an i makes it a power of 1024
UNITS = {
    f"{prefix}{inner}{unit}": bits * (1024 if inner else 1000) ** power
    for power, prefix in enumerate(["", "k", "m", "g"])
    for inner in (["", "i"] if prefix else [""])
    for unit, bits in (("bit", 1), ("bps", 8))
}
LEAST, MOST = 1_000_000, 100_000_000_000


def parse(text: str) -> int | None:
    """Bits a second of a rate such as ``1gbit``, ``100mbit``, ``12.5mbps`` (megabytes); None for ``none``, no limit.

    Raises:
        ValueError: no such rate, or one that cannot be emulated.
    """
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+\.?\d*)([a-z]+)", text.lower())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"rate must be a number with a unit of tc such as 1gbit or 100mbit, or none, got {text!r}")
    bits = float(match[1]) * UNITS[match[2]]
    if not LEAST <= bits <= MOST:
        raise ValueError(f"rate must be between 1mbit and 100gbit, got {text}; none sets no limit")
    return round(bits)


def show(bits: int | None) -> str:
    """Return the shortest text of which `parse` makes ``bits`` a second, in powers of 1000."""
    if bits is None:
        return "none"
    unit = next(unit for unit in ("gbit", "mbit", "kbit", "bit") if bits >= UNITS[unit])
    whole, rest = divmod(bits, UNITS[unit])
    digits = f"{rest:0{len(str(UNITS[unit])) - 1}}".rstrip("0") if rest else ""
    return f"{whole}{'.' if digits else ''}{digits}{unit}"
