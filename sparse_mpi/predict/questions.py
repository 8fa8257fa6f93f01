"""``python -m sparse_mpi predict``: what a step takes on a cluster, and what to use there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from textwrap import fill
from typing import Any

from sparse_mpi.cli import options, values
from sparse_mpi.cli.benchmark import Benchmark, Output
from sparse_mpi.cli.options import count, option
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused, refusing
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.predict import advice, calibration, rates
from sparse_mpi.predict import options as predict_options
from sparse_mpi.predict.advice import Advice, Job, Offer
from sparse_mpi.predict.calibration import Fit
from sparse_mpi.predict.cluster import GPUS, OF_GPUS, TYPICAL, Cluster
from sparse_mpi.predict.models import MODELS, layout
from sparse_mpi.reduction.arguments import spelled

DESCRIPTION = """\
Does it pay? Ask with your own model and cluster; no MPI is needed, and the answer takes a second:

  python -m sparse_mpi predict advise --model resnet50 --ranks 16 --rate 25gbit --batch-seconds 0.2
  python -m sparse_mpi predict advise --n 124000000 --ranks 8 --rate 1gbit --on cpu --cores 16
  python -m sparse_mpi predict networks --model bert-base

Is the answer good? Fit to what was measured on your machines, and see what that predicts for others:

  python -m sparse_mpi bench compare --ranks 2 4 8 --rate 100mbit 1gbit --json compare.json
  python -m sparse_mpi predict advise --model vgg16 --ranks 8 --rate 300mbit --on cpu --from compare.json
  python -m sparse_mpi predict check --from compare.json --ranks 8 --plot errors.png
"""
COMPARED = (
    *("oktopk:wire=packed+bf16", "oktopk:wire=packed", "oktopk", "topka:wire=packed+bf16", "topka:wire=packed"),
    *("topka", "topkdsa:wire=packed", "topkdsa", "gaussiank:wire=packed", "micro", "elect"),
)
TRAINING, DENSITY = "elect", 0.0275  # the defaults of training, with which it was as accurate as dense
SHOWN = 5  # offers
WIDTH = 88  # of the answer's lines
GIGABITS = (0.1, 0.3, 1, 2, 5, 10, 25, 50, 100, 200, 400)
FARTHEST = 1e12  # bits a second, beyond which there are no links to speak of
RDMA = 40e9  # bits a second from which links are taken to have RDMA

FROM = option(
    "--from FILE",
    f"records of {calibration.BENCHES}, to fit to what messages cost and how fast ranks compute",
    values.file("compare.json"),
    [],
    dest="records",
    nargs="+",
)
RATE = option(
    "--rate RATE",
    "of a rank's link in each direction: 100mbit, 25gbit, 12.5GB/s; where ranks share a link, each has its part",
    predict_options.any_rate,
)
CLUSTER = (
    option(
        "--on WHAT",
        f"where gradients are: {', '.join(GPUS)}, one a rank, or cpu, cores like those of this project's records "
        "(default: h100; cpu with --from)",
        choices=["cpu", *GPUS],
    ),
    option("--fabric", "of the links, for GPUs (default: rdma from 40gbit on)", choices=list(OF_GPUS)),
    option("--latency US", "microseconds of a message (default: as fitted, or usual for the fabric)", values.number),
    option("--cores C", "cores of a node, any share of them (default: one a rank)", values.positive),
    count("--ranks-per-node R", 1, "ranks that share the cores"),
    FROM,
)
JOB = (
    option("--model", "whose gradient it is, in place of --n", choices=list(MODELS)),
    count("--n", 14_728_266, "elements of the gradient (default: 14728266, VGG-16)"),
)


def cluster_of(args: argparse.Namespace) -> tuple[Fit | None, Cluster]:
    """Return the fit to --from, if there are records, and the cluster that the options describe."""
    if args.rate is None:
        raise Refused("--rate must say what a rank's link carries, such as --rate 25gbit")
    bits = rates.bits(args.rate)
    with refusing("--from: "):
        known = [exchange for record in args.records for exchange in calibration.read(record)]
        fit = calibration.fit(known) if known else None
    args.on = args.on or ("cpu" if fit else "h100")
    if fit is not None and args.on != "cpu":
        raise Refused(f"--from has steps that were measured on cores, so --on must be cpu, got {args.on}")
    args.fabric = args.fabric or ("rdma" if bits >= RDMA else "tcp")
    if args.on == "cpu":
        plain = fit.cluster if fit else TYPICAL
    else:
        plain = replace(OF_GPUS[args.fabric], gpu=GPUS[args.on])
    alpha = None if args.latency is None else args.latency * 1e-6
    cores = args.cores or float(args.ranks_per_node)
    return fit, advice.placed(plain, bits, alpha, cores, args.ranks_per_node)


def _n(args: argparse.Namespace) -> int:
    return layout(args.model).size if args.model else int(args.n)


def _advise(args: argparse.Namespace) -> Iterator[Output]:
    """Yield what to use on one cluster: the answer, and a table."""
    fit, cluster = cluster_of(args)
    dense = None if args.dense_ms is None else args.dense_ms / 1e3
    job = Job(_n(args), args.ranks, args.batch_seconds, args.overlap, args.utilisation, dense)
    names = args.algorithms or COMPARED
    found = advice.advise(job, cluster, fit, sorted(set(args.densities), reverse=True), names)
    accurate = advice.advise(job, cluster, fit, (DENSITY,), (TRAINING,))
    alternative = next(of for of in accurate.offers if not of.dense and of.local_steps == 1)
    yield "\n\n".join([_answer(found, alternative, job, args, cluster, fit), _offers(found, alternative, job)])
    pays = found.pays
    yield {
        "verdict": pays.verdict,
        "factor": pays.factor,
        "bar": [pays.low, pays.high],
        "cluster": {name: of for name, of in vars(cluster).items() if name not in ("gpu", "fabric")},
        "advised": found.best._asdict(),
        "reason": found.reason,
        "sparse": pays.sparse._asdict(),
        "break even": _break_even(pays.sparse, job, cluster, fit),
        "cases": [of._asdict() for of in found.offers],
    }


def _break_even(of: Offer, job: Job, cluster: Cluster, fit: Fit | None) -> float | None:
    """Return the bits a second above which dense is faster than a sparse offer; None if it is nowhere."""

    def gain(bits: float) -> float:
        there = advice.advise(job, replace(cluster, beta=8 / bits), fit, (of.density,), (of.way,)).offers
        sparse, dense = (next(one for one in there if one.dense is wanted) for wanted in (False, True))
        return dense.step / sparse.step - advice.GAIN

    return advice.crossing(gain)


def _answer(
    found: Advice, alternative: Offer, job: Job, args: argparse.Namespace, cluster: Cluster, fit: Fit | None
) -> str:
    """Return the answer in words: the verdict, by how much, what to run, what would change it, what is assumed."""
    dense = next(of for of in found.offers if of.dense)
    pays, best = found.pays, found.best
    heads = {
        "sparse": "Sparse pays.",
        "dense": "Leave it dense.",
        "either": "It may pay, or not: what is known does not tell.",
    }
    of_model = f"{args.model or 'a gradient'} ({job.n:,} elements)"
    where = f"{job.ranks} ranks at {args.rate}"
    lines = [
        f"{heads[pays.verdict]} A step of {of_model} on {where} takes {_ms(dense.step)} dense and "
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
    if (crossing := _break_even(pays.sparse, job, cluster, fit)) is not None and crossing < FARTHEST:
        lines.append(f"What would change that: links. Up to {_gbit(crossing)} a rank sparse is faster, above it dense.")
    lines.append(f"Assumed: {assumed(job, args, fit)}.")
    return "\n".join(fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines)


def assumed(job: Job, args: argparse.Namespace, fit: Fit | None) -> str:
    """Return what the answer rests on."""
    if args.on == "cpu":
        told = "fitted to --from" if fit else "cores and TCP like those of emulated hosts on an AMD EPYC"
    else:
        told = (
            f"one {GPUS[args.on].name} a rank, {args.fabric}, dense sums as NCCL's published ones, sparse ones staged "
            "in host memory by MPI; no sparse sum was measured between GPUs"
        )
    batch = f"a batch of {job.batch:g} s" if job.batch else "nothing but the sum (--batch-seconds)"
    behind = ", sums during the backward pass" if job.overlap and job.batch else ""
    return f"{told}; {batch}{behind}"


def _arguments(of: Offer) -> str:
    """Return an offer as arguments of `DistributedOptimizer`."""
    name, given = spelled(of.way)
    words = [f'algorithm="{name}"', *(f'{key}="{value}"' for key, value in given.items()), f"density={of.density:g}"]
    return f"DistributedOptimizer(..., {', '.join(words)})" + (
        f" and --local-steps {of.local_steps}" if of.local_steps > 1 else ""
    )


def _named(of: Offer) -> str:
    locally = f", every {of.local_steps} local steps" if of.local_steps > 1 else ""
    return "dense" if of.dense else f"{of.way} at {100 * of.density:g} %{locally}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _gbit(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _offers(found: Advice, alternative: Offer, job: Job) -> str:
    """Return a short table of the fastest ways beside dense and the default of training, and what its columns are."""
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
    note = (
        "step: of training, batch and sum; sum: what the batch does not hide, to: what it may\n"
        "take at most; batch: its share of a step"
    )
    return "\n".join([*table.lines(rows), note])


def _networks(args: argparse.Namespace) -> Iterator[Output]:
    """Yield what a step takes by rate and ranks, and up to which rate it pays."""
    n, cases = _n(args), []
    args.on, args.records, chosen = args.on or "h100", [], args.fabric
    for ranks in args.ranks:
        for gbit in GIGABITS:
            args.rate, args.fabric = f"{gbit}gbit", chosen
            _, cluster = cluster_of(args)
            job = Job(n, ranks, args.batch_seconds, True)
            found = advice.advise(job, cluster, None, (args.density,), args.algorithms or COMPARED)
            dense = next(of for of in found.offers if of.dense)
            cases.append({"ranks": ranks, "gbit": gbit, "dense": dense.step, "sparse": found.pays.sparse.step,
                          "way": found.pays.sparse.way, "verdict": found.pays.verdict})  # fmt: skip
    columns = (Column(f"P = {ranks}", 24, partial(_cell, cases, ranks)) for ranks in args.ranks)
    table = Table(Column("Gbit/s", 7, lambda gbit: gbit, "g"), *columns)
    yield "\n".join(
        [
            f"{args.model or 'gradient'}, n = {n:,}, density {args.density:g}, {args.on}, batch "
            f"{args.batch_seconds:g} s: dense / sparse, ms, and what pays",
            *table.lines(GIGABITS),
        ]
    )
    yield {"n": n, "cases": cases}


def _cell(cases: list[dict[str, Any]], ranks: int, gbit: float) -> str:
    of = next(of for of in cases if (of["ranks"], of["gbit"]) == (ranks, gbit))
    return f"{1e3 * of['dense']:,.1f} / {1e3 * of['sparse']:,.1f} {of['verdict']}"


BATCH = option(
    "--batch-seconds S",
    "seconds that a rank computes in a step; 0 asks for the fastest reduction alone",
    values.number,
    0.0,
)
ALGORITHMS = option(
    "--algorithms NAME",
    f"ways to compare, of {options.SPELLINGS} (default: {', '.join(COMPARED)})",
    values.Value(calibration.flat, "", "oktopk"),
    [],
    nargs="+",
)
PREDICTIONS = (
    Benchmark(
        "advise",
        help="does it pay, and what to use: algorithm, message format, density, local steps",
        description=DESCRIPTION,
        options=(
            *JOB,
            option("--ranks P", "ranks, each with a link of its own", values.integer(1, MAX_RANKS), 8),
            RATE,
            BATCH,
            *CLUSTER,
            option("--dense-ms MS", "milliseconds of a dense sum there, where you have measured it", values.positive),
            ALGORITHMS,
            option("--densities D", "densities to choose from", values.share, advice.DENSITIES, nargs="+"),
            option(
                "--no-overlap",
                "sums wait for the end of the backward pass; else exchanges, dense and sparse, hide behind it",
                action="store_false",
                dest="overlap",
            ),
            option("--utilisation U", "share of a step that the batch is to take", values.part, 0.9),
            options.json("also write all numbers"),
        ),
        measure=_advise,
    ),
    Benchmark(
        "networks",
        help="dense and sparse by rate and ranks, and where each pays",
        description="Milliseconds of a step, dense and by the fastest sparse sum, for links to 400 Gbit/s.",
        options=(
            *JOB,
            option("--ranks P", "numbers of ranks", values.integer(2, MAX_RANKS), [4, 16, 64, 256], nargs="+"),
            BATCH,
            options.share("share of elements that is sent", advice.USUAL),
            *[each for each in CLUSTER if each is not FROM],
            ALGORITHMS,
            options.json("also write all numbers"),
        ),
        measure=_networks,
    ),
)
