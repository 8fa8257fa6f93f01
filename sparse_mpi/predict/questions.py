"""The answer of ``predict advise``, as a text and a record."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from textwrap import fill
from typing import Any

from sparse_mpi.cli import values
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.predict import advice, fitted, rates
from sparse_mpi.predict.advice import Advice, Offer, TrainingJob, advise
from sparse_mpi.predict.cluster import GPUS, OF_GPUS, TYPICAL, Cluster
from sparse_mpi.predict.fitted import FittedCluster
from sparse_mpi.predict.models import layout
from sparse_mpi.predict.ways import predictable
from sparse_mpi.reduction.arguments import spelled

COMPARED = (
    *("oktopk:wire=packed+bf16", "oktopk:wire=packed", "oktopk", "topka:wire=packed+bf16", "topka:wire=packed"),
    *("topka", "topkdsa:wire=packed", "topkdsa", "gaussiank:wire=packed", "micro", "elect"),
)
TRAINING, DENSITY = "elect", 0.0275  # the defaults of training, with which it was as accurate as dense
SHOWN = 5  # offers
WIDTH = 88  # of the answer's lines
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


def flat(text: str) -> str:
    """Return an algorithm whose traffic the length of the gradient tells; for argparse."""
    if not predictable(values.algorithm(text)):
        raise ArgumentTypeError(f"{text} needs shapes or nodes, which the length of a gradient does not tell")
    return text


def cluster_of(args: Namespace) -> tuple[FittedCluster | None, Cluster]:
    """Return the fit of --from, if there is one, and the cluster that the options describe."""
    bits = rates.bits(args.rate)
    with refusing("--from: "):
        fit = fitted.read(args.fit) if args.fit else None
    args.on = args.on or ("cpu" if fit else "h100")
    if fit is not None and args.on != "cpu":
        raise Refused(f"--from has steps that were measured on cores, so --on must be cpu, got {args.on}")
    args.fabric = args.fabric or ("rdma" if bits >= RDMA else "tcp")
    if args.on == "cpu":
        plain = fit.cluster if fit else TYPICAL
    else:
        plain = replace(OF_GPUS[args.fabric], gpu=GPUS[args.on])
    if args.latency is not None:
        plain = replace(plain, alpha=args.latency * 1e-6)
    if args.on != "cpu" and args.ranks % min(args.ranks, args.ranks_per_node):
        raise Refused(f"--ranks must fill nodes of {args.ranks_per_node} --ranks-per-node, got {args.ranks}")
    cores, node = args.cores or float(args.ranks_per_node), args.ranks_per_node
    return fit, replace(plain, beta=8 / bits, cores=cores, node=node)


def advised(args: Namespace) -> tuple[str, dict[str, Any]]:
    """Answer the question for one cluster: a verdict in words, and a table."""
    fit, cluster = cluster_of(args)
    dense = None if args.dense_ms is None else args.dense_ms / 1e3
    n = layout(args.model).size if args.model else args.n
    job = TrainingJob(n, args.ranks, args.batch_seconds, args.overlap, args.utilisation, dense)
    names = args.algorithms or COMPARED
    found = advise(job, cluster, fit, sorted(set(args.densities), reverse=True), names)
    accurate = advise(job, cluster, fit, (DENSITY,), (TRAINING,))
    alternative = next(of for of in accurate.offers if not of.dense and of.local_steps == 1)
    pays = found.pays
    crossing = _break_even(pays.sparse, job, cluster, fit)
    text = "\n\n".join([_answer(found, alternative, job, args, crossing, fit), _offers(found, alternative, job)])
    return text, {
        "verdict": pays.verdict,
        "factor": pays.factor,
        "bar": [pays.low, pays.high],
        "cluster": {name: of for name, of in vars(cluster).items() if name not in ("gpu", "fabric")},
        "advised": found.best._asdict(),
        "reason": found.reason,
        "sparse": pays.sparse._asdict(),
        "break even": crossing,
        "cases": [of._asdict() for of in found.offers],
    }


def _break_even(of: Offer, job: TrainingJob, cluster: Cluster, fit: FittedCluster | None) -> float | None:
    def gain(bits: float) -> float:
        there = advise(job, replace(cluster, beta=8 / bits), fit, (of.density,), (of.way,)).offers
        sparse, dense = (next(one for one in there if one.dense is wanted) for wanted in (False, True))
        return dense.step / sparse.step - advice.GAIN

    return advice.crossing(gain)


def _answer(
    found: Advice,
    alternative: Offer,
    job: TrainingJob,
    args: Namespace,
    crossing: float | None,
    fit: FittedCluster | None,
) -> str:
    dense = next(of for of in found.offers if of.dense)
    pays, best = found.pays, found.best
    of_model = f"{args.model or 'a gradient'} ({job.n:,} elements)"
    where = f"{job.ranks} ranks at {args.rate}"
    lines = [
        f"{HEADS[pays.verdict]} A step of {of_model} on {where} takes {_ms(dense.step)} dense and "
        f"{_ms(pays.sparse.step)} by {_named(pays.sparse)}: {pays.factor:.3g} times as fast, between {pays.low:.3g} "
        f"and {pays.high:.3g} by how far such predictions were off."
    ]
    if pays.verdict == "sparse":
        lines.append(f"Run: python -m sparse_mpi run -n {job.ranks} train.py with {_arguments(best)}")
        factor = dense.step / alternative.step
        lines.append(
            f"As accurate as dense in training: {_named(alternative)}, the default, {factor:.3g} times as fast."
        )
    elif best.dense:
        lines.append(f"Why: {found.reason.removeprefix('leave it dense: ')}.")
    if crossing is not None and crossing < FARTHEST:
        lines.append(f"What would change that: links. Up to {_gbit(crossing)} a rank sparse is faster, above it dense.")
    lines.append(f"Assumed: {_assumed(job, args, fit)}.")
    return "\n".join(fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines)


def _assumed(job: TrainingJob, args: Namespace, fit: FittedCluster | None) -> str:
    if args.on == "cpu":
        told = "fitted to --from" if fit else "cores and TCP like those of emulated hosts on an AMD EPYC"
    else:
        told = (
            f"one {GPUS[args.on].name} a rank, {args.fabric}, dense sums as NCCL's published ones, sparse ones staged "
            "in host memory by MPI; they were measured between ranks that share a GPU alone"
        )
    batch = f"a batch of {job.batch:g} s" if job.batch else "nothing but the sum (--batch-seconds)"
    behind = ", sums during the backward pass" if job.overlap and job.batch else ""
    return f"{told}; {batch}{behind}"


def _arguments(of: Offer) -> str:
    name, given = spelled(of.way)
    words = [f'algorithm="{name}"', *(f'{key}="{value}"' for key, value in given.items()), f"density={of.density:g}"]
    locally = f" and --local-steps {of.local_steps}" if of.local_steps > 1 else ""
    return f"DistributedOptimizer(..., {', '.join(words)}){locally}"


def _named(of: Offer) -> str:
    locally = f", every {of.local_steps} local steps" if of.local_steps > 1 else ""
    return "dense" if of.dense else f"{of.way} at {100 * of.density:g} %{locally}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _gbit(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _offers(found: Advice, alternative: Offer, job: TrainingJob) -> str:
    rows = found.offers[:SHOWN] + [of for of in found.offers[SHOWN:] if of.dense or of is found.best]
    if all((of.way, of.density) != (alternative.way, alternative.density) for of in rows):
        rows.append(alternative)
    table = Table(
        Column("", -max(len(of.way) for of in rows), "way"),
        Column("density", 8, lambda of: "all" if of.way.startswith("dense") else f"{of.density:g}"),
        Column("local steps", 12, "local_steps"),
        Column("step, ms", 10, "step", ".2f", 1e3),
        Column("sum, ms", 10, "exposed", ".2f", 1e3),
        Column("to", 8, lambda of: 1e3 * of.exposed * of.off.longer, ".2f"),
        Column("batch", 6, lambda of: job.batch / of.step if of.step else 1, ".0%"),
    )
    return "\n".join([*table.lines(rows), NOTE])
