"""Run the claims of the pages that fit in an hour together, and report which hold and which are missed.

    python runs/reproduce.py                          all of them
    python runs/reproduce.py --list
    python runs/reproduce.py --only volume wire.bytes

A job is a command that exists for its own sake; claims read its record. The last lines are a table, which is in
runs/reproduce/README.md too, beside record.json, the records of all jobs, and their output. The exit status is 1 if a
claim is missed or a job fails. Jobs that a machine cannot do are skipped, with the reason. REPRODUCE.md has the tables
of `--page`, and the claims that take longer or need other hardware.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from xml.etree import ElementTree

from claims import CLAIMS, JOBS, NEEDS, RESULTS, Claim, Job, Record

from sparse_mpi.cli import records

ROOT = Path(__file__).resolve().parents[1]
TELL = 30.0  # seconds from one line about a job to the next
PATIENCE = 20.0  # seconds from the request to end a job until its hosts must be gone


class Outcome(NamedTuple):
    """The result of a claim."""

    name: str
    verdict: str  # held, missed, failed or skipped
    measured: tuple[float, ...]
    why: str  # it was skipped or has failed
    seconds: float  # of its job
    load: float  # of the machine when the job began


def chosen(names: Iterable[str]) -> dict[str, Claim]:
    """Return the claims whose names or jobs are given, or begin with one of the names and a dot; all for none.

    Raises:
        ValueError: there is none of a name.
    """
    names = list(names)
    found = {
        name: claim
        for name, claim in CLAIMS.items()
        if not names or {name, name.partition(".")[0], claim.job} & set(names)
    }
    known = {name for name, claim in CLAIMS.items() for name in (name, name.partition(".")[0], claim.job)}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"--only takes names of --list, got {', '.join(unknown)}")
    return found


def run(job: Job, out: Path, log: Path, seconds: float) -> str:
    """Run a job, which writes to ``out`` and prints to ``log``; return an error, "" for none.

    It ends with all its processes. After ``seconds`` it gets a signal, and removes its hosts.
    """
    words = [str(out) if word == "OUT" else word for word in shlex.split(job.command)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "train"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    start = told = monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environ, stdout=file, stderr=file, start_new_session=True
        )
        try:
            while process.poll() is None and (now := monotonic()) - start < seconds:
                if now - told > TELL:
                    told = now
                    print(f"    {now - start:4.0f} s: {last_line(log)}", flush=True)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            late = process.poll() is None
        finally:
            end(process)
    if late:
        return f"more than {seconds:.0f} s: {last_line(log)}"
    return f"status {process.returncode}: {last_line(log)}" if process.returncode else ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Send a running job the signal to end, and kill the rest of its session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line that a job has printed, without control sequences."""
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "nothing printed")


def load(out: Path) -> Record:
    """Return the record of a job: a file of JSON or of pytest, or all files of JSON in a folder."""
    if out.is_dir():
        lines = [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
        return lines or [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    text = out.read_text()
    if text.startswith("<"):
        suite = ElementTree.fromstring(text).find("testsuite")
        assert suite is not None, "pytest writes one"
        return {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
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
        lacks = [reason for need in job.needs if (reason := NEEDS[need]())]
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
            print(f"    {outcome.verdict:7} {outcome.name}: {shown(outcome)}", flush=True)
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


def shown(outcome: Outcome) -> str:
    """Return the measured values, or why there are none."""
    return ", ".join(map(number, outcome.measured)) or outcome.why


def expected(claim: Claim) -> str:
    """Return the bands of a claim; one stands for several that are alike."""
    return ", ".join(dict.fromkeys(band(*limits) for limits in claim.bands))


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    names = head.split(" | ")
    lines = [f"| {head} |", f"|{' --- |' * len(names)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def verdicts(outcomes: Iterable[Outcome]) -> str:
    """Return the table of claims held and missed."""
    rows = (
        (
            f"`{outcome.name}`",
            CLAIMS[outcome.name].what.replace("|", "\\|"),
            expected(CLAIMS[outcome.name]),
            shown(outcome).replace("|", "\\|"),
            outcome.verdict if outcome.verdict == "held" else f"**{outcome.verdict}**",
            f"{outcome.seconds:.0f}",
            f"{outcome.load:.1f}",
        )
        for outcome in outcomes
    )
    return table("claim | what | expected | measured | | seconds of its job | load before", rows)


def page() -> str:
    """Return the tables of REPRODUCE.md: jobs, and their bands."""
    jobs = table(
        "job | command, after `python` | minutes | needs",
        (
            (f"`{name}`", f"`{job.command}`", f"{job.minutes:g}", ", ".join(job.needs).replace("root", "**root**"))
            for name, job in JOBS.items()
        ),
    )
    claims = table(
        "claim | what | stands in | expected | so wide because | the page has it from",
        (
            (
                f"`{name}`",
                claim.what,
                stands_in(claim.page),
                expected(claim),
                claim.why,
                claim.origin,
            )
            for name, claim in CLAIMS.items()
        ),
    )
    return f"{jobs}\n\n{claims}"


def stands_in(page: str) -> str:
    """Return a page by its name, as a link where the site has it by that path."""
    if not page.startswith("docs/"):
        return Path(page).stem
    name = Path(page).stem if page != RESULTS else "results"
    return f"[{name}]({page})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wanted claims, and return 1 if a claim is missed or a job has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="claims, jobs, or words before a dot")
    parser.add_argument("--list", action="store_true", help="print claims and jobs, and run nothing")
    parser.add_argument("--page", action="store_true", help="print the tables of REPRODUCE.md")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "reproduce", metavar="DIR", help="(default: %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        claims = chosen(args.only)
    except ValueError as error:
        parser.error(str(error))
    if args.page:
        print(page())
        return 0
    if args.list:
        for name, claim in claims.items():
            print(f"{name:24} {claim.job:14} {claim.page:38} {claim.what}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing stays behind
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    start = monotonic()
    outcomes, found = reproduce(claims, out)
    counts = {
        name: sum(outcome.verdict == name for outcome in outcomes) for name in ("held", "missed", "failed", "skipped")
    }
    asked = {"minutes": (monotonic() - start) / 60, **counts, "claims": [outcome._asdict() for outcome in outcomes]}
    made = records.provenance()
    records.write(out / "record.json", {**made, **asked, "jobs": found})
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    told = f"{summary}, in {asked['minutes']:.0f} minutes, on {made['cpus']} x {made['cpu']}, {made['date'][:10]}."
    (out / "README.md").write_text(f"# Claims held or missed\n\n{told}\n\n{verdicts(outcomes)}\n")
    print(f"\n{verdicts(outcomes)}\n\n{told}\nrecord: {out / 'record.json'}")
    return int(counts["missed"] + counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
