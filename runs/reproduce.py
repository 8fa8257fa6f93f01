"""Run the claims of the pages that fit in an hour together, and report which hold and which are missed.

    python -m runs.reproduce                          all of them
    python -m runs.reproduce --list
    python -m runs.reproduce --only volume wire.bytes
    python -m runs.reproduce --page docs/reference/reproduced.md

A job is a command; claims read its record. Each claim is printed with its verdict, and a summary by job at the end.
runs/reproduce/ then holds the summary in README.md, the numbers in record.json, and the output of each job. The exit
status is 1 if a claim is missed or a job fails. A job that the machine cannot run is skipped, with the reason.
REPRODUCE.md has the claims that take longer or need other hardware.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from xml.etree import ElementTree

from runs import processes
from runs.claims import CLAIMS, JOBS, Claim, Job, Record, missing
from runs.processes import ROOT
from sparse_mpi.cli import records
from sparse_mpi.cli.progress import Bar

TESTS = ("tests", "failures", "errors", "skipped")  # counts that pytest writes
PAGE = """\
# Claims held or missed

`make reproduce` of {date} on {cpus} x {cpu}, in {minutes:.0f} minutes: **{summary}**.
{packages}.

*Held* counts the claims of a job whose numbers are within their bands; *load* is the number of processes
that ran or waited when the job began. [REPRODUCE.md](../../REPRODUCE.md) has the command.

| job | held | seconds | load |
| --- | ---: | ---: | ---: |
{rows}
"""


class Outcome(NamedTuple):
    """The result of a claim."""

    name: str
    verdict: str  # held, missed, failed or skipped
    measured: tuple[float, ...]
    why: str  # it was skipped or has failed
    seconds: float  # of its job
    load: float  # of the machine when the job began


def chosen(names: Sequence[str]) -> dict[str, Claim]:
    """Return the claims whose names or jobs are given, or begin with one of the names and a dot; all for none.

    Raises:
        ValueError: there is none of a name.
    """
    words = {name: {name, name.partition(".")[0], claim.job} for name, claim in CLAIMS.items()}
    if unknown := sorted(set(names).difference(*words.values())):
        raise ValueError(f"--only takes names of --list, got {', '.join(unknown)}")
    return {name: claim for name, claim in CLAIMS.items() if not names or words[name] & set(names)}


def run(job: Job, out: Path, log: Path, seconds: float) -> str:
    """Run a job, which writes to ``out`` and prints to ``log``; return an error, "" for none."""
    words = [str(out) if word == "OUT" else word for word in shlex.split(job.command)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "train"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    with Bar(None, "    running") as bar:
        ended = processes.run([sys.executable, *words], log, seconds, environ, bar.say)
    if ended.status is None:
        return f"more than {seconds:.0f} s: {ended.last}"
    return f"status {ended.status}: {ended.last}" if ended.status else ""


def load(out: Path) -> Record:
    """Return the record of a job: a file of JSON or of pytest, or all files of JSON in a folder."""
    if out.is_dir():
        lines = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
        return lines or [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    text = out.read_text()
    if text.startswith("<"):
        suite = ElementTree.fromstring(text).find("testsuite")
        assert suite is not None, "pytest writes one"
        tests, failures, errors, skipped = (int(suite.attrib[name]) for name in TESTS)
        return {"failed": failures + errors, "passed": tests - failures - errors - skipped}
    return json.loads(text)


def judge(claims: dict[str, Claim], record: Record, seconds: float, load: float) -> Iterator[Outcome]:
    """Yield the outcomes of the claims of a job, by its record."""
    for name, claim in claims.items():
        try:
            measured = tuple(float(value) for value in claim.read(record))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            yield Outcome(name, "failed", (), f"the record has no such number: {error!r}", seconds, load)
            continue
        within = len(measured) == len(claim.bands) and all(
            low <= value <= high for value, (low, high) in zip(measured, claim.bands, strict=True)
        )
        yield Outcome(name, "held" if within else "missed", measured, "", seconds, load)


def reproduce(claims: dict[str, Claim], folder: Path) -> tuple[list[Outcome], dict[str, Record]]:
    """Run the jobs of claims one after another, print the outcomes of each, and return all outcomes and records."""
    jobs = {claim.job: JOBS[claim.job] for claim in claims.values()}
    outcomes, found = list[Outcome](), dict[str, Record]()
    for place, (name, job) in enumerate(jobs.items(), 1):
        due = {key: claim for key, claim in claims.items() if claim.job == name}
        lacks = [reason for need in job.needs if (reason := missing(need))]
        print(f"[{place}/{len(jobs)}] {name}: about {job.minutes:g} minutes: python {job.command}", flush=True)
        out, log = folder / name, folder / f"{name}.log"
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
        before, start = os.getloadavg()[0], monotonic()
        problem = "" if lacks else run(job, out, log, 60 * max(3, 4 * job.minutes))
        seconds = monotonic() - start
        if not lacks and out.exists():  # tests that have failed leave a record, too
            found[name] = load(out)
            new = list(judge(due, found[name], seconds, before))
        else:
            verdict, why = ("skipped", "; ".join(lacks)) if lacks else ("failed", problem or "it has left no record")
            new = [Outcome(key, verdict, (), why, seconds, before) for key in due]
        for outcome in new:
            print(f"    {outcome.verdict:7} {outcome.name}: {told(outcome)}", flush=True)
        outcomes += new
    return outcomes, found


def number(value: float) -> str:
    """Return four digits of a number, and all before its point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.4g}"


def band(low: float, high: float) -> str:
    """Return a band in words."""
    if low == high:
        return number(low)
    if high == math.inf:
        return f"at least {number(low)}"
    return f"at most {number(high)}" if low == 0 else f"{number(low)} to {number(high)}"


def told(outcome: Outcome) -> str:
    """Return the measured numbers, or why there are none, and the expected ones."""
    claim, got = CLAIMS[outcome.name], ", ".join(map(number, outcome.measured)) or outcome.why
    return f"{claim.what}: {got} (expected {expected(claim)})"


def expected(claim: Claim) -> str:
    """Return the bands of a claim; one stands for several that are alike."""
    return ", ".join(dict.fromkeys(band(*limits) for limits in claim.bands))


def listed(claims: dict[str, Claim]) -> Iterator[str]:
    """Yield each job's command, with its claims: the measure, the page, the band and its reason."""
    for name, job in JOBS.items():
        if due := {key: claim for key, claim in claims.items() if claim.job == name}:
            needs = f", needs {', '.join(job.needs)}" if job.needs else ""
            yield f"\n{name}: python {job.command} ({job.minutes:g} minutes{needs})"
            for key, claim in due.items():
                yield f"    {key}: {claim.what}: {expected(claim)} ({claim.page}; {claim.why}; from {claim.origin})"


def page(outcomes: Sequence[Outcome], minutes: float, made: dict[str, Any]) -> str:
    """Return docs/reference/reproduced.md: the claims held by each job, and all others."""
    rows = []
    for name in dict.fromkeys(CLAIMS[outcome.name].job for outcome in outcomes):
        due = [outcome for outcome in outcomes if CLAIMS[outcome.name].job == name]
        held = sum(outcome.verdict == "held" for outcome in due)
        rows.append(f"| `{name}` | {held}/{len(due)} | {due[0].seconds:.0f} | {due[0].load:.1f} |")
    others = [f"- {each.verdict}: `{each.name}`, {told(each)}" for each in outcomes if each.verdict != "held"]
    summary = Counter(outcome.verdict for outcome in outcomes)
    return PAGE.format(
        **made | {"date": made["date"][:10], "minutes": minutes},
        summary=", ".join(f"{count} {verdict}" for verdict, count in summary.items()),
        packages=", ".join(f"{name} {version}" for name, version in made["versions"].items() if version),
        rows="\n".join([*rows, *([""] if others else []), *others]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wanted claims, and return 1 if a claim is missed or a job has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="claims, or jobs, or what is before a dot")
    add("--list", action="store_true", help="print jobs, claims and bands, and run nothing")
    add("--page", type=Path, metavar="FILE", help="write the summary there too, as docs/reference/reproduced.md has it")
    add("--out", type=Path, default=ROOT / "runs" / "reproduce", metavar="DIR", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        claims = chosen(args.only)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        print("\n".join(listed(claims)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays behind
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    start = monotonic()
    outcomes, found = reproduce(claims, out)
    minutes, made = (monotonic() - start) / 60, records.provenance()
    rows = [outcome._asdict() for outcome in outcomes]
    records.write(out / "record.json", {**made, "minutes": minutes, "claims": rows, "jobs": found})
    text = page(outcomes, minutes, made)
    for file in filter(None, (out / "README.md", args.page)):
        file.write_text(text)
    print(f"\n{text}\nrecord: {out / 'record.json'}")
    return int(any(outcome.verdict in ("missed", "failed") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
