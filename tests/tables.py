"""Tables of pages that are compared with the library. They stand between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "algorithms.md"
GPU_COSTS = ROOT / "docs" / "reference" / "gpu-costs.md"
T = TypeVar("T")


def place(text: str, name: str) -> re.Match[str]:
    """Return the head of a table of a page, and its rows."""
    match = re.search(rf"<!-- {name} -->\n(.*\n.*\n)((?:\|.*\n)*)<!-- /{name} -->", text)
    if match is None:
        raise ValueError(f"no table between <!-- {name} --> and <!-- /{name} -->")
    return match


def cells_of(rows: str) -> dict[str, list[str]]:
    """Return all cells of rows as they stand there, by what the first has."""
    cells = [line.split("|")[1:-1] for line in rows.splitlines()]
    return {first.strip(" `"): [first, *rest] for first, *rest in cells}


def table(page: Path, name: str) -> dict[str, list[str]]:
    """Return what the cells of rows have, all but the first, by the first."""
    head, rows = place(page.read_text(), name).groups()
    for row in rows.splitlines():
        if row.count("|") != head.splitlines()[0].count("|"):
            raise ValueError(f"{page.name}: this row has other columns than the table {name} has: {row}")
    return {first: [cell.strip(" `") for cell in rest] for first, (_, *rest) in cells_of(rows).items()}


def with_cells(text: str, name: str, row: str, cells: Sequence[object], order: Sequence[str]) -> str:
    """Return a page with ``cells`` as the last ones of a row, behind its first one if it is new."""
    old = place(text, name)
    rows = cells_of(old[2])
    before = rows.get(row, [f" {row} ", *map(str, cells)])[: -len(cells)]
    rows = inserted(rows, {row: [*before, *(f" {cell} " for cell in cells)]}, order)
    new = "".join(f"|{'|'.join(of)}|\n" for of in rows.values())
    return text[: old.start(2)] + new + text[old.end(2) :]


def inserted(known: Mapping[str, T], new: Mapping[str, T], order: Sequence[str]) -> dict[str, T]:
    """Return ``known`` and ``new`` as far as ``order`` has them.

    What is known stays in its place; what is not stands before all that ``order`` has behind it.
    """
    keys = [key for key in known if key in order]
    for key in (key for key in new if key not in known):
        later = order[order.index(key) + 1 :]
        keys.insert(next((at for at, other in enumerate(keys) if other in later), len(keys)), key)
    return {key: new[key] if key in new else known[key] for key in keys}
