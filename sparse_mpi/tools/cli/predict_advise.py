"""``predict --advise`` and ``predict --run``: what to use on a cluster, and how long a recorded run takes there."""

from __future__ import annotations

import argparse

from sparse_mpi.network.cluster import TYPICAL, Cluster
from sparse_mpi.sparse import Layout
from sparse_mpi.tools.analysis import advice, exchanges, run_time
from sparse_mpi.tools.analysis.advice import Advice, Job, Offer
from sparse_mpi.tools.analysis.calibration import Fit
from sparse_mpi.tools.bench import records
from sparse_mpi.tools.bench.models import MODELS
from sparse_mpi.tools.bench.progress import Bar
from sparse_mpi.tools.bench.provenance import provenance
from sparse_mpi.tools.cli import predict_fit, values
from sparse_mpi.tools.cli.parsing import Refused
from sparse_mpi.tools.emulation import rate

MOST_RANKS = 64
SHOWN = 6  # offers
TRAINING = "elect"  # the default of the programs


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options of advice."""
    add = parser.add_argument
    text = "say what to use: algorithm, message format, density, local steps; or, with --check, how good the advice is"
    add("--advise", action="store_true", help=text)
    add("--model", choices=list(MODELS), help="whose gradient it is, in place of --n")
    text = "seconds that a rank computes in a step; 0 asks for the fastest reduction alone (default: 0)"
    add("--batch-seconds", type=values.number, default=0.0, metavar="S", help=text)
    text = "of a rank's link in each direction, as tc writes it: 100mbit, 1gbit, 10gbit"
    add("--rate", type=values.rate, metavar="RATE", help=f"{text}; where ranks share a link, each has its part")
    add("--latency", type=values.number, metavar="US", help="microseconds of a message (default: as fitted)")
    add("--cores", type=values.positive, metavar="C", help="cores of a node, any share of them (default: one a rank)")
    add(
        "--ranks-per-node",
        type=values.integer(1),
        default=1,
        metavar="R",
        help="ranks that share the cores (default: 1)",
    )
    text = f"densities to choose from (default: {' '.join(map(str, advice.DENSITIES))})"
    add("--densities", type=values.share, nargs="+", default=advice.DENSITIES, metavar="D", help=text)
    add("--overlap", action="store_true", help="exchanges run during the backward pass, on cores to spare")
    text = "share of a step that the batch is to take (default: 0.9)"
    add("--utilisation", type=values.part, default=0.9, metavar="U", help=text)
    text = "metrics.jsonl of a training program: tell how long it takes on the cluster until --score"
    add("--run", dest="trained", type=values.file("metrics.jsonl"), metavar="FILE", help=text)
    add("--score", type=values.finite, help="score of a test, to reach in --run")


def advise(args: argparse.Namespace) -> int:
    """Print what to use on one cluster."""
    (ranks,) = _sizes(args)
    _check(args)
    fit, cluster = _cluster(args)
    n = Layout.of([shape for _, shape in MODELS[args.model]()]).size if args.model else args.n
    job = Job(n, ranks, args.batch_seconds, args.overlap, args.utilisation)
    densities = sorted(set(args.densities), reverse=True)
    with Bar(0, "simulating", True) as bar:
        found = advice.advise(job, cluster, fit, densities, args.algorithms, bar.say)
    print(_text(found, job, args, fit))
    if args.json:
        offers = [of._asdict() for of in found.offers]
        advised = {"advised": found.best._asdict(), "reason": found.reason, "cases": offers}
        asked = {"options": records.options(args), **provenance(), "cluster": vars(cluster)}
        records.write_cases(args.json, asked | advised)
    return 0


def run(args: argparse.Namespace) -> int:
    """Print how long a recorded run takes on one cluster until a score."""
    if args.score is None:
        raise Refused("--run goes with --score, of a test that is to be reached, such as --score 0.95")
    _check(args)
    fit, cluster = _cluster(args)
    try:
        run = run_time.read(args.trained)
        count = run.steps_to(args.score)
        seconds = run_time.seconds(run, args.score, cluster, args.batch_seconds or None)
    except ValueError as problem:
        raise Refused(f"--run: {problem}") from None
    error = advice.error_of(run.way, fit)
    told = f"{seconds:.4g} s" + ("" if error is None else f" +- {error:.0%} of what is not the batch")
    print(
        f"{run.way} at {run.density:g}, P = {run.ranks}: {run.score} {args.score:g} after {count} steps; "
        f"{told} at {args.rate}, of which the batch {count * (args.batch_seconds or run.batch):.4g} s"
    )
    if args.json:
        numbers = {"seconds": seconds, "steps": count, "error": error, "cluster": vars(cluster)}
        records.write(args.json, {"options": records.options(args)}, provenance(), numbers)
    return 0


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
    wide = max(len(of.way) for of in found.offers)
    shown = found.offers[:SHOWN] + [of for of in found.offers[SHOWN:] if of.dense or of is found.best]
    lines = [
        f"n = {job.n:,}, P = {job.ranks}, {args.rate} a rank, batch {job.batch:g} s"
        f"{', exchanges during the backward pass' if job.overlap else ''}",
        "",
        f"{'':<{wide}} {'density':>8} {'local steps':>12} {'step, ms':>10} {'reduction, ms':>14} "
        f"{'+-':>6} {'batch':>6}",
    ]
    lines += [_row(of, job, wide) for of in shown]
    lines += ["", _taken(found)]
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


def _row(of: Offer, job: Job, wide: int) -> str:
    """Return the line of an offer."""
    error = "?" if of.error is None else f"{of.error:.0%}"
    density = "all" if of.way.startswith("dense") else f"{of.density:g}"
    return (
        f"{of.way:<{wide}} {density:>8} {of.local_steps:>12} {1e3 * of.step:>10.2f} {1e3 * of.exposed:>14.2f} "
        f"{error:>6} {job.batch / of.step if of.step else 1:>6.0%}"
    )
