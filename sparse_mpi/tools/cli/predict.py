"""``python -m sparse_mpi predict``: what a step takes on a cluster, and what to use there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.network import model as network_fit
from sparse_mpi.network.cluster import GPUS, OF_GPUS, TYPICAL, Cluster
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi.tools import values
from sparse_mpi.tools.analysis import advice, calibration, trained
from sparse_mpi.tools.analysis.advice import Advice, Job, Offer, Verdict
from sparse_mpi.tools.analysis.calibration import Fit, Prediction
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.models import MODELS, layout
from sparse_mpi.tools.bench.records import provenance
from sparse_mpi.tools.cli import options
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.emulation import schedule
from sparse_mpi.tools.figures.draw_predict import check as draw_check
from sparse_mpi.tools.values import Refused, refusing

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
RIGHT = 0.1  # advice whose step is at most so much longer than the fastest is right
SHOWN = 5  # offers
GIGABITS = (0.1, 0.3, 1, 2, 5, 10, 25, 50, 100, 200, 400)
SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
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
    values.any_rate,
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


def _cluster(args: argparse.Namespace) -> tuple[Fit | None, Cluster]:
    """Return the fit to --from, if there are records, and the cluster that the options describe."""
    if args.rate is None:
        raise Refused("--rate must say what a rank's link carries, such as --rate 25gbit")
    bits = schedule.bits(args.rate)
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
    fit, cluster = _cluster(args)
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
        "break even": _break_even(found.best, job, cluster, fit),
        "cases": [of._asdict() for of in found.offers],
    }


def _break_even(best: Offer, job: Job, cluster: Cluster, fit: Fit | None) -> float | None:
    """Return the bits a second above which dense is faster than the best sparse offer; None if it is nowhere."""
    way = next((best.way for _ in [0] if not best.dense), COMPARED[0])
    density = best.density if not best.dense else advice.USUAL

    def gain(bits: float) -> float:
        there = advice.advise(job, replace(cluster, beta=8 / bits), fit, (density,), (way,)).offers
        sparse, dense = (next(of for of in there if of.dense is wanted) for wanted in (False, True))
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
    if (crossing := _break_even(pays.sparse, job, cluster, fit)) is not None and crossing < FARTHEST:
        lines.append(f"What would change that: links. Up to {_gbit(crossing)} a rank sparse is faster, above it dense.")
    lines.append(f"Assumed: {_assumed(job, args, fit)}.")
    return "\n".join(lines)


def _assumed(job: Job, args: argparse.Namespace, fit: Fit | None) -> str:
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
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2g} ms"


def _gbit(bits: float) -> str:
    return f"{bits / 1e9:.2g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"


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
        "step: of training, batch and sum; sum: what the batch does not hide, to: what it may take at most; batch: "
        "its share of a step"
    )
    return "\n".join([*table.lines(rows), note])


def _run(args: argparse.Namespace) -> Iterator[Output]:
    """Yield how long a recorded run takes on one cluster until a score."""
    fit, cluster = _cluster(args)
    with refusing(""):
        run = trained.read_run(args.file)
        needed = run.steps_to(args.score)
        seconds = trained.run_seconds(run, args.score, cluster, args.batch_seconds or None)
    longer = advice.off_of(run.way, run.n, fit, cluster).longer
    assumed = _assumed(Job(run.n, run.ranks, run.batch), args, fit)
    yield (
        f"{run.way} at {run.density:g}, P = {run.ranks}: {run.score} {args.score:g} after {needed} steps; "
        f"{seconds:.4g} s at {args.rate}, of which the batch {needed * (args.batch_seconds or run.batch):.4g} s; "
        f"the rest may take {longer:.2g} times as long.\nAssumed: {assumed}."
    )
    yield {"seconds": seconds, "steps": needed, "longer": longer}


def _fit(args: argparse.Namespace) -> Iterator[Output]:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes the file."""
    comm = comm_of_job()
    with refusing(""):
        seconds = network_fit.measure(comm, SIZES)
    if comm.rank:
        return
    network = network_fit.nearest([1] * len(SIZES), SIZES, seconds)
    table = Table(
        Column("bytes", 9, lambda row: row[0]),
        Column("us", 10, lambda row: 1e6 * row[1], ".1f"),
        Column("fit, us", 10, lambda row: 1e6 * (network.alpha + network.beta * row[0]), ".1f"),
    )
    rate = "" if not network.beta else f"; --rate {8e-9 / network.beta:.3g}gbit --latency {1e6 * network.alpha:.3g}"
    yield "\n".join([*table.lines(zip(SIZES, seconds, strict=True)), f"{network}{rate}"])
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    records.write(args.json or "network.json", vars(network), {"ranks": comm.size, "points": points}, provenance())


def _check(args: argparse.Namespace) -> Iterator[Output]:
    """Fit to what was measured, and compare what that predicts for other steps with what was measured of them."""
    with refusing("--from, --on-records or --ranks: "):
        known = [exchange for record in args.records for exchange in calibration.read(record)]
        others: list[calibration.Exchange] = []
        if args.ranks:
            known, others = calibration.held_out(known, args.ranks)
        others += [exchange for record in args.others for exchange in calibration.read(record)]
        if not others:
            raise ValueError("there must be steps to predict, got none; name records, or ranks of --from to hold out")
        found = calibration.fit(known) if known else Fit(calibration.START, [])
        predictions = [found.predict(exchange) for exchange in others]
        checks, verdicts = calibration.by_rate(predictions), advice.judged(predictions)
    yield f"{'fitted to P = ' + ', '.join(map(str, found.ranks)) if known else 'not fitted'}: {_described(found)}\n"
    yield "\n\n".join(_checked(rate, of) for rate, of in checks.items())
    yield f"\n{_verdicts(verdicts)}"
    yield {
        "cluster": {name: of for name, of in vars(found.cluster).items() if name not in ("gpu", "fabric")},
        "fitted to P": found.ranks,
        "rates": {rate: {"median step error": calibration.median_error(of)} for rate, of in checks.items()},
        "advice": [
            {
                "job": of.job,
                "advised": of.advised.measured.candidate,
                "fastest": of.best.measured.candidate,
                "longer": of.regret,
            }
            for of in verdicts
        ],
        "cases": [of.measured._asdict() | {"predicted step": of.step} for of in predictions],
    }


def _described(found: Fit) -> str:
    """Return what was fitted, in words."""
    of = found.cluster
    told = (
        f", within {1 + advice.spread(found.predictions):.2g} times for nine of ten steps" if found.predictions else ""
    )
    return (
        f"a message takes {1e6 * of.alpha:.3g} us and costs {1e6 * of.message:.3g} us of processor time at either end, "
        f"a byte {1e9 * of.byte:.2g} ns; computing takes {of.speed:.2f} times as long as recorded and "
        f"{of.crowding:.0%} more in a crowd{told}"
    )


def _checked(rate: str, predictions: list[Prediction]) -> str:
    """Return a line for each prediction at one rate."""
    table = Table(
        Column("candidate", -max(9, *(len(p.measured.candidate) for p in predictions)), lambda p: p.measured.candidate),
        Column("n", 12, lambda of: of.measured.n, ","),
        Column("P", 4, lambda of: of.measured.ranks),
        Column("step", 10, lambda of: 1e3 * of.measured.step, ".3f"),
        Column("predicted", 10, "step", ".3f", 1e3),
        Column("error", 7, "error", "+.0%"),
    )
    error = f"median error without sign: {calibration.median_error(predictions):.0%}"
    return "\n".join([f"{rate or 'steps'}: ms", *table.lines(predictions), error])


def _verdicts(verdicts: list[Verdict]) -> str:
    """Return a line for each job: what is advised there, and how much longer it takes than the fastest."""
    table = Table(
        Column("job", -34, lambda of: "{} P = {} n = {:,} {:g}".format(*of.job).strip()),
        Column("advised", -22, lambda of: of.advised.measured.candidate),
        Column("ms", 9, lambda of: 1e3 * of.advised.measured.step, ".2f"),
        Column("fastest", -22, lambda of: of.best.measured.candidate),
        Column("ms", 9, lambda of: 1e3 * of.best.measured.step, ".2f"),
        Column("longer", 7, "regret", ".0%"),
    )
    right = sum(of.regret <= RIGHT for of in verdicts)
    return "\n".join([*table.lines(verdicts), f"right, within {RIGHT:.0%} of the fastest: {right} of {len(verdicts)}"])


def _networks(args: argparse.Namespace) -> Iterator[Output]:
    """Yield what a step takes by rate and ranks, and up to which rate it pays."""
    n, cases = _n(args), []
    args.on, args.records = args.on or "h100", []
    for ranks in args.ranks:
        for gbit in GIGABITS:
            args.rate, args.fabric = f"{gbit}gbit", None if args.chosen is None else args.chosen
            _, cluster = _cluster(args)
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
    f"ways to compare, of {values.SPELLINGS} (default: {', '.join(COMPARED)})",
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
            option(
                "--over", "tcp or rdma for all (default: rdma from 40gbit on)", choices=list(OF_GPUS), dest="chosen"
            ),
            ALGORITHMS,
            options.json("also write all numbers"),
        ),
        measure=_networks,
    ),
    Benchmark(
        "run",
        help="how long a recorded training run would take on a cluster until a score",
        description="Steps of a run up to the first epoch whose test is as good as --score, each as long as predicted.",
        options=(
            option("file", "metrics.jsonl of a training program", values.file("metrics.jsonl")),
            option("--score", "score of a test, to reach in the run", values.finite, required=True),
            RATE,
            BATCH,
            *CLUSTER,
            options.json("also write all numbers"),
        ),
        measure=_run,
    ),
    Benchmark(
        "fit",
        help="measure this machine's network under mpiexec: alpha and beta",
        description="Messages between neighbours, all ranks at once, and the --rate and --latency they come to.",
        options=(options.json("file of the network (default: network.json)"),),
        measure=_fit,
    ),
    Benchmark(
        "check",
        help="fit to what was measured, and compare what that predicts with what was measured elsewhere",
        description="Fit to records, predict the steps of others, and tell how good times and advice are.",
        options=(
            FROM,
            option("others", "records to predict", values.file("p8.json"), [], nargs="*"),
            count("--ranks P", [], "or keep these of --from out of the fit, and predict them", nargs="+"),
            options.json("also write all numbers"),
            options.plot("draw predicted over measured seconds"),
        ),
        measure=_check,
        figure=draw_check,
    ),
)
