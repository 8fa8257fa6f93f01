"""The command line, as a user calls it."""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import subprocess
import sys

import pytest

import sparse_mpi
from sparse_mpi import ALGORITHMS, SELECTORS
from sparse_mpi.__main__ import main
from sparse_mpi.cli import benchmark, records
from sparse_mpi.comm import NullComm
from sparse_mpi.predict.models import MODELS
from sparse_mpi.reduction.arguments import spelled
from sparse_mpi.sparse import Layout
from sparse_mpi.wire import WIRES
from sparse_mpi_bench.commands.bench_select import interval


@pytest.mark.parametrize(
    ("command", "registry"), [("algorithms", ALGORITHMS), ("selectors", SELECTORS), ("wires", WIRES)]
)
def test_table_has_a_row_for_every_entry(command, registry, capsys):
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == list(registry)
    assert len({line.count("|") for line in lines}) == 1


def test_selectors_of_a_model_tell_what_its_rows_come_to(capsys):
    """The floor of VGG-16: 4,224 rows of convolutions and 10 of the classifier, and all that has one dimension."""
    assert main(["selectors", "--model", "vgg16", "--density", "0.0001", "0.01"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[d, f"`{rule}`"] for d in ("0.0001", "0.01") for rule in ("output", "axis1")]
    assert rows[0][2:5] == [f"{(4234 + 12_682) / 14_728_266:.5f}", "4,234", "12,682"]
    assert rows[1][3] == f"{9 * 4224 + 10:,}" and [row[2] for row in rows[2:]] == ["0.01000"] * 2
    assert all(5 < float(row[5]) <= 6 for row in rows)


@pytest.mark.parametrize(("called", "name"), [("sparse-mpi", "sparse-mpi"), ("__main__.py", "python -m sparse_mpi")])
def test_help_names_the_program_as_it_was_called(called, name, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / called), "--help"])
    for arguments in ([], ["run"], ["bench", "allreduce"]):
        with pytest.raises(SystemExit):
            main([*arguments, "--help"])
        assert capsys.readouterr().out.startswith(" ".join([f"usage: {name}", *arguments]))
    assert records.command().startswith("sparse-mpi --help" if called == name else "python ")


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"sparse_mpi {sparse_mpi.__version__}\n"


def test_public_names_are_listed_and_found():
    names = dir(sparse_mpi)
    assert {*sparse_mpi.__all__, "DiLoCo", "optim", "ddp"} < set(names) and "import_module" not in names
    assert all(hasattr(sparse_mpi, name) for name in names if name not in ("DiLoCo", "optim", "ddp", "elastic"))


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"algorithm": "okotpk"}, "did you mean oktopk?"),
        ({"algorithm": "oktopk", "wire": "paked"}, "did you mean packed?"),
        ({"algorithm": "oktopk", "perod": 3}, "did you mean period?"),
        ({"feedback": "leeky"}, "did you mean leaky?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest(given, answer):
    with pytest.raises((TypeError, ValueError), match=re.escape(answer)):
        sparse_mpi.SparseAllreduce(10, k=2, comm=NullComm(2), **given)


def test_help_of_functions_shows_round_numbers():
    """The default network is 10 Gbit/s and 5 us."""
    assert "Network(alpha=5e-06, beta=8e-10)" in pydoc.render_doc(sparse_mpi.allreduce)
    for name in sparse_mpi.__all__:
        if callable(made := getattr(sparse_mpi, name)):
            assert not re.search(r"\d{7}", str(inspect.signature(made))), name


ALLREDUCE = ["bench", "allreduce", "--n", "20000", "--steps", "1", "--warmup", "0"]


def test_bench_allreduce_measures_every_algorithm(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "orig_argv", ["/bin/python", "-m", "sparse_mpi", *ALLREDUCE])
    assert main([*ALLREDUCE, "--json", str(tmp_path / "r.json")]) == 0
    printed, record = capsys.readouterr().out, json.loads((tmp_path / "r.json").read_text())
    assert list(record["algorithms"]) == list(ALGORITHMS) and record["ranks"] == 1
    assert record["command"].startswith("python -m sparse_mpi bench allreduce --n 20000") and record["versions"]["mpi"]
    for name, measured in record["algorithms"].items():
        assert name in printed and measured["step"] > 0 and measured["bytes"] == 0


@pytest.mark.full("a benchmark of several algorithms")
def test_bench_takes_a_selector_and_a_wire_for_all_that_have_one(tmp_path):
    """Of dense there is no selection, and so nothing to write."""
    options = ["--algorithms", "dense", "topka", "oktopk", "--selector", "redsync", "--wire", "packed+int8"]
    assert main([*ALLREDUCE, *options, "--json", str(tmp_path / "r.json")]) == 0
    record = json.loads((tmp_path / "r.json").read_text())
    selected = {name: measured["selected"] for name, measured in record["algorithms"].items()}
    assert (record["options"]["selector"], record["options"]["wire"]) == ("redsync", "packed+int8")
    assert selected["dense"] == 100 and 1 < selected["topka"] <= 2 and 1 < selected["oktopk"] <= 2


def test_bench_wire_measures_every_format(tmp_path, capsys):
    file = tmp_path / "wire.json"
    options = ["--n", "20000", "--density", "0.01", "0.1", "--messages", "3", "--rounds", "1", "--json", str(file)]
    assert main(["bench", "wire", *options]) == 0
    printed, record = capsys.readouterr().out, json.loads(file.read_text())
    assert [case["pairs"] for case in record["cases"]] == [200, 2000] and "3 messages" in printed
    for case in record["cases"]:
        assert list(case["formats"]) == list(WIRES)
        assert case["formats"]["coo32"]["bytes a pair"] == 8 > case["formats"]["packed"]["bytes a pair"]
        assert case["formats"]["packed"]["error"] == 0 < case["formats"]["packed+int8"]["error"]
        assert case["formats"]["packed+int4"]["error"] < case["formats"]["packed+int2"]["error"] < 0.15
        assert all(speeds["pack"] > 0 and speeds["unpack"] > 0 for speeds in case["formats"].values())


def test_bench_takes_a_model_and_a_rank_for_low_rank_algorithms(tmp_path, monkeypatch):
    """On a tiny VGG-16 among four ranks who all have the same data."""
    monkeypatch.setitem(MODELS, "vgg16", lambda: (("weight", (20, 30)), ("bias", (20,))))
    monkeypatch.setattr(benchmark, "comm_of_job", lambda: NullComm(4))
    record = tmp_path / "r.json"
    command = ["bench", "allreduce", "--algorithms", "dense", "powersgd", "--steps", "1", "--json", str(record)]
    for options, rank in ((), 4), (("--rank", "2"), 2):
        assert main([*command, *options]) == 0
        written = json.loads(record.read_text())
        assert (written["options"]["model"], written["options"]["n"]) == ("vgg16", 620)
        saved = written["algorithms"]["dense"]["bytes"] - written["algorithms"]["powersgd"]["bytes"]
        assert saved == 6 * (600 - rank * (20 + 30))


def test_bench_select_measures_kernels_beside_their_floors(tmp_path):
    pytest.importorskip("matplotlib")
    record, figure = tmp_path / "r.json", tmp_path / "r.png"
    options = ["--n", "3000", "5000", "--density", "0.1", "--threads", "1", "2", "--rounds", "6"]
    assert main(["bench", "select", *options, "--json", str(record), "--plot", str(figure)]) == 0
    written = json.loads(record.read_text())
    assert [(c["n"], c["threads"], c["density"]) for c in written["cases"]] == [
        (n, threads, 0.1) for n in (3000, 5000) for threads in (1, 2)
    ]
    names = {"read", "copy", "select", "accumulate + select", "exact k-th", "top-k of rows", "torch.topk"}
    for case in written["cases"]:
        assert {*names, "argpartition"} <= set(case["methods"]) and all(
            len(s) == 6 and min(s) > 0 for s in case["methods"].values()
        )
    assert figure.stat().st_size > 10_000 and written["versions"]["numpy"]


@pytest.mark.parametrize(("count", "first"), [(6, 0), (8, 0), (9, 1), (15, 3), (100, 39)])
def test_interval_covers_the_median(count, first):
    """The order statistics of textbooks: at most 2.5 % of all samples lie wholly on one side of them."""
    assert interval([float(i) for i in reversed(range(count))]) == (first, count - 1 - first)


@pytest.mark.parametrize("of", ["", " on every rank"])
def test_benchmarks_without_a_gpu(monkeypatch, of):
    monkeypatch.setitem(sys.modules, "cupy", None)
    command = ["allreduce", "--steps", "1", "--warmup", "0"] if of else ["select"]
    with pytest.raises(SystemExit, match=f"--device gpu needs CuPy and a GPU{of}: "):
        main(["bench", *command, "--device", "gpu", "--n", "2000"])


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("vgg16", 54, 14_728_266),
        ("resnet50", 161, 25_557_032),
        ("bert-base", 199, 109_482_240),
        ("bert-small", 71, 28_763_648),
    ],
)
def test_models_have_the_published_numbers_of_parameters(model, tensors, parameters):
    """VGG-16 is compared with the program's model in tests/train."""
    shapes = [shape for _, shape in MODELS[model]()]
    assert len(shapes) == tensors and Layout.of(shapes).size == parameters
    assert len({name for name, _ in MODELS[model]()}) == tensors


def test_algorithms_are_spelled_with_their_options():
    assert spelled("oktopk:wire=packed:radix=32") == ("oktopk", {"wire": "packed", "radix": 32})
    assert spelled("elect:votes=0.5") == ("elect", {"votes": 0.5})
    for text, complaint in (
        ("oktopk:foo=3", "oktopk has no option foo"),
        ("oktopus", "algorithm must be one of"),
        ("oktopk:radix=1", "radix must be at least 2"),
        ("dense:wire=packed", "dense has no option wire"),
    ):
        with pytest.raises(ValueError, match=complaint):
            spelled(text)


def test_whoever_reads_may_have_enough():
    """As `head` has, which goes while there is more to print."""
    command = [sys.executable, "-m", "sparse_mpi", "predict", "networks", "--ranks", *map(str, range(2, 40))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.close()
        assert running.stderr.read() == b"" and running.wait(60) == 141
