"""What ``gpu-check`` asks of the times that its stages have measured, and what it finds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

LARGE = 100_000_000  # elements from which on a vector is far larger than any cache: selection is judged there
COPIED = 12  # bytes an element that the copy of `bench select` reads and writes
PAIRS = 8  # bytes that a selected entry writes
WITHIN, TOPK, ROWS = 1.3, 10.0, 5.0  # times the floor; times as fast as torch.topk, and as torch.topk of rows


def verdicts(measured: dict[str, Any]) -> list[str]:
    """Return a table in Markdown of all that can be judged by these records; empty if nothing can."""
    rows = [*_of_selection(measured.get("select", {"cases": []})), *_of_steps(measured.get("allreduce-4"))]
    lines = [f"| {asked} | {found} | {'yes' if good else 'no'} |" for asked, found, good in rows]
    return ["| asked | found | |", "| --- | --- | --- |", *lines] if lines else []


def _of_selection(record: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield what is asked of kernels on large vectors, what was found, and if that is good."""
    for case in record["cases"]:
        n, density = case["n"], case["density"]
        if n < LARGE:
            continue
        seconds = {name: statistics.median(values) for name, values in case["methods"].items()}
        bandwidth, at = COPIED * n / seconds["copy"], f"n = {n:,}, density {density:g}"
        for name, bytes_each in (("select", 4 + PAIRS * density), ("accumulate + select", 12 + PAIRS * density)):
            ratio = seconds[name] * bandwidth / (bytes_each * n)
            asked = f"{name}, {at}: at most {WITHIN} x the time of {bytes_each:g} bytes an element by the copy"
            yield asked, f"{ratio:.2f} x", ratio <= WITHIN
        for name, rival, least in (("select", "torch.topk", TOPK), ("top-k of rows", "torch.topk of rows", ROWS)):
            if rival in seconds:
                ratio = seconds[rival] / seconds[name]
                yield f"{name}, {at}: at least {least:g} x as fast as {rival}", f"{ratio:.1f} x", ratio >= least


def _of_steps(record: dict[str, Any] | None) -> Iterator[tuple[str, str, bool]]:
    """Yield whether a whole step on four ranks is faster than dense through the same transport."""
    steps = {name: row["step"] for name, row in record["algorithms"].items()} if record else {}
    for name in ("oktopk", "elect"):
        if name in steps and "dense" in steps:
            ratio = steps["dense"] / steps[name]
            yield f"a step of {name} on 4 ranks: faster than dense", f"{ratio:.2f} x as fast", ratio > 1
