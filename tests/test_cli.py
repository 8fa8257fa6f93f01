"""The command line, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparse_mpi import ALGORITHMS
from sparse_mpi.cli import main


def test_table_has_a_row_for_every_algorithm(capsys):
    assert main(["algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == list(ALGORITHMS)
    assert len({line.count("|") for line in lines}) == 1


def test_bench_allreduce_measures_every_algorithm(tmp_path):
    command = [sys.executable, "-m", "sparse_mpi", "bench", "allreduce", "--n", "20000", "--steps", "3"]
    done = subprocess.run([*command, "--json", str(tmp_path / "r.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    assert list(record["algorithms"]) == list(ALGORITHMS) and record["ranks"] == 1
    assert record["command"].startswith("python -m sparse_mpi bench allreduce --n 20000") and record["versions"]["mpi"]
    for name, measured in record["algorithms"].items():
        assert name in done.stdout and measured["step"] > 0 and measured["bytes"] == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMMAND"),
        (["bench", "allreduce", "--algorithms", "best"], "oktopk"),
        (["bench", "allreduce", "--steps", "0"], "--steps must be at least 1"),
    ],
)
def test_wrong_calls_say_what_is_right(argv, says, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code not in (0, None)
    assert says in capsys.readouterr().err + str(stop.value.code)
