"""CPU seconds of each test and of each folder of tests: measured in every run, kept in `durations.json`.

    make test                            a whole run leaves its record in build/durations.json, and prints it
    python -m tests.durations            prints the record that is kept: folders, and the 30 longest tests
    python -m tests.durations --keep     puts the record of the last whole run in its place

`tests/house/test_durations.py` has the most that a test and a folder may take. CPU seconds of a test are those of this
process and of its children, from the first of its fixtures to the end of the last: a fixture that several tests share
counts in the first of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sparse_mpi.cli.records import provenance

ROOT = Path(__file__).parents[1]
KEPT, LAST = Path(__file__).with_name("durations.json"), ROOT / "build" / "durations.json"
SHORT = 0.1  # seconds; shorter tests count in their folder alone
LONGEST = 30  # tests that are printed
IN_PROCESS = "in process"  # the part of the suite that needs no job


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of its children, whether they have ended or not."""
    spent = sum(os.times()[:4])
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread, or a child, has just ended
            for child in children.read_text().split():
                numbers = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                spent += sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
    return spent


def folder_of(test: str) -> str:
    return "/".join(test.partition("::")[0].split("/")[:-1])


class Durations:
    """The plugin that measures tests, in each worker of pytest-xdist, and writes the record of a whole run.

    Args:
        part: name of the part of the suite that is run as a whole, or None, which writes nothing.
    """

    def __init__(self, part: str | None) -> None:
        self.part, self.began, self.before = part, time.monotonic(), 0.0
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown":
            report.user_properties = [*report.user_properties, ("cpu", cpu_seconds() - self.before)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds.update((report.nodeid, seconds) for name, seconds in report.user_properties if name == "cpu")

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self.part is not None and exitstatus == 0:
            written = write(self.part, self.seconds, time.monotonic() - self.began)
            terminalreporter.write_line(shown({self.part: written}))


def write(part: str, seconds: dict[str, float], wall: float) -> dict[str, Any]:
    """Put one part of the suite, with the ``wall`` seconds that it took, into the record; return it."""
    folders: Counter[str] = Counter()
    for test, spent in seconds.items():
        folders[folder_of(test)] += spent  # type: ignore[assignment]
    facts = provenance()
    record = {
        **{name: facts[name] for name in ("date", "cpu", "cpus")},
        "minutes": round(wall / 60, 1),
        "tests": len(seconds),
        "folders": {folder: round(spent, 1) for folder, spent in sorted(folders.items())},
        "longer": {test: round(spent, 1) for test, spent in sorted(seconds.items()) if spent >= SHORT},
    }
    whole = json.loads(LAST.read_text()) if LAST.exists() else {}
    LAST.parent.mkdir(exist_ok=True)
    new = LAST.with_suffix(".new")
    new.write_text(json.dumps(whole | {part: record}, indent=1) + "\n")
    new.replace(LAST)
    return record


def shown(record: dict[str, Any]) -> str:
    """Return the table of a record: each part, its folders, and its longest tests."""
    lines = []
    for part, found in record.items():
        total = sum(found["folders"].values())
        lines += [f"{part}: {found['tests']:,} tests, {total:.0f} CPU s in {found['minutes']} minutes, {found['cpu']}"]
        lines += [f"{spent:8.1f}  {name}" for name, spent in Counter(found["folders"]).most_common() if spent >= SHORT]
        lines += [f"the longest of {part}:"]
        lines += [f"{spent:8.1f}  {test}" for test, spent in Counter(found["longer"]).most_common(LONGEST)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durations", description="CPU seconds of the tests")
    parser.add_argument("--keep", action="store_true", help="keep the record of the last whole run of make test")
    if parser.parse_args().keep:
        if not LAST.exists():
            parser.error(f"there is no {LAST.relative_to(ROOT)}: run make test first")
        KEPT.write_text(LAST.read_text())
    print(shown(json.loads(KEPT.read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
