"""The command line, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparse_mpi import ALGORITHMS, SELECTORS
from sparse_mpi.cli import main


@pytest.mark.parametrize(("command", "registry"), [("algorithms", ALGORITHMS), ("selectors", SELECTORS)])
def test_table_has_a_row_for_every_entry(command, registry, capsys):
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == list(registry)
    assert len({line.count("|") for line in lines}) == 1


def bench(file, *options):
    """What the benchmark prints, and the record it writes."""
    command = [sys.executable, "-m", "sparse_mpi", "bench", "allreduce", "--n", "20000", "--steps", "3"]
    done = subprocess.run([*command, *options, "--json", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def test_bench_allreduce_measures_every_algorithm(tmp_path):
    printed, record = bench(tmp_path / "r.json")
    assert list(record["algorithms"]) == list(ALGORITHMS) and record["ranks"] == 1
    assert record["command"].startswith("python -m sparse_mpi bench allreduce --n 20000") and record["versions"]["mpi"]
    for name, measured in record["algorithms"].items():
        assert name in printed and measured["step"] > 0 and measured["bytes"] == 0


def test_bench_takes_a_selector_for_all_that_select(tmp_path):
    options = ["--algorithms", "dense", "topka", "oktopk", "--selector", "redsync"]
    _, record = bench(tmp_path / "r.json", *options)
    selected = {name: measured["selected"] for name, measured in record["algorithms"].items()}
    assert record["options"]["selector"] == "redsync" and selected["dense"] == 100
    assert 1 < selected["topka"] <= 2 and 1 < selected["oktopk"] <= 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMMAND"),
        (["bench", "allreduce", "--algorithms", "best"], "oktopk"),
        (["bench", "allreduce", "--selector", "best"], "sidco-gp"),
        (["bench", "allreduce", "--selector", "dgc", "--algorithms", "dense"], "--selector has no effect on dense"),
        (["bench", "allreduce", "--steps", "0"], "--steps must be at least 1"),
    ],
)
def test_wrong_calls_say_what_is_right(argv, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code not in (0, None)
    assert says in capsys.readouterr().err + str(stop.value.code)
