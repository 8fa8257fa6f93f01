"""``bench kernels``: selection beside its floors, message formats, and intervals of medians."""

from __future__ import annotations

import json
import sys

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.wire import WIRES
from sparse_mpi_bench.commands.bench_kernels import interval


def test_kernels_are_measured_beside_their_floors_and_formats_beside_each_other(tmp_path):
    record = tmp_path / "r.json"
    options = ["--n", "3000", "20000", "--density", "0.1", "--threads", "1", "2", "--rounds", "6"]
    assert main(["bench", "kernels", *options, "--json", str(record)]) == 0
    written = json.loads(record.read_text())
    assert [(c["n"], c["threads"], c["density"]) for c in written["cases"]] == [
        (n, threads, 0.1) for n in (3000, 20_000) for threads in (1, 2)
    ]
    names = {"read", "copy", "select", "accumulate + select", "exact k-th", "top-k of rows", "torch.topk"}
    for case in written["cases"]:
        assert {*names, "argpartition", *(f"unpack {name}" for name in WIRES)} <= set(case["methods"])
        assert all(len(seconds) == 6 and min(seconds) > 0 for seconds in case["methods"].values())
    formats = written["cases"][-1]["formats"]
    assert list(formats) == list(WIRES)
    assert formats["coo32"]["bytes a pair"] == 8 > formats["packed"]["bytes a pair"]
    assert formats["packed"]["error"] == 0 < formats["packed+int8"]["error"]
    assert formats["packed+int4"]["error"] < formats["packed+int2"]["error"] < 0.15
    assert written["versions"]["numpy"]


@pytest.mark.parametrize(("count", "first"), [(6, 0), (8, 0), (9, 1), (15, 3), (100, 39)])
def test_interval_covers_the_median(count, first):
    """The order statistics of textbooks: at most 2.5 % of all samples lie wholly on one side of them."""
    assert interval([float(i) for i in reversed(range(count))]) == (first, count - 1 - first)


@pytest.mark.parametrize(("what", "who"), [("kernels", ""), ("steps", " on every rank")])
def test_a_gpu_that_is_not_there_is_said(monkeypatch, what, who):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit, match=f"--device gpu needs CuPy and a GPU{who}: "):
        main(["bench", what, "--device", "gpu", "--n", "2000"])
