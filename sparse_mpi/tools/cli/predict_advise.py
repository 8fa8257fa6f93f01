"""``predict --advise`` and ``predict --run``: what to use on a cluster, and how long a recorded run takes there."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sparse_mpi.network.cluster import TYPICAL, Cluster
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.analysis import advice, exchanges, run_time
from sparse_mpi.tools.analysis.advice import Advice, Job
from sparse_mpi.tools.analysis.calibration import Fit
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.cli import predict_fit, values
from sparse_mpi.tools.cli.benchmark import Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.emulation import rate

MOST_RANKS = 64
SHOWN = 6  # offers
TRAINING = "elect"  # the default of the programs


OPTIONS = (
    option(
        "--advise",
        "say what to use: algorithm, message format, density, local steps; or, with --check, how good the advice is",
        action="store_true",
    ),
    option("--model", "whose gradient it is, in place of --n", choices=list(MODELS)),
    option(
        "--batch-seconds S",
        "seconds that a rank computes in a step; 0 asks for the fastest reduction alone (default: 0)",
        values.number,
        0.0,
    ),
    option(
        "--rate RATE",
        "of a rank's link in each direction, as tc writes it: 100mbit, 1gbit, 10gbit; where ranks share a link, each "
        "has its part",
        values.rate,
    ),
    option("--latency US", "microseconds of a message (default: as fitted)", values.number),
    option("--cores C", "cores of a node, any share of them (default: one a rank)", values.positive),
    count("--ranks-per-node R", 1, "ranks that share the cores (default: 1)"),
    option(
        "--densities D",
        f"densities to choose from (default: {' '.join(map(str, advice.DENSITIES))})",
        values.share,
        advice.DENSITIES,
        nargs="+",
    ),
    option("--overlap", "exchanges run during the backward pass, on cores to spare", action="store_true"),
    option("--utilisation U", "share of a step that the batch is to take (default: 0.9)", values.part, 0.9),
    option(
        "--run FILE",
        "metrics.jsonl of a training program: tell how long it takes on the cluster until --score",
        values.file("metrics.jsonl"),
        dest="trained",
    ),
    option("--score", "score of a test, to reach in --run", values.finite),
)


def advise(args: argparse.Namespace) -> Iterator[Output]:
    """Yield what to use on one cluster."""
    (ranks,) = _sizes(args)
    _check(args)
    fit, cluster = _cluster(args)
    n = Layout.of([shape for _, shape in MODELS[args.model]()]).size if args.model else args.n
    job = Job(n, ranks, args.batch_seconds, args.overlap, args.utilisation)
    densities = sorted(set(args.densities), reverse=True)
    with Bar(0, "simulating", True) as bar:
        found = advice.advise(job, cluster, fit, densities, args.algorithms, bar.say)
    yield _text(found, job, args, fit)
    offers = [of._asdict() for of in found.offers]
    yield {"cluster": vars(cluster), "advised": found.best._asdict(), "reason": found.reason, "cases": offers}


def run(args: argparse.Namespace) -> Iterator[Output]:
    """Yield how long a recorded run takes on one cluster until a score."""
    if args.score is None:
        raise Refused("--run goes with --score, of a test that is to be reached, such as --score 0.95")
    _check(args)
    fit, cluster = _cluster(args)
    try:
        run = run_time.read(args.trained)
        steps = run.steps_to(args.score)
        seconds = run_time.seconds(run, args.score, cluster, args.batch_seconds or None)
    except ValueError as problem:
        raise Refused(f"--run: {problem}") from None
    error = advice.error_of(run.way, fit)
    told = f"{seconds:.4g} s" + ("" if error is None else f" +- {error:.0%} of what is not the batch")
    yield (
        f"{run.way} at {run.density:g}, P = {run.ranks}: {run.score} {args.score:g} after {steps} steps; "
        f"{told} at {args.rate}, of which the batch {steps * (args.batch_seconds or run.batch):.4g} s"
    )
    yield {"seconds": seconds, "steps": steps, "error": error, "cluster": vars(cluster)}


def _sizes(args: argparse.Namespace) -> list[int]:
    """Return the one number of ranks to advise for; raises Refused unless there is one."""
    if len(args.ranks) != 1 or not 1 <= args.ranks[0] <= MOST_RANKS:
        asked = " ".join(map(str, args.ranks))
        raise Refused(f"--advise needs --ranks P, one number from 1 to {MOST_RANKS}, got {asked}")
    return list(args.ranks)


def _check(args: argparse.Namespace) -> None:
    """Raise Refused unless there is a link."""
    if args.rate is None:
        raise Refused("--advise and --run need --rate, of a rank's link, such as --rate 1gbit")


def _cluster(args: argparse.Namespace) -> tuple[Fit | None, Cluster]:
    """Return the fit to --from, if there are records, and the cluster that the options describe."""
    try:
        bits = rate.parse(args.rate)
        if bits is None:
            raise ValueError("rate must be that of a link such as 1gbit, got none")
    except ValueError as error:
        raise Refused(f"--{error}") from None
    try:
        known = [exchange for record in args.records for exchange in exchanges.read(record)]
        fit = predict_fit.fitted(known) if known else None
    except ValueError as error:
        raise Refused(f"--from: {error}") from None
    alpha = None if args.latency is None else args.latency * 1e-6
    cores = args.cores or float(args.ranks_per_node)
    return fit, advice.placed(fit.cluster if fit else TYPICAL, bits / 1e9, alpha, cores, args.ranks_per_node)


def _text(found: Advice, job: Job, args: argparse.Namespace, fit: Fit | None) -> str:
    """Return the advice, and a short table of the fastest ways beside dense."""
    table = Table(
        Column("", -max(len(of.way) for of in found.offers), "way"),
        Column("density", 8, lambda of: "all" if of.way.startswith("dense") else f"{of.density:g}"),
        Column("local steps", 12, "local_steps"),
        Column("step, ms", 10, "step", ".2f", 1e3),
        Column("reduction, ms", 14, "exposed", ".2f", 1e3),
        Column("+-", 6, lambda of: "?" if of.error is None else f"{of.error:.0%}"),
        Column("batch", 6, lambda of: job.batch / of.step if of.step else 1, ".0%"),
    )
    shown = found.offers[:SHOWN] + [of for of in found.offers[SHOWN:] if of.dense or of is found.best]
    heading = (
        f"n = {job.n:,}, P = {job.ranks}, {args.rate} a rank, batch {job.batch:g} s"
        f"{', exchanges during the backward pass' if job.overlap else ''}"
    )
    lines = [heading, "", *table.lines(shown), "", _taken(found)]
    if not (found.best.dense or found.best.way.startswith(TRAINING)):
        lines.append(f"this is about speed; {TRAINING}, the default of training, is as accurate as dense: which-one.md")
    if fit is None:
        lines.append("no error bar without --from: these are the costs of messages that emulated hosts were fitted to")
    return "\n".join(lines)


def _taken(found: Advice) -> str:
    """Return the recommendation and its reason as a sentence."""
    best = found.best
    if best.dense:
        return found.reason
    locally = f", every {best.local_steps} local steps" if best.local_steps > 1 else ""
    return f"take {best.way} at density {best.density:g}{locally}: {found.reason}"
