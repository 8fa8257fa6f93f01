"""Tables of a study: scores paired by seed, their differences from the first way, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparse_mpi.tools.analysis.interval import Interval


def table(records: Sequence[dict[str, Any]], field: str) -> str:
    """Return a table of means of ``field`` over the seeds, and of differences from the first way, paired by seed."""
    lines = [f"| shards | way | {field} | minus {records[0]['way']}, paired |", "| --- | --- | ---: | ---: |"]
    for shards in dict.fromkeys(record["shards"] for record in records):
        of = [record for record in records if record["shards"] == shards]
        first = {record["seed"]: record[field] for record in of if record["way"] == records[0]["way"]}
        for way in dict.fromkeys(record["way"] for record in of):
            own = {record["seed"]: record[field] for record in of if record["way"] == way}
            apart = Interval.of([value - first[seed] for seed, value in own.items()])
            lines.append(f"| {shards} | {way} | {Interval.of(list(own.values()))} | {apart} |")
    return "\n".join(lines)
