"""Where the numbers of ``predict`` come from, and how well they predict what was measured elsewhere.

``predict --advise`` and ``predict --run``: what to use on a cluster, and how long a recorded run takes there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from sparse_mpi.comm.conversion import comm_of_job
from sparse_mpi.network import model as network_fit
from sparse_mpi.network.cluster import TYPICAL, Cluster
from sparse_mpi.tools import values
from sparse_mpi.tools.analysis import advice, calibration, steps
from sparse_mpi.tools.analysis.advice import Advice, Job, Verdict
from sparse_mpi.tools.analysis.calibration import Fit, Prediction
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.models import MODELS, layout
from sparse_mpi.tools.bench.progress import Bar, progress
from sparse_mpi.tools.bench.records import provenance
from sparse_mpi.tools.cli.benchmark import Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.emulation import schedule
from sparse_mpi.tools.values import Refused, refusing

SIZES = tuple(4**power for power in range(12))  # bytes, to 4 MiB
RIGHT = 0.1  # advice whose step is at most so much longer than the fastest is right


def fit(file: str) -> Iterator[Output]:
    """Measure the network between the ranks that MPI started; rank 0 prints, and writes ``file`` for --network."""
    comm = comm_of_job()
    with refusing("--fit: "):
        seconds = network_fit.measure(comm, SIZES)
    if comm.rank:
        return
    network = network_fit.nearest([1] * len(SIZES), SIZES, seconds)
    table = Table(
        Column("bytes", 9, lambda row: row[0]),
        Column("us", 10, lambda row: 1e6 * row[1], ".1f"),
        Column("fit, us", 10, lambda row: 1e6 * (network.alpha + network.beta * row[0]), ".1f"),
    )
    yield "\n".join([*table.lines(zip(SIZES, seconds, strict=True)), str(network)])
    points = [list(point) for point in zip(SIZES, seconds, strict=True)]
    records.write(file, vars(network), {"ranks": comm.size, "points": points}, provenance())


def check(args: argparse.Namespace) -> Iterator[Output]:
    """Fit to what was measured on few ranks, and compare what that predicts for others with what was measured there."""
    if not args.records or not (args.check or args.check_ranks):
        raise Refused(
            "--from FILE ... goes with --check FILE ..., with --check-ranks P ... or with both: fit to the former, "
            "predict the latter"
        )
    with refusing("--from, --check or --check-ranks: "):
        known, others = _divided(args)
        found = fitted(known)
        predictions = [found.predict(exchange) for exchange in progress(others, "predicting steps")]
        checks = calibration.by_rate(predictions)
        verdicts = advice.judged(predictions) if args.advise else []
    yield f"fitted to P = {', '.join(map(str, found.ranks))}: {described(found)}\n"
    yield "\n\n".join(_table(rate, of) for rate, of in checks.items())
    if verdicts:
        yield f"\n{_verdicts(verdicts)}"
    yield _record(found, checks, verdicts)


def _divided(args: argparse.Namespace) -> tuple[list[calibration.Exchange], list[calibration.Exchange]]:
    """Return the steps to fit to, and those to predict.

    Raises ValueError: a record is none, or there are no steps of one or the other kind.
    """
    known = [exchange for record in args.records for exchange in calibration.read(record)]
    others: list[calibration.Exchange] = []
    if args.check_ranks:
        known, others = calibration.held_out(known, args.check_ranks)
    return known, others + [exchange for record in args.check for exchange in calibration.read(record)]


def fitted(known: list[calibration.Exchange]) -> Fit:
    """Return the fit to measured steps; the steps of algorithms are recorded behind a progress bar.

    Raises ValueError: there are too few.
    """
    for exchange in progress(known, "recording steps"):
        calibration.predict(exchange, calibration.START)
    return calibration.fit(known)


def described(found: Fit) -> str:
    """Return what was fitted, in words."""
    of = found.cluster
    return (
        f"a message takes {1e6 * of.alpha:.3g} us and costs {1e6 * of.message:.3g} us of processor time at either end, "
        f"a byte {1e9 * of.byte:.2g} ns; computing takes {of.speed:.2f} times as long as here and "
        f"{of.crowding:.0%} more in a crowd, in slices of {1e3 * of.slice:.2g} ms; a waiting rank takes "
        f"{of.polling:.2f} of a core, other programs {of.others:.2f} cores; within "
        f"{advice.spread(found.predictions):.0%} for four of five steps"
    )


def _table(rate: str, predictions: list[Prediction]) -> str:
    """Return a line for each prediction at one rate."""
    table = Table(
        Column(
            "candidate",
            -max(9, *(len(of.measured.candidate) for of in predictions)),
            lambda of: of.measured.candidate,
        ),
        Column("n", 12, lambda of: of.measured.n, ","),
        Column("P", 4, lambda of: of.measured.ranks),
        Column("exchange", 10, lambda of: 1e3 * of.measured.seconds, ".3f"),
        Column("predicted", 10, "seconds", ".3f", 1e3),
        Column("error", 7, "error", "+.0%"),
        Column("step", 10, lambda of: 1e3 * of.measured.step, ".3f"),
        Column("predicted", 10, "step", ".3f", 1e3),
        Column("error", 7, "step_error", "+.0%"),
    )
    exchange, step = calibration.median_errors(predictions)
    errors = f"median error without sign: exchange {exchange:.0%}, step {step:.0%}"
    return "\n".join([f"{rate or 'exchanges'}: ms", *table.lines(predictions), errors])


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


def _record(found: Fit, checks: dict[str, list[Prediction]], verdicts: list[Verdict]) -> dict[str, Any]:
    """Return all numbers as a dict for JSON."""
    return {
        "cluster": vars(found.cluster),
        "fitted to P": found.ranks,
        "rates": {
            rate: dict(zip(("median error", "median step error"), calibration.median_errors(of), strict=True))
            for rate, of in checks.items()
        },
        "advice": [
            {
                "job": of.job,
                "advised": of.advised.measured.candidate,
                "fastest": of.best.measured.candidate,
                "longer": of.regret,
            }
            for of in verdicts
        ],
        "cases": [
            of.measured._asdict() | {"predicted": of.seconds, "predicted step": of.step}
            for predictions in checks.values()
            for of in predictions
        ],
    }


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
        "seconds that a rank computes in a step; 0 asks for the fastest reduction alone",
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
    count("--ranks-per-node R", 1, "ranks that share the cores"),
    option(
        "--densities D",
        "densities to choose from",
        values.share,
        advice.DENSITIES,
        nargs="+",
    ),
    option("--overlap", "exchanges run during the backward pass, on cores to spare", action="store_true"),
    option("--utilisation U", "share of a step that the batch is to take", values.part, 0.9),
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
    if len(args.ranks) != 1 or not 1 <= args.ranks[0] <= MOST_RANKS:
        asked = " ".join(map(str, args.ranks))
        raise Refused(f"--advise needs --ranks P, one number from 1 to {MOST_RANKS}, got {asked}")
    fit, cluster = _cluster(args)
    n = layout(args.model).size if args.model else args.n
    job = Job(n, args.ranks[0], args.batch_seconds, args.overlap, args.utilisation)
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
    fit, cluster = _cluster(args)
    with refusing("--run: "):
        run = steps.read_run(args.trained)
        needed = run.steps_to(args.score)
        seconds = steps.run_seconds(run, args.score, cluster, args.batch_seconds or None)
    error = advice.error_of(run.way, fit)
    told = f"{seconds:.4g} s" + ("" if error is None else f" +- {error:.0%} of what is not the batch")
    yield (
        f"{run.way} at {run.density:g}, P = {run.ranks}: {run.score} {args.score:g} after {needed} steps; "
        f"{told} at {args.rate}, of which the batch {needed * (args.batch_seconds or run.batch):.4g} s"
    )
    yield {"seconds": seconds, "steps": needed, "error": error, "cluster": vars(cluster)}


def _cluster(args: argparse.Namespace) -> tuple[Fit | None, Cluster]:
    """Return the fit to --from, if there are records, and the cluster that the options describe."""
    if args.rate is None:
        raise Refused("--advise and --run need --rate, of a rank's link, such as --rate 1gbit")
    with refusing("--"):
        bits = schedule.parse(args.rate)
        if bits is None:
            raise ValueError("rate must be that of a link such as 1gbit, got none")
    with refusing("--from: "):
        known = [exchange for record in args.records for exchange in calibration.read(record)]
        fit = fitted(known) if known else None
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
