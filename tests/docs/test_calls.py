"""*Orders of calls*: its tables are those of ``calls.json``, which says what shows each order, and has all in tests.

python -m tests.docs.test_calls    # writes the tables
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..training import ddp_checks, fsdp_checks  # noqa: F401  whose laws are among those of `check_door`
from ..training.check_door import CHECKS
from ..training.orders import LOOPS, REFUSED

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/guides/calls.md"
ORDERS = json.loads(PAGE.with_suffix(".json").read_text())
COLUMNS = {"optimizer": ("effect",), "hooks": ("DDP's hook", "FSDP2"), "local": ("effect",)}  # as the page has them
TABLE = re.compile(r"^\| order .*\n(?:\|.*\n)+", re.MULTILINE)


def renewed(page: str) -> str:
    """Return the page with the tables of the data."""
    tables = []
    for door, columns in COLUMNS.items():
        rows = [
            ("order", *columns),
            ["---"] * (1 + len(columns)),
            *([of["order"], *of["effect"]] for of in ORDERS[door]),
        ]
        tables.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return TABLE.sub(lambda _: tables.pop(0), page)


def test_the_page_has_the_tables_of_the_data():
    assert renewed(PAGE.read_text()) == PAGE.read_text(), "run python -m tests.docs.test_calls"


def test_each_order_is_shown_and_each_program_is_an_order():
    """By programs of training/orders.py, laws of `check_door`, and tests, by name."""
    tests = {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    shown = [set(row["shown"]) for rows in ORDERS.values() for row in rows]
    laws = {name.split(":")[0] for name in CHECKS}
    assert all(shown) and set().union(*shown) <= {*tests, *laws, *LOOPS, *REFUSED}, "no such program, law or test"
    assert {*LOOPS, *REFUSED} <= set().union(*shown), "calls.json must have each order that tests hold"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
