"""``predict``: answers that say what pays, by options that describe a cluster."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.__main__ import main


def test_its_help_teaches_by_example(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    printed = capsys.readouterr().out
    assert "predict advise --model resnet50 --ranks 16 --rate 25gbit" in printed and "does it pay" in printed.lower()


def ask(capsys, *options):
    assert main(["predict", "advise", *options]) == 0
    return capsys.readouterr().out


def test_the_answer_comes_first_and_says_what_it_assumes(capsys):
    told = ask(capsys, *"--model bert-base --ranks 16 --rate 25gbit".split())
    answer, offers = told.split("\n\n")
    words = " ".join(answer.split())
    assert words.startswith("Sparse pays. A step of bert-base (109,482,240 elements) on 16 ranks at 25gbit takes ")
    assert "times as fast, between" in words and "what it may take at most" in " ".join(offers.split())
    assert 'DistributedOptimizer(..., algorithm="' in words and "elect at 2.75 %, the default" in words
    assert "Assumed: one H100 a rank, tcp, dense sums as NCCL's" in words and len(told.splitlines()) < 24
    told = ask(capsys, *"--model resnet50 --ranks 16 --rate 100gbit --batch-seconds 0.2".split())
    assert told.startswith("Leave it dense.") and "rdma" in told and "Run:" not in told
    told = ask(capsys, *"--n 3000000 --ranks 8 --rate 200gbit".split())
    assert told.startswith("It may pay, or not")


def test_a_dense_sum_that_was_measured_takes_the_place_of_the_model(capsys):
    slow, fast = (ask(capsys, *f"--model vgg16 --ranks 8 --rate 25gbit --dense-ms {ms}".split()) for ms in (500, 0.1))
    assert slow.startswith("Sparse pays.") and "500 ms dense" in " ".join(slow.split())
    assert fast.startswith("Leave it dense.") and "0.1 ms dense" in " ".join(fast.split())


def test_advice_is_recorded(tmp_path, capsys):
    file = tmp_path / "a.json"
    options = "--n 300000 --ranks 4 --rate 10mbit --on cpu --batch-seconds 0.01 --no-overlap --latency 50".split()
    told = ask(capsys, *options, "--algorithms", "oktopk", "topka:wire=packed", "--json", str(file))
    record = json.loads(file.read_text())
    assert record["verdict"] == "sparse" and record["bar"][0] < record["factor"] < record["bar"][1]
    assert record["advised"]["local_steps"] > 1 and record["cluster"]["alpha"] == pytest.approx(5e-5)
    assert {of["way"] for of in record["cases"]} == {"dense", "oktopk", "topka:wire=packed"}
    assert f"--local-steps {record['advised']['local_steps']}" in told
