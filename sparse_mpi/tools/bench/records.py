"""Records of measurements: JSON files with the numbers, what was asked for, and what they were measured on."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

NOT_RECORDED = ("run", "json", "plot")  # of a command line: its function, and where output goes


def options(args: Namespace) -> dict[str, Any]:
    """Return the options of a command line that decide what is measured."""
    return {name: value for name, value in vars(args).items() if name not in NOT_RECORDED}


def write(file: str | Path, *parts: dict[str, Any]) -> None:
    """Write one JSON object that has the members of all ``parts``, in their order."""
    record = {name: value for part in parts for name, value in part.items()}
    Path(file).write_text(json.dumps(record, indent=1, default=str) + "\n")


def write_cases(file: str | Path, record: dict[str, Any]) -> None:
    """Write a record whose last member, ``cases``, is long: one case a line."""
    lines = ",\n".join(json.dumps(case, default=str) for case in record["cases"])
    head = json.dumps(record | {"cases": []}, indent=1, default=str).removesuffix("[]\n}")
    Path(file).write_text(f"{head}[\n{lines}\n]\n}}\n")
