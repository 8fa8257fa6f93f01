"""What the doctor says: findings, each with what to do about it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Grade = Literal["fine", "advice", "broken"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    about: str
    says: str
    grade: Grade = "fine"  # "broken" only where a run fails for sure
    remedy: str = ""  # what to set or to do; empty where there is nothing to do
