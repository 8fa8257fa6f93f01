"""The report of a step on this rank."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import NamedTuple

from sparse_mpi.comm import Traffic


class StepReport(NamedTuple):
    selected: int  #: pairs picked by the selector, or by an algorithm without one; n for a dense algorithm
    total: int  #: entries of the result
    select_seconds: float  #: includes residual += gradient if the selector does it in the same pass
    exchange_seconds: float  #: time in communication calls, which includes waiting for slower ranks
    merge_seconds: float  #: all other time, for encoding, adding, error feedback
    traffic: Traffic  #: includes the consistency check of the step
    skipped: int = 0  #: training steps so far that were left out, because a gradient was not finite

    def scalars(self) -> dict[str, float]:
        """Return counts, megabytes and seconds by their names in TensorBoard logs of train/."""
        return {
            "selected": self.selected,
            "total": self.total,
            "mb_sent": (self.traffic.sent + self.traffic.control) / 1e6,
            "messages": self.traffic.messages,
            "selection_seconds": self.select_seconds,
            "exchange_seconds": self.exchange_seconds,
            "merge_seconds": self.merge_seconds,
        }


def combined(reports: Iterable[StepReport | None], skipped: int = 0) -> StepReport | None:
    done = [report for report in reports if report is not None]
    return reduce(lambda a, b: StepReport(*map(add, a, b)), done)._replace(skipped=skipped) if done else None
