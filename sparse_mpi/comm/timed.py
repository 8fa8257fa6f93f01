"""What happens around each call of a communicator: it is timed, watched over, and its failures are told by one name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sparse_mpi.comm.call_log import Watched
from sparse_mpi.comm.failure import RankFailure
from sparse_mpi.comm.place import CALLS
from sparse_mpi.comm.traffic import Traffic


class Caller(Protocol):
    """What is needed of a communicator."""

    size: int
    watched: Watched | None  # what tells the watchdog of this rank about calls, where there is one

    @property
    def traffic(self) -> Traffic:
        """Return what was counted."""

    @property
    def calls(self) -> list[tuple[float, float]] | None:
        """Return when each call began and ended, if that is wanted."""

    def _require_running(self) -> None:
        """Raise RuntimeError where no call can be made any more."""

    def _confirm(self) -> None:
        """Raise RankFailure if a call that has returned may have done so without its work done."""

    def _tells_of_failure(self, error: Exception) -> bool:
        """Tell if an error of the transport means that a rank has failed."""


_C = TypeVar("_C", bound=Caller)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def timed(method: Callable[Concatenate[_C, _P], _R]) -> Callable[Concatenate[_C, _P], _R]:
    """Have a call's duration added to the traffic, its span to the calls where they are wanted, and it watched.

    The last word of its name is one of `CALLS`.
    """
    number = CALLS.index(method.__name__.rpartition("_")[2])

    @wraps(method)
    def call(self: _C, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self._require_running()
        if self.watched is not None:
            self.watched.enter(number, args[2] if len(args) > 2 else kwargs.get("source"))
        start = perf_counter()
        try:
            result = method(self, *args, **kwargs)
            self._confirm()
            return result
        except Exception as error:
            if self._tells_of_failure(error):
                raise RankFailure(f"a rank of {self.size} failed in {method.__name__}: {error}") from error
            raise
        finally:
            end = perf_counter()
            if self.watched is not None:
                self.watched.leave()
            self.traffic.seconds += end - start
            if self.calls is not None:
                self.calls.append((start, end))

    return call
