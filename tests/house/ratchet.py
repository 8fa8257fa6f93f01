"""Tables of figures that may only fall, in ``ratchet.json``, with room for whoever adds something.

A figure is what there was at the last release. Its row has room for 2 % more, and for as much as `Ratchet.least` says.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..replaced import replace

FILE = Path(__file__).with_name("ratchet.json")
PERCENT = 2


def allowed(figure: int, least: int = 0) -> int:
    """Return the most that may be where ``figure`` was at the last release."""
    return figure + max(figure * PERCENT // 100, least)


@dataclass
class Ratchet:
    """One table of ``ratchet.json``.

    Args:
        table: its name there.
        module: ``python -m module --lower`` lowers it.
        least: least room of a row.
    """

    table: str
    module: str
    least: Callable[[str], int]

    def __post_init__(self) -> None:
        self.figures: dict[str, int] = json.loads(FILE.read_text()).get(self.table, {})

    def limit(self, row: str) -> int:
        """Return the most that a row may have."""
        return allowed(self.figures[row], self.least(row))

    def check(self, row: str, found: int, where: str = "") -> None:
        """Raise AssertionError if there is more than a row may have, or no row."""
        lower = f"python -m {self.module} --lower"
        assert row in self.figures, f"{row} has no row in {FILE.name}: {lower} writes it"
        figure, limit = self.figures[row], self.limit(row)
        assert found <= limit, (
            f"{row}: {found:,}; {limit:,} are allowed, {limit - figure:,} over the {figure:,} of the last release. "
            f"Take something away, or raise the figure in {FILE.name} in a commit that says why. {where}"
        )

    def main(
        self, title: str, found: Mapping[str, int], added: Mapping[str, int], parts: Sequence[str] | None = None
    ) -> None:
        """Answer ``python -m module [--lower]``.

        Args:
            title: of the help.
            found: what there is, by row.
            added: what new parts have beside it.
            parts: all parts, to be known from now on.
        """
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=title)
        parser.add_argument("--lower", action="store_true", help="lower the table to what there is, and add new rows")
        lower = parser.parse_args().lower
        for row in {**self.figures, **found}:
            number, figure = found.get(row, 0), self.figures.get(row)
            remark = "no row" if figure is None else "TOO MUCH" if number > self.limit(row) else ""
            beside = f"and {added[row]:,} of new parts" if added.get(row) else ""
            print(f"{number:8,} of {figure or 0:8,}  {row:50} {beside} {remark}".rstrip())
        if lower:
            tables = json.loads(FILE.read_text())
            lowered = {row: min(self.figures.get(row, number), number) for row, number in found.items()}
            tables[self.table] = {row: number + added.get(row, 0) for row, number in lowered.items()}
            if parts is not None:
                tables["parts"] = list(parts)
            replace(FILE, json.dumps(tables, indent=1) + "\n")
