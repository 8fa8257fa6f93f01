"""What a communicator says of failures whose job ends with the first rank that fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Mortal:
    """The members of `Comm` about failures, where no rank survives another."""

    elastic = False

    def _tells_of_failure(self, error: Exception) -> bool:
        """Tell if an error of the transport means that a rank has failed."""
        return False

    def _require_running(self) -> None:
        """Raise RuntimeError where no call can be made any more."""

    def _confirm(self) -> None:
        """Raise RankFailure if a call that has returned may have done so without its work done."""

    def broken(self) -> bool:
        return False

    def fail_alone(self, close: Callable[[], None]) -> None:
        return

    def patient(self) -> Any:
        return self

    def wait_for_end(self) -> None:
        return

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def revoke(self) -> None:
        return

    def shrink(self) -> Any:
        raise RuntimeError(f"{type(self).__name__} does not survive the loss of a rank; comm.elastic tells which does")
