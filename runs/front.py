"""Write the measured numbers of README.md and of the site's front page: ``front.json`` has each sentence and record.

    python -m runs.front

A number stands in braces, as `str.format` has it. Records are of this release, or of the last minor one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from runs.claims import Reading

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/index.md")
PLACE = re.compile(r"\{[^}]*\}")


class Sentence(NamedTuple):
    says: str
    record: str  # file of the checkout
    readings: list[dict[str, Any]]  # paths to its numbers, see `Reading`

    def numbers(self) -> list[str]:
        record = json.loads((ROOT / self.record).read_text())
        values = [value for of in self.readings for value in Reading(**of)(record)]
        return [place.format(value) for place, value in zip(PLACE.findall(self.says), values, strict=True)]

    def pattern(self) -> re.Pattern[str]:
        """Return what finds the sentence with any numbers, in one line or several; groups are what is between them."""
        parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in PLACE.split(self.says)]
        return re.compile(r"[\w.,]*\w".join(f"({part})" for part in parts))

    def renewed(self, page: str) -> str:
        """Return the page with the numbers of the record."""
        numbers = [*self.numbers(), ""]
        return self.pattern().sub(lambda found: "".join(map(str.__add__, found.groups(), numbers)), page)


FILE: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(Path(__file__).with_suffix(".json").read_text())
SENTENCES = [Sentence(says, record, readings) for record, of in FILE.items() for says, readings in of.items()]


def main() -> None:
    for name in PAGES:
        page = (ROOT / name).read_text()
        for sentence in SENTENCES:
            page = sentence.renewed(page)
        (ROOT / name).write_text(page)


if __name__ == "__main__":
    main()
