"""Whether hosts can be emulated."""

from __future__ import annotations

import pytest

from sparse_mpi_bench.emulation import hosts as emulation


@pytest.fixture(scope="session")
def possible():
    if lacks := emulation.missing():
        pytest.skip("; ".join(lacks))
    try:
        with emulation.emulate(2, 1_000_000):
            pass
    except RuntimeError as error:
        pytest.skip(f"no network namespaces: {error}")
