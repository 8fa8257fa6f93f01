"""``python -m sparse_mpi predict``: what counted traffic takes on a network, up to 1024 ranks, by alpha and beta."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.comm.world import MAX_RANKS
from sparse_mpi.network import networks
from sparse_mpi.network.model import Network
from sparse_mpi.reduction.arguments import algorithm_spelled
from sparse_mpi.tools import values
from sparse_mpi.tools.analysis import calibration, gradients, volume
from sparse_mpi.tools.analysis.volume import Predicted, allowed, scaled, short_length
from sparse_mpi.tools.bench.progress import progress
from sparse_mpi.tools.cli import options, predict_advise
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import count, option
from sparse_mpi.tools.cli.table import Column, Table
from sparse_mpi.tools.figures.draw_predict import check as draw_check
from sparse_mpi.tools.figures.draw_predict import exchanges as draw_exchanges
from sparse_mpi.tools.figures.style import Look
from sparse_mpi.tools.values import Refused

# Low-rank ones need shapes, which n does not tell; of those with nodes, most messages do not go over the network
FLAT = [name for name in ALGORITHMS if calibration.predictable(name)]
DESCRIPTION = """\
Predict how long the exchange of a step takes: alpha a message plus beta a byte, for the traffic of the rank that sends
most. Traffic is counted among ranks in this one process for a shorter gradient of the same density; payload is then
scaled to n, messages and control are not. Where counting would take too much, the algorithm's formula is used, which is
an upper bound; such figures end in *. Neither selecting, merging, waiting nor contention is in it.

  python -m sparse_mpi predict --network piz-daint 10gbe --algorithms dense topka oktopk --plot prediction.png
  mpiexec -n 4 python -m sparse_mpi predict --fit network.json
  python -m sparse_mpi predict --network network.json --ranks 8 64

What to use on a cluster, by simulated steps in which ranks compute, share cores, send and wait for each other:

  python -m sparse_mpi predict --advise --model vgg16 --batch-seconds 0.3 --ranks 8 --rate 100mbit
  python -m sparse_mpi predict --advise --n 124000000 --ranks 16 --rate 1gbit --from compare.json --overlap
  python -m sparse_mpi predict --run runs/vgg/metrics.jsonl --score 0.95 --rate 100mbit

How good that is: fit to what was measured on few ranks, predict what was measured on more, or elsewhere.

  python -m sparse_mpi bench compare --ranks 2 4 8 --rate 100mbit 1gbit --json compare.json
  python -m sparse_mpi predict --from compare.json --check-ranks 8 --plot errors.png
  python -m sparse_mpi predict --from p2.json p4.json --check p8.json others.json --advise
"""


def _flat(text: str) -> str:
    """Return an algorithm whose traffic n alone tells; for argparse."""
    if not calibration.predictable(values.algorithm(text)):
        raise argparse.ArgumentTypeError(f"{text} needs shapes or nodes, which n does not tell; of {', '.join(FLAT)}")
    return text


def check(args: argparse.Namespace) -> None:
    """Raise Refused unless there are ranks that exchange something."""
    if not args.fit and 1 in args.ranks and not args.advise:
        raise Refused(f"--ranks must be from 2 to {MAX_RANKS}, got 1; for example --ranks 4")


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Predict, or fit, check or advise; yield tables and records."""
    if args.fit:
        yield from predict_advise.fit(args.fit)
    elif args.check or args.check_ranks:
        yield from predict_advise.check(args)
    elif args.trained:
        yield from predict_advise.run(args)
    elif args.advise:
        yield from predict_advise.advise(args)
    elif args.records:
        yield from predict_advise.check(args)
    else:
        yield from _exchanges(args)


def _exchanges(args: argparse.Namespace) -> Iterator[Output]:
    """Yield what the exchange of a step takes on each network, and the record."""
    args.algorithms = args.algorithms or FLAT
    given = [(name, *networks.named(name)) for name in args.network]
    predicted = [
        _predicted(name, ranks, args)
        for ranks, name in progress([(p, a) for p in args.ranks for a in args.algorithms], "counting")
    ]
    heading = f"exchange of a step, n = {args.n:,}, density {args.density:g}; alpha-beta model, ms"
    yield "\n\n".join([heading, *(_table(of, network, predicted, args) for _, network, of in given)])
    if any(not of.counted for of in predicted):
        yield "\n* by the algorithm's formula, an upper bound; all others by counted traffic"
    yield _record(predicted, {name: network for name, network, _ in given})


def figure(records: Sequence[dict[str, Any]], look: Look) -> Any:
    """Draw seconds over P, or predicted over measured ones."""
    return (draw_check if "rates" in records[0] else draw_exchanges)(records, look)


def _predicted(name: str, ranks: int, args: argparse.Namespace) -> Predicted:
    """Return the traffic of a step, counted where that can be afforded."""
    algorithm = algorithm_spelled(name)
    n = short_length(args.n, args.density, ranks)
    k = max(1, round(args.density * n))
    if volume.merged(algorithm, n, k, ranks) > args.most_pairs:
        k = max(1, round(args.density * args.n))
        return Predicted(name, ranks, allowed(algorithm, args.n, k, ranks), False)
    made = gradients.make("independent", n, args.seed)
    counted = volume.count(algorithm, name, made, ranks, k, steps=2, warmup=1)
    return Predicted(name, ranks, scaled(counted, args.n), True)


def _table(title: str, network: Network, predicted: list[Predicted], args: argparse.Namespace) -> str:
    """Return milliseconds as text, an algorithm a line, a number of ranks a column."""
    found = {(of.ranks, of.algorithm): of for of in predicted}

    def cell(ranks: int, name: str) -> str:
        of = found[ranks, name]
        return f"{1e3 * network.seconds(of.traffic):.3f}{' ' if of.counted else '*'}"

    names = Column("algorithm", -max(11, *(len(name) + 1 for name in args.algorithms)), str)
    table = Table(names, *(Column(f"P = {ranks}", 10, partial(cell, ranks)) for ranks in args.ranks))
    return "\n".join([f"{title}: {network}", *table.lines(args.algorithms)])


def _record(predicted: list[Predicted], given: dict[str, Network]) -> dict[str, Any]:
    """Return all numbers, for JSON and for the figure."""
    cases = [
        {
            "algorithm": of.algorithm,
            "ranks": of.ranks,
            "counted": of.counted,
            "bytes": max(of.traffic.sent, of.traffic.received),
            "control": of.traffic.control,
            "messages": of.traffic.messages,
            "seconds": {name: network.seconds(of.traffic) for name, network in given.items()},
        }
        for of in predicted
    ]
    named = {name: {"alpha": network.alpha, "beta": network.beta} for name, network in given.items()}
    return {"networks": named, "cases": cases}


NAMES = ["10gbe", "100gb", "piz-daint"]
PREDICT = Benchmark(
    "predict",
    help="seconds of an exchange on a network, for up to 1024 ranks",
    description=DESCRIPTION,
    options=(
        option("--network NAME", f"{networks.CHOICES}", values.network, NAMES, nargs="+"),
        option(
            "--algorithms NAME",
            f"of {values.SPELLINGS} (default: all)",
            values.Value(_flat, "", "oktopk"),
            [],
            nargs="+",
        ),
        count("--n", 14_728_266, "elements of the gradient (default: 14728266, VGG-16)"),
        options.share("share of them that is sent", 0.02),
        options.POWERS_OF_RANKS,
        option(
            "--most-pairs N",
            "pairs to merge in a step, on all ranks together, beyond which the formula is used (default: 2e8)",
            values.positive,
            2e8,
        ),
        options.seed(),
        option(
            "--fit FILE",
            "measure this machine's network under mpiexec, and write alpha and beta for --network",
            values.new_file("network.json"),
        ),
        option(
            "--from FILE",
            f"records of {calibration.BENCHES}, to fit to what messages cost and how fast ranks compute",
            values.file("compare.json"),
            [],
            dest="records",
            nargs="+",
        ),
        option(
            "--check FILE",
            "records on other ranks or networks, to compare with what --from predicts",
            values.file("p8.json"),
            [],
            nargs="+",
        ),
        count(
            "--check-ranks P",
            [],
            "or keep these of --from out of the fit, and compare them with what the others predict",
            nargs="+",
        ),
        options.json("also write all numbers"),
        options.plot("draw seconds over P, a panel a network; or predicted over measured seconds"),
        *predict_advise.OPTIONS,
    ),
    measure=measure,
    check=check,
    figure=figure,
)
