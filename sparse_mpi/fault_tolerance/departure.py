"""What is remembered of ranks that were lost."""

from __future__ import annotations

from typing import NamedTuple


class Departure(NamedTuple):
    """Ranks that were lost at the same time. All but ``seconds`` is the same on all survivors."""

    step: int  #: the first transaction, from 0, to which they gave nothing; the first step of a single reducer
    ranks: tuple[int, ...]  #: by their numbers at the start
    survivors: int  #: how many ranks are left
    seconds: float  #: from the failed call on this rank until it could go on

    def __str__(self) -> str:
        lost = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{lost} lost before step {self.step}; {self.survivors} ranks go on after {self.seconds:.2f} s"


class TooFewRanks(RuntimeError):
    """Raised on all survivors when there are fewer of them than the smallest number wanted."""
