"""Advice for a model on a cluster: `advise`, printed by ``python -m sparse_mpi predict advise``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from sparse_mpi.checks import check_choice, check_range, check_whole, meant
from sparse_mpi.cli import values
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.predict import advice, fitted, rates
from sparse_mpi.predict.advice import DENSITIES, Advice, Offer, TrainingJob
from sparse_mpi.predict.cluster import GPUS, OF_GPUS, TYPICAL, Cluster
from sparse_mpi.predict.fitted import FittedCluster
from sparse_mpi.predict.models import MODELS, layout
from sparse_mpi.predict.shown import OPTIMIZERS, PAGE, TRAINING, Shown, shown
from sparse_mpi.predict.ways import BASELINE, low_rank, predictable
from sparse_mpi.reduction.arguments import spelled, usual_density
from sparse_mpi.sparse import Layout

COMPARED = (
    *("oktopk:wire=packed+bf16", "oktopk:wire=packed", "oktopk", "topka:wire=packed+bf16", "topka:wire=packed"),
    *("topka", "topkdsa:wire=packed", "topkdsa", "gaussiank:wire=packed", "micro", "elect", "quota:wire=packed+bf16"),
    "quota",
)
BFLOAT16 = "dense-bf16"
MOST_SHOWN = 4  # faster offers
WIDTH = 88  # width of the answer's lines
FARTHEST = 1e12  # bits a second, beyond which there are no links to speak of
RDMA = 40e9  # bits a second from which links are taken to have RDMA
HEADS = {
    "sparse": "Sparse pays.",
    "dense": "Leave it dense.",
    "either": "It may pay, or not: the difference is within the error of the model.",
}
NOTE = """\
step: of training, batch and sum; sum: what the batch does not hide, to: what it may
take at most; batch: its share of a step"""


LOW_RANK = ("powersgd:rank=4",)  # compared where shapes are known


def flat(text: str) -> str:
    """Return an algorithm with traffic that a gradient's tensors tell; for argparse."""
    if not (predictable(values.algorithm(text)) or low_rank(text)):
        raise ArgumentTypeError(f"{text} needs nodes, which the length of a gradient does not tell")
    return text


@dataclass(frozen=True)
class Answer:
    """The verdict on sparse sums, and the advised way; ``str()`` is the text of ``predict advise``."""

    verdict: str  #: sparse, dense, or either where the errors of the model decide; `default` beside `dense`
    factor: float  #: times as fast a step of `default` is
    bar: tuple[float, float]  #: the least and the most it may be, by the errors of the model
    dense: Offer  #: float32
    bfloat16: Offer  #: dense, in bfloat16
    default: Offer  #: the default of training, whose accuracy `shown` is about
    shown: str  #: model and optimizer with which it was compared with dense, and the result
    use: str  #: the optimizer in a program, as it was measured
    local: Offer | None  #: `default` every few local steps, where it is too slow in every step
    local_shown: str  #: the cost of local steps in accuracy
    faster: tuple[Offer, ...]  #: other ways and densities, the fastest first, for whom points of accuracy matter less
    advised: Offer | None  #: the largest density among these that is fast enough; None where none is faster
    reason: str
    break_even: float | None  #: bits a second up to which `default` is 1.05 times as fast, where there is one
    cluster: Cluster
    job: TrainingJob
    model: str
    rate: str
    assumed: str

    def __str__(self) -> str:
        lines = "\n".join(fill(of, WIDTH, break_long_words=False, break_on_hyphens=False) for of in self._sentences())
        return f"{lines}\n\n{self._table()}"

    def record(self) -> dict[str, Any]:
        """Return all numbers, for JSON."""
        offers = {name: getattr(self, name) for name in ("dense", "bfloat16", "default", "local", "advised")}
        return {
            **{name: getattr(self, name) for name in ("verdict", "factor", "bar", "shown", "reason", "break_even")},
            "cluster": {name: of for name, of in vars(self.cluster).items() if name not in ("gpu", "fabric")},
            **{name: of and of._asdict() for name, of in offers.items()},
            "faster": [of._asdict() for of in self.faster],
        }

    def _sentences(self) -> list[str]:
        job, dense, default = self.job, self.dense, self.default
        lines = [
            f"{HEADS[self.verdict]} A step of {self.model} ({job.n:,} elements) on {job.ranks} ranks at {self.rate} "
            f"takes {_ms(dense.step)} dense, {_ms(self.bfloat16.step)} dense in bfloat16 and {_ms(default.step)} by "
            f"{_named(default)}, the default of training: {self.factor:.3g} times as fast as dense, between "
            f"{self.bar[0]:.3g} and {self.bar[1]:.3g} by how far such predictions were off."
        ]
        if self.verdict == "sparse":
            lines.append(f"Run: python -m sparse_mpi run -n {job.ranks} train.py with {self.use}.")
        elif self.verdict == "dense":
            lines.append(f"Why: {self.reason}.")
        if self.verdict != "dense" and self.bfloat16.step <= advice.GAIN * default.step:
            lines.append(f"Or dense in bfloat16, which is as fast: algorithm={BFLOAT16!r}.")
        lines.append(f"Accuracy of {_named(default)}: {self.shown} ({PAGE}).")
        if self.local:
            where = "docs/guides/local-steps.md"
            lines.append(f"Local steps: {self._takes(self.local)} ({where}). Shown: {self.local_shown}.")
        if self.advised:
            lines.append(f"If you can lose points: {self._takes(self.advised)}; {_arguments(self.advised)}.")
        if self.break_even is not None and self.break_even < FARTHEST:
            rate = _gbit(self.break_even)
            lines.append(f"What would change that: links. Up to {rate} sparse is at least {advice.GAIN} times as fast.")
        return [*lines, f"Assumed: {self.assumed}."]

    def _takes(self, of: Offer) -> str:
        times = float(f"{self.dense.step / of.step:.3g}")
        return f"{_named(of)} takes {_ms(of.step)}, {times:,.6g} times as fast as dense"

    def _table(self) -> str:
        first = [self.dense, self.bfloat16, self.default, *([self.local] if self.local else [])]
        more = (
            [of for of in self.faster if of in (*self.faster[:MOST_SHOWN], self.advised) or low_rank(of.way)]
            if self.advised
            else []
        )
        table = Table(
            Column("", -max(len(of.way) for of in (*first, *more)), "way"),
            Column("density", 8, lambda of: "all" if _whole(of) else f"{of.density:g}"),
            Column("local steps", 12, "local_steps"),
            Column("step, ms", 10, "step", ".2f", 1e3),
            Column("sum, ms", 10, "exposed", ".2f", 1e3),
            Column("to", 8, lambda of: 1e3 * of.exposed * of.off.longer, ".2f"),
            Column("batch", 6, lambda of: self.job.batch / of.step if of.step else 1, ".0%"),
        )
        behind = ["if you can lose points:", *map(table.row, more)] if more else []
        return "\n".join([*table.lines(first), *behind, NOTE])


def advise(
    model: object,
    rate: str,
    *,
    optimizer: str | None = None,
    ranks: int = 8,
    batch_seconds: float = 0.0,
    on: str | None = None,
    fabric: str | None = None,
    latency: float | None = None,
    cores: float | None = None,
    ranks_per_node: int = 1,
    fit: str | Path | FittedCluster | None = None,
    dense_ms: float | None = None,
    algorithms: Sequence[str] = (),
    densities: Sequence[float] = DENSITIES,
    overlap: bool = True,
    utilisation: float = 0.9,
) -> Answer:
    """Return the verdict on sparse sums for a model on a cluster, and the advised way.

    Args:
        model: a name in `sparse_mpi.predict.models.MODELS`, a number of parameters, or a torch module.
        rate: bandwidth of a rank's link in each direction, as ``"1gbit"`` or ``"12.5GB/s"``.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``; by default the usual one for the model.
        ranks: number of ranks, each with a link of its own.
        batch_seconds: time that a rank computes in a step; 0 asks about the sums alone.
        on: ``"cpu"``, or a name in `sparse_mpi.predict.cluster.GPUS`; by default h100, with a fit cpu.
        fabric: ``"tcp"`` or ``"rdma"``, for GPUs; by default rdma from 40 Gbit/s on.
        latency: microseconds of a message; by default the usual ones.
        cores: cores of a node; by default one a rank.
        ranks_per_node: ranks that share the cores.
        fit: a file of ``bench calibrate``, or the result of `sparse_mpi.predict.fitted.read`.
        dense_ms: milliseconds of a dense sum, where measured.
        algorithms: other ways to compare, as ``"oktopk:wire=packed"``; by default `COMPARED`.
        densities: candidates for the advised density.
        overlap: True: exchanges hide behind the backward pass.
        utilisation: share of a step that the batch is to take.

    Raises:
        TypeError, ValueError: a bad argument.
    """
    name, n, shapes = _tensors(model)
    if optimizer is not None:
        check_choice("optimizer", optimizer, OPTIMIZERS)
    check_whole("ranks", ranks, 1)
    check_range("batch_seconds", batch_seconds, "[0, inf)")
    check_range("utilisation", utilisation, "(0, 1)")
    if ranks > MAX_RANKS:
        raise ValueError(f"ranks must be at most {MAX_RANKS}, got {ranks}")
    fit = fitted.read(fit) if isinstance(fit, (str, Path)) else fit
    on = on or ("cpu" if fit else "h100")
    check_choice("on", on, ("cpu", *GPUS))
    if fit is not None and on != "cpu":
        raise ValueError(f"on must be cpu with a fit, whose steps were measured on cores, got {on}; leave one out")
    bits = rates.bits(rate)
    fabric = fabric or ("rdma" if bits >= RDMA else "tcp")
    check_choice("fabric", fabric, tuple(OF_GPUS))
    if on != "cpu" and ranks % min(ranks, ranks_per_node):
        raise ValueError(f"ranks must fill nodes of {ranks_per_node} ranks, got {ranks}")
    plain = (fit.cluster if fit else TYPICAL) if on == "cpu" else replace(OF_GPUS[fabric], gpu=GPUS[on])
    plain = plain if latency is None else replace(plain, alpha=latency * 1e-6)
    cluster = replace(plain, beta=8 / bits, cores=cores or float(ranks_per_node), node=ranks_per_node)
    dense = None if dense_ms is None else dense_ms / 1e3
    job = TrainingJob(n, ranks, batch_seconds, overlap, utilisation, dense, shapes)
    behind = ", sums during the backward pass" if overlap and batch_seconds else ""
    batch = f"a batch of {batch_seconds:g} s" if batch_seconds else "nothing but the sum (batch_seconds)"
    question = Question(
        job=job,
        cluster=cluster,
        fit=fit,
        densities=sorted(set(densities), reverse=True),
        ways=[way for way in algorithms if way != BASELINE] or (COMPARED + LOW_RANK if shapes else COMPARED),
    )
    assumed = f"{_machines(on, fabric, fit)}; {batch}{behind}"
    return question.answer(shown(name, optimizer), model=name or "a gradient", rate=rate, assumed=assumed)


def _tensors(model: object) -> tuple[str, int, Layout | None]:
    """Return a known model's name, or "", its gradient's elements, and its tensors, if known."""
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(
                f"model must be one of {', '.join(MODELS)}, a number of parameters or a torch module, got "
                f"{model!r}{meant(model, MODELS)}"
            )
        return model, layout(model).size, layout(model)
    if parameters := getattr(model, "parameters", None):
        shapes = Layout.of([tuple(of.shape) for of in parameters() if of.requires_grad])
        return "", shapes.size, shapes
    check_whole("model", model, 1)
    return "", int(model), None  # type: ignore[call-overload]


@dataclass(frozen=True)
class Question:
    job: TrainingJob
    cluster: Cluster
    fit: FittedCluster | None
    densities: Sequence[float]  # densities of other ways, the largest first
    ways: Sequence[str]

    def answer(self, accuracy: Shown, **described: str) -> Answer:
        # Second moments take bytes too: predict the density without them, and name the one with them
        job, own = self.job, usual_density(TRAINING)
        found = self._advice((own,), (TRAINING, BFLOAT16))
        every_step = [of for of in found.offers if of.local_steps == 1]
        dense, bfloat16, default = (
            next(of for of in every_step if of.way == way) for way in (BASELINE, BFLOAT16, TRAINING)
        )
        found = advice.chosen(job, dense, [dense, default], own)
        local = found.best if found.best.local_steps > 1 else None
        if local:
            found = found._replace(best=default, offers=[dense, default])
        others = self._advice(self.densities, self.ways)
        faster = tuple(of for of in others.offers if not of.dense and of.local_steps == 1)
        enough = others.best if others.best in faster else faster[0]
        pays = found.pays
        return Answer(
            verdict=pays.verdict,
            factor=pays.factor,
            bar=(pays.low, pays.high),
            dense=dense,
            bfloat16=bfloat16,
            default=default._replace(density=accuracy.density),
            shown=accuracy.words,
            use=accuracy.use,
            local=local._replace(density=accuracy.density) if local and accuracy.local else None,
            local_shown=accuracy.local,
            faster=faster,
            advised=enough if advice.GAIN * enough.step < min(dense.step, default.step) else None,
            reason=found.reason.removeprefix("leave it dense: "),
            break_even=self._break_even(default),
            cluster=self.cluster,
            job=job,
            **described,
        )

    def _advice(self, densities: Sequence[float], ways: Sequence[str], bits: float | None = None) -> Advice:
        cluster = self.cluster if bits is None else replace(self.cluster, beta=8 / bits)
        return advice.advise(self.job, cluster, self.fit, densities, ways)

    def _break_even(self, of: Offer) -> float | None:
        def gain(bits: float) -> float:
            there = self._advice((of.density,), (of.way,), bits).offers
            sparse, dense = (next(one for one in there if one.dense is wanted) for wanted in (False, True))
            return dense.step / sparse.step - advice.GAIN

        return advice.crossing(gain)


def _machines(on: str, fabric: str, fit: FittedCluster | None) -> str:
    if on == "cpu":
        return "fitted to --from" if fit else "cores and TCP like those of emulated hosts on an AMD EPYC"
    return (
        f"one {GPUS[on].name} a rank, {fabric}, dense sums as NCCL's published ones, sparse ones staged in host memory "
        "by MPI; they were measured between ranks that share a GPU alone"
    )


def _arguments(of: Offer) -> str:
    name, given = spelled(of.way)
    words = [f'algorithm="{name}"', *(f"{key}={value!r}" for key, value in given.items())]
    words += [] if _whole(of) else [f"density={of.density:g}"]
    return f"DistributedOptimizer(..., {', '.join(words)})"


def _named(of: Offer) -> str:
    at = "" if _whole(of) else f" at {100 * of.density:g} %"
    return f"{of.way}{at}{f', every {of.local_steps} local steps' if of.local_steps > 1 else ''}"


def _whole(of: Offer) -> bool:
    return of.way.startswith(BASELINE) or low_rank(of.way)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _gbit(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
