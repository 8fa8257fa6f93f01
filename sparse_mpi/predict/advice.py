"""Advice for a model on a cluster: algorithm, message format, density and local steps, or dense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sparse_mpi.predict.cluster import DENSE, Cluster, StepTime, step_time
from sparse_mpi.predict.fitted import FittedCluster
from sparse_mpi.predict.ways import BASELINE, low_rank, table, way_of
from sparse_mpi.sparse import Layout

DENSITIES = (0.03, 0.01, 0.003, 0.001)  # candidates for the advised density, the largest that is fast enough
USUAL = 0.01  # the density at which candidates are compared, and with which local steps are advised
LOCAL_STEPS = (2, 4, 8, 16, 32, 64)
GAIN = 1.05  # a sparse step must be this factor faster than a dense one to be advised
BACKWARD = 2 / 3  # share of the backward pass in a batch's time; exchanges may hide behind it
LAST = 1 / 8  # share of the last bucket, which is not hidden, in an exchange
FASTEST = 7.9e-9 / 5  # seconds a byte of the fastest link that was measured


class Off(NamedTuple):
    longer: float = 1.0
    shorter: float = 1.0


MEASURED = Off(1.5, 1.5)  # the error of nine of ten held-out steps on emulated hosts, and some more
UNMEASURED = Off(2.0, 2.0)  # error on links faster than `FASTEST`
# The only sparse sums that were measured between ranks on a GPU, two of which shared it, took 6.5 ms with oktopk and
# 10.4 with elect, where 2.4 and 5.4 ms are predicted for one each (docs/results/gpu-h200.json)
OF_A_GPU = Off(3.0, 1.5)


class TrainingJob(NamedTuple):
    n: int  # elements of the gradient
    ranks: int
    batch: float  # seconds that a rank computes in a step: forward and backward pass and update
    overlap: bool = False  # True: exchanges run during the backward pass
    utilisation: float = 0.9  # share of a step that the batch is to take
    dense: float | None = None  # seconds of a dense sum, where they are known
    shapes: Layout | None = None  # shapes of the gradient's tensors, where they are known


class Offer(NamedTuple):
    """A way to train, and the seconds of its step."""

    way: str  # an algorithm as a command line spells it
    density: float
    local_steps: int
    step: float  # seconds of the whole step, the batch included; a mean where only some steps exchange
    exposed: float  # the part not hidden by the batch
    off: Off  # factors by which ``exposed`` may be longer or shorter

    @property
    def dense(self) -> bool:
        return self.way == BASELINE and self.local_steps == 1


class Pays(NamedTuple):
    """Whether sparse sums pay: the best one's speed over dense's."""

    verdict: str  # sparse, dense, or either where the errors of the model decide
    sparse: Offer
    factor: float
    low: float  # the least factor, by the errors of both
    high: float


class Advice(NamedTuple):
    """All offers, the fastest first, the one to take, and why."""

    offers: list[Offer]
    best: Offer
    reason: str
    batch: float = 0.0
    utilisation: float = 1.0  # share of a step with which the batch is content

    @property
    def pays(self) -> Pays:
        dense = next(of for of in self.offers if of.dense)
        sparse = next(of for of in self.offers if not of.dense) if self.best.dense else self.best
        # Both times are off by the root of the greater factor, so that their ratio is by all of it.
        less, more = (
            math.sqrt(max(pair)) for pair in zip((dense.off.shorter, dense.off.longer), sparse.off, strict=True)
        )
        low = (self.batch + dense.exposed / less) / (self.batch + sparse.exposed * less)
        high = (self.batch + dense.exposed * more) / (self.batch + sparse.exposed / more)
        verdict = "sparse" if low >= 1 and not self.best.dense else "either"
        if high < GAIN or (self.best.dense and self.batch >= self.utilisation * dense.step):
            verdict = "dense"
        return Pays(verdict, sparse, dense.step / sparse.step, low, high)


def advise(
    job: TrainingJob,
    on: Cluster,
    fit: FittedCluster | None = None,
    densities: Sequence[float] = DENSITIES,
    names: Iterable[str] = (),
) -> Advice:
    """Return the advice for a job on a cluster.

    Dense is advised if it is fast enough, or no sparse step is `GAIN` times faster. Otherwise the largest density at
    which a step is fast enough, with the fastest algorithm; if none is, the local steps needed at the usual density.
    ``names`` are the ways to compare, as spelled on a command line: by default all of the table. ``fit`` has measured
    corrections of ways' times, and their errors.
    """

    def offer(way: str, density: float) -> Offer:
        plain = step_time(way, way_of(way, job.shapes), job.n, density, job.ranks, on)
        if way == BASELINE and job.dense is not None:
            plain, off = StepTime(0.0, job.dense), Off()
        else:
            off = _off_of(way, job.n, fit, on)
        found = plain.longer(fit.longer.get(way, 1.0) if fit else 1.0)
        exposed = _overlapped(found, job.batch) if job.overlap else found.seconds
        return Offer(way, density, 1, job.batch + exposed, exposed, off)

    # Compare all at one density, and the fastest of them at the others.
    at = USUAL if USUAL in densities else densities[0]
    dense = offer(BASELINE, at)
    compared = sorted((offer(way, at) for way in names or table() if way != BASELINE), key=lambda of: of.step)
    at_others = [
        offer(of.way, density) for density in densities if density != at for of in compared[:2] if not low_rank(of.way)
    ]
    return chosen(job, dense, [dense, *compared, *at_others], at)


def _overlapped(found: StepTime, batch: float) -> float:
    """Return a reduction's seconds that a batch of ``batch`` seconds does not hide.

    The exchange hides behind the backward pass, but for the last bucket.
    """
    hidden = (1 - LAST) * BACKWARD * batch
    return found.computing + max(found.exchanging - hidden, LAST * found.exchanging)


def every(offer: Offer, local_steps: int, batch: float) -> Offer:
    exposed = offer.exposed / local_steps
    return offer._replace(local_steps=local_steps, step=batch + exposed, exposed=exposed)


def chosen(job: TrainingJob, dense: Offer, offers: Sequence[Offer], usual: float = USUAL) -> Advice:
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
    return Advice(sorted(found, key=lambda of: of.step), best, reason, job.batch, job.utilisation)


def _off_of(way: str, n: int, fit: FittedCluster | None, on: Cluster) -> Off:
    """Return the factors by which a step may be off, as nine of ten fitted ones, or on emulated hosts.

    GPUs' dense sums may be off by published ones' factors.
    """
    if on.fabric is not None:
        return Off(*[on.fabric.error(DENSE.get(way, 4) * n)] * 2) if way in DENSE else OF_A_GPU
    if fit is None:
        return UNMEASURED if on.beta < FASTEST else MEASURED
    return Off(*[1 + fit.error(way)] * 2)


def crossing(gain: Callable[[float], float], least: float = 1e6, most: float = 1e13) -> float | None:
    """Return the bits a second at which the falling ``gain`` is zero, or None."""
    if gain(least) <= 0 or gain(most) >= 0:
        return None
    while most / least > 1.01:
        middle = math.sqrt(least * most)
        least, most = (middle, most) if gain(middle) > 0 else (least, middle)
    return least
