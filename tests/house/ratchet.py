"""Tables of a test file whose numbers may only fall: print them beside the numbers measured, and lower them."""

from __future__ import annotations

import argparse
from pathlib import Path


def main(module: str, file: Path, most: dict[str, int], measured: dict[str, int], title: str) -> None:
    """Answer ``python -m module [--lower]``: the table ``most`` stands in ``file``, one ``"row": number`` a line."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=title)
    parser.add_argument("--lower", action="store_true", help="lower the table to the numbers measured")
    lower, text = parser.parse_args().lower, file.read_text()
    for row, limit in most.items():
        number = measured.get(row, 0)
        remark = "could be lowered" if number < limit else "TOO MUCH" if number > limit else ""
        print(f"{number:8,} of {limit:8,}  {row:50} {remark}".rstrip())
        if lower and number < limit:
            text = text.replace(f'    "{row}": {limit:_},\n', f'    "{row}": {number:_},\n' if number else "")
    for row in sorted(set(measured) - set(most)):
        if measured[row]:
            print(f"{measured[row]:8,} of nothing  {row}")
    if lower:
        file.write_text(text)
