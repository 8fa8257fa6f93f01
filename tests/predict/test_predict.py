"""``predict``: answers that say what pays, by options that describe a cluster."""

from __future__ import annotations

import json

import pytest
import torch

import sparse_mpi
from sparse_mpi.__main__ import main
from sparse_mpi.predict import advise


def ask(capsys, *options):
    assert main(["predict", "advise", *options]) == 0
    return capsys.readouterr().out


def test_the_answer_comes_first_and_says_what_it_assumes(capsys):
    told = ask(capsys, *"--model bert-base --ranks 16 --rate 25gbit".split())
    answer, offers = told.split("\n\n")
    words = " ".join(answer.split())
    assert words.startswith("Sparse pays. A step of bert-base (109,482,240 elements) on 16 ranks at 25gbit takes ")
    assert "times as fast as dense, between" in words and "what it may take at most" in " ".join(offers.split())
    assert "Assumed: one H100 a rank, tcp, dense sums as NCCL's" in words and len(told.splitlines()) < 30
    told = ask(capsys, *"--model resnet50 --ranks 16 --rate 100gbit --batch-seconds 0.2".split())
    assert told.startswith("Leave it dense.") and "rdma" in told and "Run:" not in told
    told = ask(capsys, *"--model resnet50 --ranks 16 --rate 25gbit --batch-seconds 0.1".split())
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
    assert record["local"]["local_steps"] > 1 and record["cluster"]["alpha"] == pytest.approx(5e-5)
    assert {of["way"] for of in record["faster"]} == {"oktopk", "topka:wire=packed"}
    assert f"every {record['local']['local_steps']} local steps" in told


def test_the_verdict_is_for_the_default_and_its_accuracy_for_model_and_optimizer(capsys):
    options = "--batch-seconds 0.3 --ranks 16 --rate 10mbit --on cpu".split()
    told = {name: ask(capsys, "--model", *name.split(), *options) for name in ("gpt2", "vgg16", "gpt2 --optimizer sgd")}
    words = {name: " ".join(text.split()) for name, text in told.items()}
    assert "a tiny GPT-2 with AdamW and clip_norm=1" in words["gpt2"] and "VGG with SGD" in words["vgg16"]
    assert "nothing was shown for models of language with sgd" in words["gpt2 --optimizer sgd"]
    assert all("DistributedOptimizer(optimizer)." in words[name] for name in ("vgg16", "gpt2 --optimizer sgd"))
    # Local steps are named where every step is too slow, but not for images, which lost accuracy by them
    assert "Local steps: elect at 2.1 %, every 64 local steps" in words["gpt2"] and "Local" not in words["vgg16"]
    for text in told.values():
        rows = [line.split()[0] for line in text.split("\n\n")[1].splitlines()[1:4]]
        assert rows == ["dense", "dense-bf16", "elect"] and "e+" not in text  # no 1.6e+03
    fast = ask(capsys, *"--model vgg16 --ranks 1024 --rate 78gbit --on p100 --fabric rdma --latency 1.09".split())
    assert "Or dense in bfloat16, which is as fast: algorithm='dense-bf16'." in fast


def test_from_python_the_answers_are_the_same():
    model = torch.nn.Linear(1999, 1000)
    by_module, by_number = (advise(of, "100mbit", on="cpu", batch_seconds=0.1) for of in (model, 2_000_000))
    assert by_module.default == by_number.default and by_module.job.n == 2_000_000
    assert {of.way for of in by_module.faster} - {of.way for of in by_number.faster} == {"powersgd:rank=4"}
    assert str(by_module).startswith("Sparse pays.")
    with pytest.raises(AttributeError):
        by_module.verdict = "dense"
    assert sparse_mpi.predict.advise is advise


def test_a_model_of_a_module_has_its_own_tensors(tmp_path, monkeypatch, capsys):
    (tmp_path / "of_a_reader.py").write_text("import torch\ndef net(): return torch.nn.Linear(300, 20)\nMADE = net()\n")
    monkeypatch.chdir(tmp_path)
    said = []
    for name in ("net", "MADE"):
        words = [
            "predict",
            "advise",
            "--model",
            f"of_a_reader:{name}",
            "--rate",
            "1mbit",
            "--on",
            "cpu",
            "--json",
            "a.json",
        ]
        assert main(words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "(6,020 elements)" in said[0] and "powersgd:rank=4" in said[0]
    assert json.loads((tmp_path / "a.json").read_text())["options"]["model"] == "of_a_reader:MADE"


def test_low_rank_ways_send_the_factors_of_the_shapes_that_are_named():
    """By hand: a matrix of 1,000 rows and 1,999 columns, and the bias, which is dense."""
    model = torch.nn.Linear(1999, 1000)
    answer = advise(model, "1mbit", on="cpu", ranks=2, algorithms=("powersgd:rank=3",))
    (of,) = answer.faster
    carried = 4 * (3 * 2999 + 1000) * 8 / 1e6
    assert of.step == pytest.approx(carried, rel=0.1)
    assert "powersgd:rank=3      all" in str(answer)


def test_dense_is_in_each_answer_and_no_other_way_to_compare():
    assert advise("vgg16", "1gbit", algorithms=("dense",)) == advise("vgg16", "1gbit")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gpt3"}, r"model must be one of .*did you mean gpt2\?"),
        ({"model": 0}, "model must be"),
        ({"optimizer": "lion"}, "optimizer must be"),
        ({"rate": "fast"}, "rate must be a number with a unit"),
        ({"ranks": 0}, "ranks must be"),
        ({"ranks": 6, "ranks_per_node": 4}, "ranks must fill nodes of 4"),
        ({"on": "tpu"}, "on must be"),
        ({"fit": "nowhere.json"}, "must be a fit of"),
        ({"utilisation": 1.5}, "utilisation must be"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        advise(**{"model": "vgg16", "rate": "1gbit"} | wrong)
