"""What to use: the algorithm, message format, density and local steps for a model on a cluster, by simulated steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.network.cluster import Cluster
from sparse_mpi.network.simulator import Outcome, simulate
from sparse_mpi.tools.analysis import steps
from sparse_mpi.tools.analysis.calibration import Fit, Prediction, predictable
from sparse_mpi.tools.bench.comparison import BASELINE, OWN, accepts, candidates

DENSITIES = (0.03, 0.01, 0.003, 0.001)  # from which one is advised, the largest that is fast enough
USUAL = 0.01  # the density at which candidates are compared, and with which local steps are advised
LOCAL_STEPS = (2, 4, 8, 16, 32, 64)
WIRES = (OWN, "packed", "packed+bf16")
GAIN = 1.05  # a sparse step must be so many times faster than a dense one to be advised
BACKWARD = 2 / 3  # of a batch's time: the backward pass, behind which exchanges may hide
LAST = 1 / 8  # of an exchange: the last bucket, which nothing is left to hide
FEW = 4  # measured steps of an algorithm from which its own error is told, rather than that of all


class Job(NamedTuple):
    """What is trained, and what is wanted."""

    n: int  # elements of the gradient
    ranks: int
    batch: float  # seconds that a rank computes in a step: forward and backward pass and update
    overlap: bool = False  # whether exchanges run during the backward pass
    utilisation: float = 0.9  # share of a step that the batch is to take


class Offer(NamedTuple):
    """A way to train, and what a step of it takes; seconds."""

    way: str  # an algorithm as a command line spells it
    density: float
    local_steps: int
    step: float  # of the whole step, the batch included; a mean where only some steps exchange
    exposed: float  # of it, what the batch does not take
    error: float | None  # of ``exposed``, as a share: four of five fitted steps were nearer

    @property
    def dense(self) -> bool:
        """Return whether this sends everything in every step."""
        return self.way == BASELINE and self.local_steps == 1


class Advice(NamedTuple):
    """All offers, the fastest first, and the one to take with the reason."""

    offers: list[Offer]
    best: Offer
    reason: str


def advise(
    job: Job,
    cluster: Cluster,
    fit: Fit | None = None,
    densities: Sequence[float] = DENSITIES,
    names: Iterable[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Return what to use for a job on a cluster.

    Dense is left where it is fast enough, or where no sparse step is `GAIN` times faster. Otherwise the largest density
    is advised at which a step is fast enough, with the fastest algorithm; and where none is, as many local steps as it
    takes at the usual density. ``names`` are the ways to compare, as a command line spells them: by default all that
    need neither shapes nor nodes. What the steps of ``fit`` took longer than it explains, others of their way take too.
    """
    ways = list(names) or everything()

    def offer(way: str, density: float) -> Offer:
        tell(f"{way} at {density:g}")
        program = steps.program(way, job.n, density, job.ranks)
        outcome = simulate(program, cluster).longer(fit.longer(way) if fit else 1.0)
        exposed = overlapped(outcome, job.batch) if job.overlap else outcome.step
        return Offer(way, density, 1, job.batch + exposed, exposed, error_of(way, fit))

    # Compare all at one density, and the fastest of them at the others.
    at = USUAL if USUAL in densities else densities[0]
    dense = offer(BASELINE, at)
    compared = sorted((offer(way, at) for way in ways if way != BASELINE), key=lambda of: of.step)
    at_others = [offer(of.way, density) for density in densities if density != at for of in compared[:2]]
    offers = [dense, *compared, *at_others]
    return chosen(job, dense, offers, at)


def everything() -> list[str]:
    """Return every way to reduce that needs neither shapes nor nodes."""
    names = [name for name in ALGORITHMS if predictable(name)]
    wires = [wire for wire in WIRES if any(accepts(name, wire) for name in names)]
    return [c.algorithm if c.wire == OWN else f"{c.algorithm}:wire={c.wire}" for c in candidates(names, wires)]


def overlapped(outcome: Outcome, batch: float) -> float:
    """Return the seconds of a reduction that a batch of ``batch`` seconds does not hide.

    Computing hides nothing. The exchange hides behind the backward pass, but for the last bucket; while it runs before
    that, the backward pass of what is left goes on.
    """
    computing = max(outcome.computing)
    exchange = outcome.step - computing
    return computing + max(exchange - (1 - LAST) * BACKWARD * batch, LAST * exchange)


def every(offer: Offer, local_steps: int, batch: float) -> Offer:
    """Return an offer that exchanges once in so many steps."""
    exposed = offer.exposed / local_steps
    return offer._replace(local_steps=local_steps, step=batch + exposed, exposed=exposed)


def chosen(job: Job, dense: Offer, offers: Sequence[Offer], usual: float = USUAL) -> Advice:
    """Return the advice among ``offers``, of which ``dense`` is one."""
    sparse = sorted((of for of in offers if of is not dense), key=lambda of: of.step)
    limit = job.batch / job.utilisation
    found = list(offers)
    at_usual = [of for of in sparse if of.density == usual]
    if not at_usual or dense.step <= GAIN * at_usual[0].step:
        best, reason = dense, "leave it dense: no sparse sum makes a step much shorter"
    elif dense.step <= limit:
        best, reason = dense, f"leave it dense: the batch takes {job.utilisation:.0%} of a step"
    elif not job.batch:
        best, reason = at_usual[0], f"the fastest at density {usual:g}"
    elif enough := [of for of in sparse if of.step <= limit]:
        largest = max(of.density for of in enough)
        best = next(of for of in enough if of.density == largest)
        reason = f"the largest density of those at which the batch takes {job.utilisation:.0%} of a step"
    else:
        locally = [every(at_usual[0], count, job.batch) for count in LOCAL_STEPS]
        best = next((of for of in locally if of.step <= limit), locally[-1])
        found.append(best)
        reason = f"at no density alone does the batch take {job.utilisation:.0%} of a step; with so many local steps "
        reason += "it does" if best.step <= limit else "it comes nearest to that"
    return Advice(sorted(found, key=lambda of: of.step), best, reason)


def error_of(way: str, fit: Fit | None) -> float | None:
    """Return the relative error within which four of five steps of a way's algorithm were that were fitted to."""
    if fit is None or not fit.predictions:
        return None
    name = way.split(":")[0]
    own = [of for of in fit.predictions if of.measured.candidate.split()[0] == name]
    return spread(own if len(own) >= FEW else fit.predictions)


def spread(predictions: Sequence[Prediction]) -> float:
    """Return the relative error of the step that four of five predictions do not exceed."""
    off = sorted(abs(math.log(of.step / of.measured.step)) for of in predictions)
    return math.expm1(off[math.ceil(0.8 * len(off)) - 1])


class Verdict(NamedTuple):
    """The advice for one job that was measured, and how good it was. Times are seconds of a step."""

    job: tuple[str, int, int, float]  # rate, ranks, n, density
    advised: Prediction
    best: Prediction  # the one that was measured to be fastest

    @property
    def regret(self) -> float:
        """Return by what share the advised step is longer than the fastest."""
        return self.advised.measured.step / self.best.measured.step - 1


def judged(predictions: Sequence[Prediction]) -> list[Verdict]:
    """Return how good the advice is for each job among measured steps, of the candidates that were measured there.

    Raises ValueError: a job has no dense sum.
    """
    verdicts = []
    for job in dict.fromkeys(of.measured.job for of in predictions):
        of_job = [of for of in predictions if of.measured.job == job]
        dense = next((of for of in of_job if of.measured.candidate == BASELINE), None)
        if dense is None:
            raise ValueError(f"job {job} must have measured {BASELINE}, got {of_job[0].measured.candidate} and others")
        fastest = min(of_job, key=lambda of: of.step)
        advised = dense if dense.step <= GAIN * fastest.step else fastest
        verdicts.append(Verdict(job, advised, min(of_job, key=lambda of: of.measured.step)))
    return verdicts


def placed(cluster: Cluster, gbit: float, alpha: float | None, cores: float, node: int) -> Cluster:
    """Return a fitted cluster with other links, cores and nodes, on which nothing else runs."""
    there = replace(cluster.on(gbit), cores=cores, node=node, others=0.0)
    return there if alpha is None else replace(there, alpha=alpha)
