"""Trials of each check, their random draws, and the report of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from sparse_mpi.comm.world import DeadlockError, MismatchError, World
from sparse_mpi.reduction.laws import LawError
from sparse_mpi.testing.cases import CASES, Case, drawn

DTYPES = ("float32", "float64")


class ConformanceError(AssertionError):
    """A checked object breaks a law: the law, the trial, expected and actual values, and a call that repeats it."""

    def __init__(self, law: str, expected: str, got: object) -> None:
        super().__init__(law, expected, got)
        self.law, self.expected, self.got = law, expected, got
        self.trial = ""

    def __str__(self) -> str:
        return f"{self.law} is broken{self.trial}\n  expected: {self.expected}\n  got: {self.got}"

    @staticmethod
    def of(error: Exception) -> ConformanceError:
        """Return a trial's error as the law that it breaks."""
        if isinstance(error, ConformanceError):
            return error
        if isinstance(error, (DeadlockError, MismatchError)):
            return ConformanceError("the order of calls", "the same on every rank, whatever one rank's data is", error)
        if isinstance(error, LawError):
            law, _, got = str(error).partition(" is broken")
            return ConformanceError(law, "one total on all ranks, which has what they gave", got.lstrip(": "))
        return ConformanceError("a result for any input", "no error", f"{type(error).__name__}: {error}")


def demand(held: object, law: str, expected: str, got: object) -> None:
    """Raise `ConformanceError` unless ``held``."""
    if not held:
        raise ConformanceError(law, expected, got)


class Trial(NamedTuple):
    """One try of a check."""

    ranks: Any  #: World, or other ranks with ``size`` and ``run(fn)``
    case: Case
    dtype: str
    seed: int

    def gradient(self, rank: int, step: int = 0) -> np.ndarray:
        """Return the gradient ``(n,)`` of a rank in a step."""
        return self.case.gradient(self.dtype, self.seed + step, rank, self.ranks.size)


@dataclass(frozen=True)
class Trials:
    """The trials of a check: the product of cases, ranks and seeds, cycling through dtypes, then random ones.

    Args:
        ranks: numbers of ranks of a `World`; or other ranks, with its ``size`` and ``run(fn)``.
        cases: names in `CASES`, or a `Case` each.
        dtypes: types of gradients.
        seeds: seeds of gradients, and of all other draws of a trial.
        examples: number of random trials: by hypothesis, if installed, which shrinks a failure.
    """

    ranks: Iterable[Any] = range(1, 9)
    cases: Iterable[str | Case] = tuple(CASES)
    dtypes: tuple[str, ...] = DTYPES
    seeds: Iterable[int] = (0,)
    examples: int = 25

    def hold(
        self, check: str, subject: object, law: Callable[[Trial], object], make: Callable[[int], Any] = World
    ) -> None:
        """Have a law hold in all trials of ``check(subject)``, on the ranks from ``make(number)``."""
        pools, types = [make(each) if isinstance(each, int) else each for each in self.ranks], self.dtypes

        def attempt(pool: Any, given: str | Case, dtype: str, seed: int) -> None:
            case = CASES[given] if isinstance(given, str) else given
            try:
                with np.errstate(invalid="ignore", over="ignore"):
                    law(Trial(pool, case, dtype, seed))
            except Exception as error:
                broken, again = ConformanceError.of(error), Trials((pool.size,), (given,), (dtype,), (seed,), 0)
                broken.trial = f" by {subject!r}\n  again: {check}({subject!r}, {again})"
                raise broken from (None if broken is error else error)

        for number, (pool, case, seed) in enumerate(product(pools, self.cases, self.seeds)):
            attempt(pool, case, types[number % len(types)], seed)
        _for_any(
            lambda draw: attempt(
                pools[draw(0, len(pools) - 1)], drawn(draw), types[draw(0, len(types) - 1)], draw(0, 2**16)
            ),
            self.examples,
        )


def _for_any(attempt: Callable[[Callable[[int, int], int]], None], examples: int) -> None:
    """Call ``attempt(draw)`` ``examples`` times; ``draw`` returns a whole number between two, the same each time."""
    if find_spec("hypothesis") is None:
        for seed in range(examples):
            numbers = np.random.default_rng(seed)
            attempt(lambda low, high, of=numbers: int(of.integers(low, high, endpoint=True)))  # type: ignore[misc]
    elif examples:
        tool, strategies = import_module("hypothesis"), import_module("hypothesis.strategies")
        quiet = {"database": None, "deadline": None, "suppress_health_check": [*tool.HealthCheck]}

        def shrunk(data: Any) -> None:
            attempt(lambda low, high: data.draw(strategies.integers(low, high)))

        settings = tool.settings(max_examples=examples, derandomize=True, report_multiple_bugs=False, **quiet)
        settings(tool.given(strategies.data())(shrunk))()
