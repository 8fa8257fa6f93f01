"""A cluster fitted to the steps that benchmarks recorded, and how far its predictions are off.

The fit moves one number at a time by a factor, and accepts a move that improves predictions. The measure is the mean of
the absolute logarithms of predicted over measured steps, each counted up to a factor of `FAR`, so that a few disturbed
measurements decide nothing. The computing speed of ranks and the costs of a message and a byte are the same at every
rate of the links.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.predict.advice import GAIN
from sparse_mpi.predict.cluster import TYPICAL, Cluster, step_time
from sparse_mpi.predict.fitted import ALL
from sparse_mpi.predict.models import layout
from sparse_mpi.predict.ways import BASELINE, predictable, way_of
from sparse_mpi_bench.candidates import TEAM

BENCHES = "bench steps, alone or in bench network"
FITTED = ("speed", "message", "alpha", "byte", "crowding", "memory")
FEWEST = 3  # steps, for a fit to be of any use
START = replace(TYPICAL, cores=2.0)  # a number that is to be moved by factors must not be 0
FAR = math.e
DENSE = 6.0  # steps that a dense one counts for
ROUNDS, FACTOR, FINE = 14, 2.0, 1.02  # passes over the numbers; the first factor, and the one at which a number stays
LIMIT = 64.0  # times the number at which the fit starts: the most by which it moves
FEW = 4  # measured steps of an algorithm from which it has its own error, instead of the error of all


class MeasuredStep(NamedTuple):
    candidate: str  # name as in tables: oktopk packed
    ranks: int
    n: int
    density: float
    step: float  # seconds of the slowest rank
    cores: int  # cores of the machine
    rate: str = ""  # rate of the links, where they are emulated
    gbit: float | None = None  # measured on a link, while all send
    burst: float = 0.0  # bytes that it lets pass at once

    @property
    def spelled(self) -> str:
        """Return the candidate as a command line spells it: oktopk:wire=packed."""
        name, _, wire = self.candidate.partition(" ")
        return f"{name}:wire={wire}" if wire else name

    @property
    def job(self) -> tuple[str, int, int, float]:
        return self.rate, self.ranks, self.n, self.density


def read(file: str | Path) -> list[MeasuredStep]:
    """Read the steps that one of `BENCHES` recorded. Raises ValueError: another kind of file, or of one rank."""
    try:
        record = json.loads(Path(file).read_text())
        found = [exchange for job in record.get("jobs", [record]) for exchange in _of_job(job, record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} must be a record that {BENCHES} wrote with --json: {error!r}") from None
    if alone := [exchange for exchange in found if exchange.ranks < 2]:
        raise ValueError(f"{file} must be of 2 ranks or more, got {alone[0].ranks}; run it under mpiexec")
    if wrong := [exchange for exchange in found if not exchange.step > 0]:
        raise ValueError(f"{file} must have steps of more than 0 seconds, got {wrong[0]}")
    return found


def _of_job(job: dict[str, Any], record: dict[str, Any]) -> list[MeasuredStep]:
    options: dict[str, Any] = job["options"]
    n = job.get("n") or options["n"] or layout(options["model"]).size
    links: dict[str, Any] = job.get("measured", {})
    gbit = None if options.get("gbit") is None else float(options["gbit"])
    if gbit is not None:
        gbit = min(gbit, float(links.get("together", gbit)))  # the cores may not carry all links at once
    return [
        MeasuredStep(
            name,
            int(job["ranks"]),
            int(n),
            float(options["density"]),
            float(of["step"]),
            int(job.get("cpus") or record["cpus"]),
            str(job.get("rate", "")),
            gbit,
            float(links.get("burst", 0.0)),
        )
        for name, of in job["results"].items()
        if not name.endswith(TEAM) and predictable(name.split()[0])
    ]


def held_out(measured: Iterable[MeasuredStep], ranks: Sequence[int]) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Divide steps into those to fit to and those on ``ranks`` ranks. Raises ValueError: one of both would be empty."""
    measured = list(measured)
    had = sorted({exchange.ranks for exchange in measured})
    if lacking := sorted(set(ranks) - set(had)):
        raise ValueError(f"ranks must be some of those measured, {', '.join(map(str, had))}, got {lacking[0]}")
    if set(had) <= set(ranks):
        raise ValueError(f"ranks must leave some to fit to, got all that were measured, {', '.join(map(str, had))}")
    return [e for e in measured if e.ranks not in ranks], [e for e in measured if e.ranks in ranks]


class Prediction(NamedTuple):
    measured: MeasuredStep
    step: float

    @property
    def error(self) -> float:
        return self.step / self.measured.step - 1


class Fit(NamedTuple):
    """A cluster fitted to measured steps, and its predictions for these."""

    cluster: Cluster
    predictions: list[Prediction]

    def longer(self, way: str) -> float:
        """Return the ratio of measured to explained steps of a way (oktopk:wire=packed); 1 if unknown."""
        of_way = [of.measured.step / of.step for of in self.predictions if of.measured.spelled == way]
        return statistics.median(of_way) if of_way else 1.0

    def predict(self, exchange: MeasuredStep) -> Prediction:
        """Return the cluster's prediction for another measured step, times the `longer` of its way."""
        found = predict(exchange, self.cluster)
        return found._replace(step=found.step * self.longer(exchange.spelled))

    @property
    def errors(self) -> dict[str, float]:
        """Return the error of the steps of each algorithm that was measured often enough, and of `ALL`."""
        of_name = defaultdict(list)
        for of in self.predictions:
            of_name[of.measured.candidate.split()[0]].append(of)
        return {ALL: spread(self.predictions)} | {
            name: spread(those) for name, those in of_name.items() if len(those) >= FEW
        }

    @property
    def ranks(self) -> list[int]:
        return sorted({of.measured.ranks for of in self.predictions})


def predict(exchange: MeasuredStep, on: Cluster) -> Prediction:
    """Return a cluster's prediction for a measured step: on its links and its cores, all ranks on one machine."""
    there = replace(on, cores=float(exchange.cores), node=exchange.ranks)
    if exchange.gbit is not None:
        there = there.on(exchange.gbit, exchange.burst)
    way = way_of(exchange.spelled)
    found = step_time(exchange.spelled, way, exchange.n, exchange.density, exchange.ranks, there)
    return Prediction(exchange, found.seconds)


def fit(measured: Sequence[MeasuredStep], start: Cluster = START) -> Fit:
    """Return the cluster that explains the measured steps best. Raises ValueError: the steps are too few."""
    unknown = () if all(exchange.gbit for exchange in measured) else ("beta",)
    fewest = FEWEST + len(unknown)
    if len(measured) < fewest:
        raise ValueError(f"exchanges to fit to must be {fewest} or more, got {len(measured)}; measure more of them")
    names = (*FITTED[: len(measured) - len(unknown)], *unknown)

    # All others are compared with dense sums.
    weights = [DENSE if exchange.candidate == BASELINE else 1.0 for exchange in measured]

    def loss(tried: Cluster) -> float:
        ratios = [predict(exchange, tried).step / exchange.step for exchange in measured]
        return statistics.fmean((min(abs(math.log(ratio)), math.log(FAR)) for ratio in ratios), weights)

    found = nearest(start, names, loss)
    return Fit(found, [predict(exchange, found) for exchange in measured])


def nearest(start: Cluster, names: Iterable[str], loss: Callable[[Cluster], float]) -> Cluster:
    best, found, factors = loss(start), start, dict.fromkeys(names, FACTOR)
    for _ in range(ROUNDS):
        for name, factor in factors.items():
            for changed in (factor, 1 / factor):
                value = getattr(found, name) * changed
                if not 1 / LIMIT <= value / getattr(start, name) <= LIMIT:
                    continue
                tried: Any = replace(found, **{name: value})
                if (now := loss(tried)) < best:
                    best, found = now, tried
                    break
            else:
                factors[name] = max(factor**0.5, FINE)
    return found


def by_rate(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    found = defaultdict(list)
    for prediction in sorted(predictions, key=lambda of: of.measured.gbit or 0.0):
        found[prediction.measured.rate].append(prediction)
    return dict(found)


def median_error(predictions: Sequence[Prediction]) -> float:
    return statistics.median(abs(of.error) for of in predictions)


def spread(predictions: Sequence[Prediction]) -> float:
    """Return the relative error of the step that nine of ten predictions do not exceed."""
    off = sorted(abs(math.log(of.step / of.measured.step)) for of in predictions)
    return math.expm1(off[math.ceil(0.9 * len(off)) - 1])


class JudgedAdvice(NamedTuple):
    """The advice for one measured job, and how good it was. Times are seconds of a step."""

    job: tuple[str, int, int, float]  # rate, ranks, n, density
    advised: Prediction
    best: Prediction  # the fastest measured one

    @property
    def regret(self) -> float:
        return self.advised.measured.step / self.best.measured.step - 1


def judged(predictions: Sequence[Prediction]) -> list[JudgedAdvice]:
    """Return how good the advice is for each measured job. Raises ValueError: a job has no dense sum."""
    found = []
    for job in dict.fromkeys(of.measured.job for of in predictions):
        of_job = [of for of in predictions if of.measured.job == job]
        dense = next((of for of in of_job if of.measured.candidate == BASELINE), None)
        if dense is None:
            raise ValueError(f"job {job} must have measured {BASELINE}, got {of_job[0].measured.candidate} and others")
        fastest = min(of_job, key=lambda of: of.step)
        advised = dense if dense.step <= GAIN * fastest.step else fastest
        found.append(JudgedAdvice(job, advised, min(of_job, key=lambda of: of.measured.step)))
    return found
