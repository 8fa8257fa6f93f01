"""``python -m sparse_mpi bench network``: a command of ours on emulated hosts, with a slow network between them.

Benchmarks on emulated networks of several sizes and speeds: a job for each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

from sparse_mpi.checks import present
from sparse_mpi.tools import values
from sparse_mpi.tools.cli.benchmark import Benchmark, Output
from sparse_mpi.tools.cli.options import Option, option
from sparse_mpi.tools.emulation import hosts, launch, schedule
from sparse_mpi.tools.emulation.links import Links, RatePlayer
from sparse_mpi.tools.emulation.probe import Link, probe
from sparse_mpi.tools.values import Refused

RANKS = range(2, 17)
DESCRIPTION = """\
Run a command of ours with one MPI rank on each of several hosts that are emulated on this machine: network namespaces,
joined by rate-limited links to a switch. All messages go over TCP through these links. What they really give is
measured first and printed; without a command, that is all. The exit code is the command's, 124 past --timeout.

  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- bench allreduce --steps 5 --algorithms dense oktopk
  python -m sparse_mpi bench network --ranks 4 --rate 1gbit -- train/vgg.py --algo oktopk --max-steps 20

The rates of links may change while the command runs, and links may be down, all or some of them:

  python -m sparse_mpi bench network --rate 1gbit,50mbit --every 30s --log links.jsonl -- train/vgg.py
  python -m sparse_mpi bench network --rate 1gbit,down --every 30s,2s -- train/vgg.py
  python -m sparse_mpi bench network --trace links.txt -- train/vgg.py

A trace has lines "seconds rate" or "seconds rate host", with blanks or commas: from that second of the command on, the
link of that host (1, 2, ...; all of them, if there is none) has that rate, or is "down". Connections stay open, and no
rank is told. Each change, and the bytes that hosts have sent, are told on stderr; --log has them for programs.

Needs Linux, root, iproute2 and Open MPI or MPICH. The ranks share this machine's cores and memory bandwidth: what they
compute takes longer than on hosts of their own. Latency is that of this machine, tens of microseconds. A link lets a
millisecond's worth (at least 4 KiB) pass at once before it holds to its rate.
"""


def measure(args: argparse.Namespace) -> Iterator[Output]:
    """Set up, yield what links give, run the command, remove; yield its exit code."""
    command = args.command[args.command[:1] == ["--"] :]
    try:
        rates = _schedule(args)
    except ValueError as error:
        raise Refused(f"--{error}; for example --rate 1gbit,50mbit --every 30s") from None
    if lacks := hosts.missing():
        raise SystemExit("\n".join(["bench network cannot run here:", *lacks]))
    try:
        record = args.log.open("w") if args.log else nullcontext()
    except OSError as error:
        raise Refused(f"--log must be a file that can be written, got {args.log}: {error.strerror}") from None
    try:
        launcher = launch.find_launcher()
        first = rates.at(Fraction(0))
        with record as file, hosts.emulate(args.ranks, first[0]) as emulated:
            links = Links(emulated)
            links.change(first)
            link = probe(emulated)
            yield (
                f"{args.ranks} hosts, {schedule.describe(first)}: measured {link.rate / 1e6:.0f} Mbit/s, "
                f"{link.trip * 1e6:.0f} us round trip"
            )
            if command:
                player = RatePlayer(links, rates, file)
                code = launch.run(emulated, launcher, command, args.timeout, args.elastic, meanwhile=player.play())
                player.end()
                yield code
    except RuntimeError as error:
        raise SystemExit(f"bench network cannot run here: {error}") from None


def _schedule(args: argparse.Namespace) -> schedule.Schedule:
    """Return what the options say. Raise ValueError if they are wrong."""
    if args.trace is None:
        return schedule.turns(args.rate, args.every, args.ranks)
    if args.every is not None or "," in args.rate:
        raise ValueError("trace has all changes: leave --every out, and give one --rate, for links without a line")
    return schedule.trace(args.trace, args.rate, args.ranks)


NETWORK = Benchmark(
    "network",
    help="run any of these commands over a slow network, emulated on this machine",
    description=DESCRIPTION,
    options=(
        option("--ranks", f"hosts, {RANKS[0]} to {RANKS[-1]} (default: 4)", values.integer(RANKS[0], RANKS[-1]), 4),
        option(
            "--rate",
            "of every link, in each direction, as tc writes it: 100mbit, 1gbit, ..., or none (default: 1gbit); "
            "several with commas, or down, take turns, beginning with the command",
            values.turns,
            "1gbit",
        ),
        option(
            "--every TIME",
            "how long each of several rates holds: 30s, 500ms, 2min; several with commas, one for each rate",
            values.every,
        ),
        option(
            "--trace FILE",
            "file of rates by time; links that it has not named yet have the one of --rate",
            values.file("links.txt"),
        ),
        option(
            "--log FILE",
            "file of JSON lines for the start, all changes and the end: seconds, rates, and bytes of every host",
            values.new_file("links.jsonl"),
        ),
        option("--timeout", "seconds the command may take (default: 600)", values.positive, 600),
        option(
            "--elastic",
            "let the other ranks go on when one is lost, for commands that use sparse_mpi.fault_tolerance",
            action="store_true",
        ),
        option(
            "command",
            "after a --: a path that ends in .py, or what follows python -m sparse_mpi, and its arguments",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND",
        ),
    ),
    measure=measure,
)


SLOW = 0.9  # of the nominal rate; headers take 5 %
Command = Callable[[int, Link, Path], list[str]]  # of ranks, what a link gives, and the file for the record


def networks(ranks: list[int], rates: list[str], seconds: float) -> tuple[Option, ...]:
    """Return the options of which networks, with these defaults."""
    known = values.integer(RANKS[0], RANKS[-1])
    text = f"numbers of hosts, {RANKS[0]} to {RANKS[-1]}, a rank on each (default: {' '.join(map(str, ranks))})"
    rate_text = f"of every link, in each direction, as tc writes it, or none (default: {' '.join(rates)})"
    time_text = f"seconds a job may take (default: {seconds:g})"
    return (
        option("--ranks P", text, known, ranks, nargs="+"),
        option("--rate", rate_text, values.rate, rates, nargs="+"),
        option("--timeout", time_text, values.positive, seconds),
    )


def slower(rate_: str, gbit: float) -> str:
    """Return a remark on a link that was measured at ``gbit`` Gbit/s, if that is below its nominal rate."""
    nominal = schedule.parse(rate_)
    return f", {1e9 * gbit / nominal:.0%} of its rate" if nominal and 1e9 * gbit < SLOW * nominal else ""


def jobs(
    kind: str, args: argparse.Namespace, command: Command, done: Collection[tuple[int, str]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the record of each job, with the ``rate`` of its network and what was ``measured`` of it, as they end.

    Raises SystemExit: there can be no emulated hosts here, or a job failed: with its exit code.
    """
    wanted = [(ranks, text) for ranks in dict.fromkeys(args.ranks) for text in dict.fromkeys(args.rate)]
    wanted = [job for job in wanted if job not in done]
    if wanted and (lacks := hosts.missing()):
        raise SystemExit("\n".join([f"{kind} cannot run here:", *lacks]))
    try:
        launcher = launch.find_launcher() if wanted else None
        for ranks, text in wanted:
            with hosts.emulate(ranks, schedule.parse(text)) as emulated:
                link = probe(emulated)
                print(
                    f"{ranks} hosts, {text if emulated.rate else 'no limit'}: measured {link.rate / 1e6:.0f} Mbit/s, "
                    f"{link.trip * 1e6:.0f} us round trip{slower(text, link.rate / 1e9)}",
                    flush=True,
                )
                file = emulated.folder / "record.json"
                words = command(ranks, link, file)
                if code := launch.run(emulated, present(launcher, "a launcher was sought"), words, args.timeout):
                    raise SystemExit(code)
                burst = hosts.burst(emulated.rate) if emulated.rate else 0
                measured = {"gbit": link.rate / 1e9, "trip": link.trip, "burst": burst}
                record = {"rate": text, "measured": measured, **json.loads(file.read_text())}
            print(flush=True)
            yield record
    except RuntimeError as error:
        raise SystemExit(f"{kind} cannot run here: {error}") from None
