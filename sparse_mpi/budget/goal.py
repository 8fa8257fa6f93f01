"""What a user asks for in place of k: `Goal`, made of texts such as ``"5MB/s"`` and of seconds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sparse_mpi.checks import check_range

PAIR_BYTES = 8  # of the smallest thing that can be sent: an index and a value
PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
PREFIXES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGT", 1)}
GRAMMAR = re.compile(
    r"(?P<number>\d+(\.\d+)?|\.\d+)\s*(?P<prefix>([kMGT]|[KMGT]i)?)(?P<unit>bit|B)"
    r"\s*/\s*((?P<second>s)|(?P<steps>\d*)\s*steps?)"
)
EXAMPLES = "'5MB/s', '800kbit/s', '1.5GiB/s', '200kB/step' or '40GB/10000steps'"


@dataclass(frozen=True)
class Goal:
    """What one rank may send, and how long a step may take; None where nothing was said.

    Args:
        rate: bytes a second, on average.
        total: bytes of the next ``steps`` steps together.
        steps: see ``total``.
        bytes_per_step: bytes a step, on average.
        seconds: of a step, with all that belongs to it.
    """

    rate: float | None = None
    total: int | None = None
    steps: int | None = None
    bytes_per_step: float | None = None
    seconds: float | None = None

    @property
    def limits_bytes(self) -> bool:
        """Return True if bytes were limited, and not the time of a step alone."""
        return not self.rate is self.total is self.bytes_per_step

    @property
    def step_bytes(self) -> float:
        """Return the bytes of a step on average, as far as they are known without a clock; infinity if not at all."""
        if self.total is not None and self.steps is not None:
            return self.total / self.steps
        if self.rate is not None and self.seconds is not None:
            return self.rate * self.seconds
        return math.inf if self.bytes_per_step is None else self.bytes_per_step

    def check_fits(self, segments: int) -> None:
        """Raise ValueError if not even one entry of each of ``segments`` can be sent in a step, or in a second."""
        least = PAIR_BYTES * segments
        given, per = self.step_bytes, "a step"
        if self.rate is not None:
            per = "a second" if self.seconds is None else f"a step of {self.seconds:g} s"
            given = self.rate if self.seconds is None else given
        if given < least:
            raise ValueError(
                f"budget must let one entry of {PAIR_BYTES} bytes of each of {segments} segments be sent, {least} "
                f"bytes {per}, got {given:g}; raise it, or reduce everything as one segment (bucket_cap_mb=None)"
            )


def make_goal(budget: Any = None, step_seconds: Any = None, **amounts: Any) -> Goal | None:
    """Return what ``budget`` and ``step_seconds`` ask for, or None if neither is given.

    Args:
        budget: a text: bytes or bits a second, a step, or in a number of steps.
        step_seconds: above 0.
        amounts: the amounts that a caller may give instead, by name: ``k`` and ``density``.

    Raises:
        TypeError: budget is no text, or step_seconds no number.
        ValueError: the text cannot be read, a number is not above 0, or an amount is given too.
    """
    if budget is None and step_seconds is None:
        return None
    check_alone("budget" if budget is not None else "step_seconds", **amounts)
    if step_seconds is not None:
        check_range("step_seconds", step_seconds, "(0, inf)")
    seconds = None if step_seconds is None else float(step_seconds)
    return Goal(**({} if budget is None else _parsed(budget)), seconds=seconds)


def check_alone(argument: str, **amounts: object) -> None:
    """Raise ValueError if any of ``amounts``, ``k`` or ``density``, is given beside ``argument``, which sets it."""
    for name, amount in amounts.items():
        if amount is not None:
            raise ValueError(f"{name} must be left out with {argument}, which sets it in every step, got {amount!r}")


def _parsed(text: object) -> dict[str, Any]:
    """Return the fields of a `Goal` that the text of a budget says.

    Raises:
        TypeError: it is no text.
        ValueError: it cannot be read, or is not above 0.
    """
    if not isinstance(text, str):
        raise TypeError(f"budget must be a text with a unit such as {EXAMPLES}, got {text!r}")
    found = GRAMMAR.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"budget must be a number above 0 with a unit such as {EXAMPLES}, got {text!r}")
    unit = Fraction(PREFIXES[found["prefix"]], 8 if found["unit"] == "bit" else 1)
    amount = Fraction(found["number"]) * unit
    steps = int(found["steps"]) if found["steps"] else None
    if amount <= 0 or steps == 0:
        raise ValueError(f"budget must be above 0, for at least one step, got {text!r}")
    if found["second"]:
        return {"rate": float(amount)}
    return {"bytes_per_step": float(amount)} if steps is None else {"total": round(amount), "steps": steps}
