"""A plugin of pytest that runs the tests which a file lists, in the order of the list: pytest -p tests.mutation.only.

Names of tests that do not exist are passed over: a mutant may change the default value that names a parameter.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--only", type=Path, required=True, metavar="FILE", help="node ids, one a line")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(config.getoption("--only").read_text().splitlines())}
    items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])
