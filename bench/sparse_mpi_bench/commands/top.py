"""``sparse-mpi top``: the ranks of a running job beside each other, by the metrics that they write."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.cli import values
from sparse_mpi.cli.table import Column, Table
from sparse_mpi.cli.values import Refused
from sparse_mpi.monitor import metrics
from sparse_mpi_bench.analysis.rank_table import RankRow, Ranks

DESCRIPTION = """\
Show the ranks of a running job beside each other, as long as you look: step, bytes, who waits, and who is slow. The
program needs no change and opens no port: its ranks write metrics to files, which this reads.

  SPARSE_MPI_METRICS_DIR=metrics python -m sparse_mpi run -n 4 train.py
  python -m sparse_mpi top metrics              in another terminal, on any machine that sees the folder

q or Ctrl-C ends it. What is shown is as wide as the terminal. See docs/guides/observe.md.
"""


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} TB"


# Columns fill the width, from the left; seconds and counts are a step's
COLUMNS = (
    Column("rank", 5, "rank"),
    Column("", -5, "state"),
    Column("step", 8, "step"),
    Column("steps/s", 8, "per_second", ".4g"),
    Column("sent", 8, lambda row: _bytes(row.sent_total)),
    Column("waits ms", 9, "waits", ".2f", 1e3),
    Column("density", 9, "density", ".3%"),
    Column("residual", 9, "residual", ".3g"),
    Column("sent/step", 10, lambda row: _bytes(row.sent)),
    Column("received", 9, lambda row: _bytes(row.received)),
    Column("messages", 9, "messages", ".1f"),
    Column("select ms", 10, "select", ".2f", 1e3),
    Column("exchange ms", 12, "exchange", ".2f", 1e3),
    Column("merge ms", 9, "merge", ".2f", 1e3),
    Column("written", 10, lambda row: f"{row.age:.0f} s ago"),
)
STYLES = {"slow": "bold yellow", "stale": "red", "": ""}


class ScreenLine(NamedTuple):
    text: str
    style: str = ""


END = ScreenLine("q ends", "dim")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("top", help="watch the ranks of a running job", description=DESCRIPTION)
    text = f"folder of its metrics (default: {metrics.DIRECTORY})"
    parser.add_argument("folder", metavar="JOB", nargs="?", type=values.folder("metrics"), help=text)
    text = "name of the job, where the folder has several (default: the one that wrote last)"
    parser.add_argument("--job", metavar="NAME", type=values.text, help=text)
    parser.add_argument("--every", type=values.positive, default=1.0, help="seconds from one look to the next")
    text = "print it once, as where stdout is no terminal; the exit status is 1 if there is nothing yet"
    parser.add_argument("--once", action="store_true", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder = args.folder or Path(os.environ.get(metrics.DIRECTORY, ""))
    if folder == Path():
        raise Refused(f"which job? Name the folder of its metrics, or set {metrics.DIRECTORY}")
    ranks = Ranks(folder, args.job)
    if args.once or not sys.stdout.isatty():
        lines = view(ranks, folder)
        print(*(line.text for line in lines), sep="\n")
        return 1 if len(lines) == 1 else 0
    with suppress(KeyboardInterrupt):
        watch(lambda width, height: view(ranks, folder, width, height), args.every)
    return 0


def view(ranks: Ranks, folder: Path, width: int | None = None, height: int | None = None) -> list[ScreenLine]:
    """Return the lines, none wider than ``width``, and no more than ``height``; None is no limit."""
    rows = ranks.rows()
    damaged = f"; {len(ranks.damaged)} damaged files left out" if ranks.damaged else ""
    if not rows:
        return [ScreenLine(f"no metrics in {folder} yet{damaged}"[:width])]
    widths = accumulate(abs(column.width) + 1 for column in COLUMNS)
    table = Table(*(column for column, end in zip(COLUMNS, widths, strict=True) if width is None or end <= width))
    heading = f"{_heading(ranks.job, rows)}{damaged}"[:width]
    lines = [ScreenLine(heading, "bold"), ScreenLine(""), ScreenLine(table.head, "underline")]
    room = len(rows) if height is None else max(1, height - len(lines) - 3)
    shown = sorted(sorted(rows, key=lambda row: not row.state)[:room], key=lambda row: row.rank)
    lines += [ScreenLine(table.row(row).rstrip(), STYLES[row.state]) for row in shown]
    if len(shown) < len(rows):
        lines.append(ScreenLine(f"and {len(rows) - len(shown)} more ranks, none of them slow or stale"[:width]))
    return lines


def _heading(job: str | None, rows: Sequence[RankRow]) -> str:
    lively = [row for row in rows if row.state != "stale"]
    if not lively:
        return f"{job}: no news for {min(row.age for row in rows):.0f} s; it has ended, or hangs"
    stale = len(rows) - len(lively)
    slow = "".join(f", all wait for rank {row.rank}" for row in lively if row.state == "slow")
    missing = f", {stale} without news" if stale else ""
    return f"{job}: {len(rows)} ranks{missing}, step {max(row.step for row in lively)}{slow}"


def watch(lines: Callable[[int, int], Sequence[ScreenLine]], every: float) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise Refused("a live view needs rich: pip install rich, or take --once") from None
    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = [Text(*line) for line in (*lines(*console.size), END)]
            live.update(Text("\n", no_wrap=True, overflow="crop").join(shown), refresh=True)
            if pressed(every) == "q":
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def pressed(seconds: float) -> str:
        if not select.select([file], [], [], seconds)[0]:
            return ""
        with suppress(OSError):
            if key := os.read(file, 1):
                return key.decode(errors="replace")
        return "q"  # the terminal is gone

    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(file, termios.TCSADRAIN, before)
