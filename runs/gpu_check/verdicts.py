"""The demands of ``gpu-check`` on the times of its stages, each with its roofline beside it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

LARGE = 100_000_000  # elements from which on a vector is far larger than any cache: selection is judged there
COPIED = 12  # bytes an element that the copy of `bench kernels` reads and writes
PAIRS = 8  # bytes that a selected entry writes
WITHIN, TOPK, ROWS = 1.3, 10.0, 5.0  # times the floor; times as fast as torch.topk, and as torch.topk of rows
DATA_SHEETS = {  # TB/s of memory; the first name that the GPU's contains
    "H200": 4.8,
    "H100 PCIe": 2.0,
    "H100 NVL": 3.9,
    "H100": 3.35,
    "A100-SXM4-80GB": 2.04,
}


class Verdict(NamedTuple):
    """A demand, and how a measurement stands to it."""

    asked: str
    measured: str
    roofline: str
    good: bool


def verdicts(measured: dict[str, Any], gpu: str | None = None) -> list[str]:
    """Return a table in Markdown of all that can be judged by these records; empty if nothing can.

    Args:
        measured: records of stages, by name.
        gpu: the name of the GPU that they are of, whose data sheet gives the second roofline.
    """
    rows = [*_of_selection(measured.get("select", {"cases": []}), gpu or ""), *_of_steps(measured.get("allreduce-4"))]
    lines = [f"| {row.asked} | {row.measured} | {row.roofline} | {'yes' if row.good else 'no'} |" for row in rows]
    return ["| asked | measured | roofline | |", "| --- | --- | --- | --- |", *lines] if lines else []


def _of_selection(record: dict[str, Any], gpu: str) -> Iterator[Verdict]:
    """Yield the demands on kernels on large vectors, and their times beside the bandwidth bound."""
    sheet = next((rate for name, rate in DATA_SHEETS.items() if name in gpu), None)
    for case in record["cases"]:
        n, density = case["n"], case["density"]
        if n < LARGE:
            continue
        seconds = {name: statistics.median(values) for name, values in case["methods"].items()}
        bandwidth, at = COPIED * n / seconds["copy"], f"n = {n:,}, density {density:g}"
        for name, bytes_each in (("select", 4 + PAIRS * density), ("accumulate + select", 12 + PAIRS * density)):
            floor = bytes_each * n / bandwidth
            ratio = seconds[name] / floor
            roofline = (
                f"{1e3 * floor:.3f} ms: {bytes_each:g} bytes an element at the copy's {bandwidth / 1e12:.2f} TB/s"
            )
            if sheet is not None:
                roofline += f"; {bytes_each * n / sheet / 1e9:.3f} ms at the data sheet's {sheet:g} TB/s"
            asked = f"{name}, {at}: at most {WITHIN} x the roofline"
            yield Verdict(asked, f"{1e3 * seconds[name]:.3f} ms, {ratio:.2f} x", roofline, ratio <= WITHIN)
        for name, rival, least in (("select", "torch.topk", TOPK), ("top-k of rows", "torch.topk of rows", ROWS)):
            if rival in seconds:
                ratio = seconds[rival] / seconds[name]
                yield Verdict(
                    f"{name}, {at}: at least {least:g} x as fast as {rival}", f"{ratio:.1f} x", "", ratio >= least
                )


def _of_steps(record: dict[str, Any] | None) -> Iterator[Verdict]:
    """Yield whether a whole step on four ranks is faster than dense through the same transport."""
    steps = {name: row["step"] for name, row in record["results"].items()} if record else {}
    for name in ("oktopk", "elect"):
        if name in steps and "dense" in steps:
            ratio = steps["dense"] / steps[name]
            asked = f"a step of {name} on 4 ranks: faster than dense"
            yield Verdict(asked, f"{ratio:.2f} x as fast", "", ratio > 1)
