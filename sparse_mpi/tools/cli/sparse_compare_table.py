"""The table of ``bench sparse-compare``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from sparse_mpi.collectives.arguments import AUTO
from sparse_mpi.tools.cli import markdown
from sparse_mpi.tools.cli.sparse_rivals import RIVALS, best_of_others

LEGEND = "cells: milliseconds, MB that the busiest host sent, peak memory over the bytes of input and result"


def table(jobs: Sequence[dict[str, Any]]) -> str:
    """Return rows of cases and ranks in Markdown, and what was not compared and why."""
    head = ["keys", "P", "rate", "fill-in", "auto took", AUTO, *RIVALS, "best rival / auto"]
    rows = [head, ["---", *["---:"] * 3, "---", *["---:"] * (len(head) - 5)]]
    reasons: dict[str, None] = {}
    for name in dict.fromkeys(name for job in jobs for name in job["cases"]):
        for job in jobs:
            if name not in job["cases"]:
                continue
            case = job["cases"][name]
            found = case["candidates"]
            best = best_of_others(found)
            rows.append(
                [
                    name,
                    str(job["ranks"]),
                    job["rate"],
                    f"{case['fill-in']:.2f}",
                    case["chosen"],
                    *(cell(found.get(each)) for each in (AUTO, *RIVALS)),
                    f"{best / found[AUTO]['seconds']:.2f}" if isfinite(best) else "-",
                ]
            )
            reasons |= dict.fromkeys(f"{name}: no {each}: {why}" for each, why in case["skipped"].items())
    return "\n".join([markdown.table(rows), "", LEGEND, *reasons])


def cell(row: dict[str, Any] | None) -> str:
    """Return the numbers of a candidate."""
    if row is None:
        return "-"
    memory = "-" if row["memory"] is None else f"{row['memory']:.1f}"
    return f"{1e3 * row['seconds']:.3g}, {row['bytes'] / 1e6:.3g}, {memory}"
