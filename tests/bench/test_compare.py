"""``bench compare`` runs a reader's script by several algorithms, and tells loss, bytes and seconds."""

from __future__ import annotations

import json

import pytest
import torch

from sparse_mpi import World
from sparse_mpi.__main__ import main
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi_bench.commands.bench_compare import draw, summary

from ..launch import ROOT, needs_mpi

OWN = """
import sys
import torch
from sparse_mpi.optim import DistributedOptimizer, broadcast_parameters
model = torch.nn.Linear(50, 1)
plain = torch.optim.AdamW(model.parameters(), lr=0.05)
optimizer = DistributedOptimizer(plain, algorithm="oktopk", wire="packed", momentum="local")
broadcast_parameters(model.state_dict())
for _ in range(int(sys.argv[sys.argv.index("--steps") + 1])):
    x = torch.randn(16, 50)
    optimizer.zero_grad()
    for half in (x[:8], x[8:]):
        torch.autograd.backward(((model(half) - half.sum(1, keepdim=True)) ** 2).mean())
    optimizer.step()
"""


@needs_mpi
@pytest.mark.full("starts two jobs a script")
@pytest.mark.parametrize("script", ["examples/distributed.py", "examples/with_torchrun.py", "own"])
def test_three_scripts_are_compared(script, tmp_path, capsys):
    words, steps = [], {"examples/distributed.py": 150, "examples/with_torchrun.py": 100}.get(script, 30)
    file = ROOT / script
    if script == "own":
        file, words = tmp_path / "own.py", ["--", "--steps", "30"]
        file.write_text(OWN)
    record, figure = tmp_path / "r.json", tmp_path / "f.svg"
    options = ["--algorithms", "elect", "-n", "2", "--json", str(record), "--plot", str(figure)]
    assert main(["bench", "compare", str(file), *options, *words]) == 0
    table = capsys.readouterr().out.split("\n\n")[-1]
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["dense", "elect"]
    rows = {row["way"]: row for row in json.loads(record.read_text())["summary"]}
    assert {row["steps"] for row in rows.values()} == {steps} and figure.stat().st_size
    assert rows["dense"]["mb"] > rows["elect"]["mb"] > 0
    for row in rows.values():
        assert row["end"] < row["loss 1/4"] and row["seconds"] > 0


def test_a_summary_has_means_of_a_tenth_of_the_steps():
    steps = [{"loss": float(100 - number), "bytes": 2e6, "seconds": 0.5} for number in range(100)]
    found = summary(steps)
    assert (found["loss 1/4"], found["end"], found["mb"], found["seconds"]) == (80.5, 5.5, 2.0, 0.5)
    unknown = summary([{"loss": None, "bytes": 1e6, "seconds": 1.0}])
    assert unknown["end"] is None and unknown["mb"] == 1.0
    assert draw([{"steps": {"dense": steps}}]).axes


@needs_mpi
@pytest.mark.jobs
@pytest.mark.thin(0, text=("raise ValueError('no data')",))
@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("raise ValueError('no data')", "1", "ended with status 1"),
        ("print('done')", "2", "must reduce gradients"),
        ("import torch; torch.optim.SGD([torch.ones(1)]).step()", "1", "must reduce gradients"),
    ],
)
def test_scripts_that_cannot_be_compared_are_refused(text, size, message, tmp_path, capsys):
    file = tmp_path / "script.py"
    file.write_text(text)
    with pytest.raises(SystemExit):
        main(["bench", "compare", str(file), "-n", size])
    said = capsys.readouterr().err
    assert message in said and ("no data" in said or "raise" not in text)


@needs_mpi
@pytest.mark.full("starts three jobs")
def test_a_way_that_fails_shows_the_error_and_leaves_the_others_their_results(tmp_path, capsys):
    file, record, figure = tmp_path / "own.py", tmp_path / "r.json", tmp_path / "f.svg"
    file.write_text(f"{OWN}\nimport os\nif 'bf16' in os.environ['SPARSE_MPI_ALGORITHM']: raise KeyError('a mistake')")
    options = ["-n", "2", "--algorithms", "dense-bf16", "topka", "--json", str(record), "--plot", str(figure)]
    assert main(["bench", "compare", str(file), *options, "--", "--steps", "3"]) == 1
    said = capsys.readouterr()
    assert "KeyError: 'a mistake'" in said.err and "by dense-bf16 ended with status 1" in said.err
    assert [line.split()[0] for line in said.out.split("\n\n")[-1].splitlines()[1:3]] == ["dense", "topka"]
    assert list(json.loads(record.read_text())["steps"]) == ["dense", "topka"] and figure.stat().st_size


def test_the_variable_overrules_the_algorithm_and_says_so(monkeypatch, caplog):
    def chosen(comm):
        plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1000))], lr=0.1, momentum=0.9)
        made = DistributedOptimizer(plain, comm=comm, algorithm="topka", wire="packed", density=0.1, momentum="local")
        reducer = made.reduction.buckets[0].reducer
        return type(reducer.engine.settings.algorithm).__name__, reducer.k, made.rule.late

    monkeypatch.setenv("SPARSE_MPI_ALGORITHM", "oktopk:wire=packed+bf16")
    assert World(1).run(chosen)[0][:2] == ("OkTopk", 100)
    assert "oktopk:wire=packed+bf16 in place of topka" in caplog.text
    monkeypatch.setenv("SPARSE_MPI_ALGORITHM", "dense")
    assert World(1).run(chosen)[0] == ("Dense", 1000, 0.9)
    monkeypatch.setenv("SPARSE_MPI_ALGORITHM", "topk")
    with pytest.raises(ValueError, match="SPARSE_MPI_ALGORITHM: algorithm must be one of"):
        World(1).run(chosen)
    monkeypatch.delenv("SPARSE_MPI_ALGORITHM")
    assert World(1).run(chosen)[0][:2] == ("TopkA", 100)
