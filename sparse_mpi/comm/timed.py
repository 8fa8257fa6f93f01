"""What happens around each call of a communicator: it is timed and watched over, and failures get one name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

from sparse_mpi.comm.failure import RankFailure
from sparse_mpi.comm.job.call_site import CALLS

_P = ParamSpec("_P")
_R = TypeVar("_R")


def timed(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Have a call's duration added to the traffic, its span to the calls where they are wanted, and it watched.

    The last word of its name is one of `CALLS`. It is a method of a `CountingComm`.
    """
    number = CALLS.index(method.__name__.rpartition("_")[2])

    @wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        self._require_running()
        if self.watched is not None:
            self.watched.enter(number, args[2] if len(args) > 2 else kwargs.get("source"))
        start = perf_counter()
        try:
            result = method(self, *args, **kwargs)
            self._confirm()
            return result
        except Exception as error:
            if self._is_rank_failure(error):
                raise RankFailure(f"a rank of {self.size} failed in {method.__name__}: {error}") from error
            raise
        finally:
            end = perf_counter()
            if self.watched is not None:
                self.watched.leave()
            traffic = self.traffic
            traffic.seconds += end - start
            if traffic.calls is not None:
                traffic.calls.append((start, end))

    return call
