"""Observe reducers where the environment asks for it: ranges in profiles, and `metrics`.

With ``SPARSE_MPI_RANGES=1`` each phase of a step is a range of `torch.profiler`, and of NVTX on CUDA, for some
microseconds each.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial, wraps
from itertools import count
from typing import Any

from sparse_mpi.comm.job.launcher import RANGES
from sparse_mpi.comm.runtime import told_rank
from sparse_mpi.monitor.metrics import DIRECTORY, file_of

# Methods of an engine, and their phases; in an exchange there are ranges of selections, too
PHASES = {"agree": "agree", "accumulate": "accumulate", "reduce": "exchange", "commit": "commit"}
LOGGER = logging.getLogger("sparse_mpi")

Span = Callable[[str], AbstractContextManager[object]]  # a range of this name
# The next number by process, rank and folder of metrics
_NUMBERS: defaultdict[tuple[int, int, str], Iterator[int]] = defaultdict(count)
meter: Callable[[Any], None] | None = None  # meter of `bench compare`, called with an engine after each step


def observe(engine: Any) -> None:
    """Observe a new `Engine` as the environment says; reducers are numbered alike on all ranks."""
    folder = os.environ.get(DIRECTORY, "")
    number = next(_NUMBERS[os.getpid(), told_rank(engine.comm.rank), folder])
    if os.environ.get(RANGES, "0") not in ("", "0"):
        _add_ranges(engine, number)
    if meter is not None:
        engine.meters.append(meter)
    if folder:
        engine.meters.append(partial(file_of(engine.comm).note, number))


def _add_ranges(engine: Any, number: int) -> None:
    """Put an engine's phases, and selections, into ranges: ``sparse_mpi.exchange #0``."""
    spans = spans_of_profilers()
    if not spans:
        return
    for method, phase in PHASES.items():
        _put_into(spans, f"sparse_mpi.{phase} #{number}", engine, method)
    add_exchange = engine._exchange

    def ranged_exchange(*args: Any) -> Any:
        made = add_exchange(*args)
        put_selections(made)
        return made

    def put_selections(exchange: Any) -> None:
        for selector in exchange.selectors:
            _put_into(spans, f"sparse_mpi.select #{number}", selector, "select")

    put_selections(engine.exchange)
    vars(engine)["_exchange"] = ranged_exchange  # algorithms that take turns


def _put_into(spans: list[Span], name: str, of: object, method: str) -> None:
    call = getattr(of, method)

    @wraps(call)
    def ranged(*args: object, **kwargs: object) -> object:
        with ExitStack() as open_ranges:
            for span in spans:
                open_ranges.enter_context(span(name))
            return call(*args, **kwargs)

    vars(of)[method] = ranged


def spans_of_profilers() -> list[Span]:
    """Return range functions of torch's profiler and NVTX; none, with a warning, without torch."""
    try:
        import torch
    except ImportError:
        LOGGER.warning("%s needs torch, which is not installed; there are no ranges", RANGES)
        return []
    return [torch.profiler.record_function, *([torch.cuda.nvtx.range] if torch.cuda.is_available() else [])]
