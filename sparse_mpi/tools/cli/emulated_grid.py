"""Benchmarks on emulated networks of several sizes and speeds: a job for each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from sparse_mpi.tools.cli import values
from sparse_mpi.tools.cli.bench_network import RANKS
from sparse_mpi.tools.cli.options import Option, option
from sparse_mpi.tools.emulation import hosts, launch, rate
from sparse_mpi.tools.emulation.probe import Link, probe

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
    nominal = rate.parse(rate_)
    return f", {1e9 * gbit / nominal:.0%} of its rate" if nominal and 1e9 * gbit < SLOW * nominal else ""


def jobs(
    kind: str, args: argparse.Namespace, command: Command, done: Collection[tuple[int, str]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the record of each job, with the ``rate`` of its network and what was ``measured`` of it, as they end.

    Args:
        kind: the benchmark's name, for messages.
        args: with the options of `networks`.
        command: makes the command line of a job, after ``python -m sparse_mpi``; the job must write the record.
        done: ranks and rates that are left out.

    Raises:
        SystemExit: there can be no emulated hosts here, or a job failed: with its exit code.
    """
    wanted = [(ranks, text) for ranks in dict.fromkeys(args.ranks) for text in dict.fromkeys(args.rate)]
    wanted = [job for job in wanted if job not in done]
    if wanted and (lacks := hosts.missing()):
        raise SystemExit("\n".join([f"{kind} cannot run here:", *lacks]))
    try:
        launcher = launch.find_launcher() if wanted else None
        for ranks, text in wanted:
            with hosts.emulate(ranks, rate.parse(text)) as emulated:
                link = probe(emulated)
                print(
                    f"{ranks} hosts, {text if emulated.rate else 'no limit'}: measured {link.rate / 1e6:.0f} Mbit/s, "
                    f"{link.trip * 1e6:.0f} us round trip{slower(text, link.rate / 1e9)}",
                    flush=True,
                )
                file = emulated.folder / "record.json"
                assert launcher is not None
                if code := launch.run(emulated, launcher, command(ranks, link, file), args.timeout):
                    raise SystemExit(code)
                burst = hosts.burst(emulated.rate) if emulated.rate else 0
                measured = {"gbit": link.rate / 1e9, "trip": link.trip, "burst": burst}
                record = {"rate": text, "measured": measured, **json.loads(file.read_text())}
            print(flush=True)
            yield record
    except RuntimeError as error:
        raise SystemExit(f"{kind} cannot run here: {error}") from None
