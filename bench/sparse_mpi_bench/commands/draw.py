"""``python -m sparse_mpi bench draw``: the figure of records, drawn anew."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sparse_mpi.cli import values
from sparse_mpi.cli.values import refusing
from sparse_mpi_bench.benchmark import save
from sparse_mpi_bench.figures import compare, draw_predict, draw_timeline, draw_volume, training

Record = dict[str, Any]
LINE = 0.2  # inches of a line of a title
Figure = Callable[[Sequence[Record]], Any]
PARTS = ("results", "rates", "cases", "seconds")  # names in a record or its jobs: ways, rates of a check, cases, ...
DESCRIPTION = """\
Draw the figure of records that commands wrote with --json: the one that their --plot draws, as SVG, PNG or PDF,
by the extension.

  python -m sparse_mpi bench draw docs/results/compare-vgg16.json --plot compare.svg
  python -m sparse_mpi bench draw docs/results/accuracy-lstm.json --kind curves --plot curves.svg
  python -m sparse_mpi bench draw docs/results/accuracy-lstm.json --plot gaps.svg
"""


class Kind(NamedTuple):
    of: Callable[[Record], bool]  # returns whether the kind shows a record
    figure: Figure
    maker: str  # the command that makes these records
    several: bool = True  # True: it shows several of them together


def _within(name: str, field: str) -> Callable[[Record], bool]:
    return lambda record: isinstance(record.get(name), list) and record[name][:1] != [] and field in record[name][0]


# Of several kinds that show a record, the first is the one that it gets unasked
KINDS = {
    "compare": Kind(_within("jobs", "results"), compare.speed, "bench network with bench steps"),
    "sparse": Kind(_within("jobs", "cases"), compare.sparse, "bench network with bench sparse"),
    "volume": Kind(_within("volumes", "lowest"), draw_volume.figure, "bench volume"),
    "check": Kind(
        lambda record: "rates" in record and "advice" in record, draw_predict.check, "bench calibrate", False
    ),
    "trace": Kind(lambda record: "matrix" in _first(record.get("algorithms")), draw_timeline.trace, "trace", False),
    "timeline": Kind(lambda record: "timeline" in record, draw_timeline.figure, "train/*.py --timeline", False),
    "race": Kind(lambda record: "courses" in record, training.losses, "train/study.py --emulate"),
    "gaps": Kind(lambda record: "epochs" in record and "mb_total" in record, training.gaps, "train/study.py"),
    "curves": Kind(lambda record: "epochs" in record and "way" in record, training.curves, "train/study.py"),
}


def _first(of: Any) -> Any:
    return next(iter(of.values()), {}) if isinstance(of, dict) else {}


def read(files: Sequence[Path]) -> list[Record]:
    """Return the records; a file may hold several as ``"records"``. Raises ValueError: it holds none."""
    found: list[Record] = []
    for file in files:
        try:
            record = json.loads(file.read_text())
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{file} must be a record that a command wrote with --json, and is no JSON object")
        found += [record | each for each in record.pop("records", [{}])]
    return found


def kind_of(records: Sequence[Record], wanted: str | None = None) -> Kind:
    """Return the kind of that name, or the first, that shows all of ``records``. Raises ValueError: there is none."""
    fitting = {name: kind for name, kind in KINDS.items() if all(kind.of(record) for record in records)}
    if not fitting:
        makers = ", ".join(dict.fromkeys(kind.maker for kind in KINDS.values()))
        raise ValueError(f"records must be of one kind that has a figure, those of {makers}")
    if wanted is not None and wanted not in fitting:
        raise ValueError(f"of such records there is {' and '.join(fitting)}, got {wanted}")
    kind = fitting[wanted] if wanted is not None else next(iter(fitting.values()))
    if len(records) > 1 and not kind.several:
        raise ValueError(f"a figure of {kind.maker} shows one record, got {len(records)}")
    return kind


def only(record: Record, names: Sequence[str]) -> Record:
    """Return ``record`` with the parts in ``names``, all without names. Raises ValueError: it has no such part."""
    if not names:
        return record
    if isinstance(record.get("jobs"), list):
        return record | {"jobs": [only(job, names) for job in record["jobs"]]}
    parts = {part: record[part] for part in PARTS if isinstance(record.get(part), dict)}
    kept = {part: {name: of[name] for name in names if name in of} for part, of in parts.items()}
    if not any(kept.values()):
        there = ", ".join(name for of in parts.values() for name in of)
        raise ValueError(f"--only must name {there or 'nothing, as there is but one part'}, got {' '.join(names)}")
    return record | kept


def titled(figure: Figure, title: str) -> Figure:
    def draw(records: Sequence[Record]) -> Any:
        shown = figure(records)
        width, height = shown.get_size_inches()
        beneath = shown.get_suptitle()
        shown.set_size_inches(width, height + (LINE if beneath else 2 * LINE))
        shown.suptitle(f"{title}\n{beneath}".rstrip(), x=0.01, ha="left")
        return shown

    return draw


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("draw", help="the figure of records", description=DESCRIPTION)
    text = "files that were written with --json"
    parser.add_argument("records", type=values.file("record.json"), nargs="+", metavar="RECORD", help=text)
    parser.add_argument("--plot", type=values.figure, required=True, metavar="FILE", help="where to (needs matplotlib)")
    text = "where records have several figures (default: the first that fits): %(choices)s"
    parser.add_argument("--kind", choices=list(KINDS), metavar="NAME", help=text)
    parser.add_argument("--title", type=values.text, metavar="TEXT", help="the point of the figure, written above it")
    text = "ways of bench steps, cases of bench sparse, or rates, to draw alone (default: all)"
    parser.add_argument("--only", type=values.text, nargs="+", default=[], metavar="NAME", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with refusing("argument RECORD: "):
        records = [only(record, args.only) for record in read(args.records)]
        kind = kind_of(records, args.kind)
    save(partial(titled(kind.figure, args.title) if args.title else kind.figure, records), args.plot)
    return 0
