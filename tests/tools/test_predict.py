"""``predict``: answers that say what pays, networks, and fits to what was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.comm import network as network_fit
from sparse_mpi.comm.network import Network
from sparse_mpi.comm.world import World
from sparse_mpi.predict import calibration, networks
from sparse_mpi.predict import questions as predict
from sparse_mpi.predict import questions_of_records as predict_records
from sparse_mpi.predict.calibration import Exchange
from sparse_mpi.predict.cluster import TYPICAL

TRUTH = replace(TYPICAL, message=9e-5, speed=1.5, crowding=0.3)
RATES = {"100mbit": 0.1, "1gbit": 1.0}
CANDIDATES = ("dense", "topka", "oktopk packed", "micro")


def test_networks_by_name_numbers_and_file(tmp_path):
    daint, of = networks.named("piz-daint")
    assert daint.alpha == pytest.approx(1.09e-6) and 9e9 < 1 / daint.beta < 10e9 and "Aries" in of
    assert networks.named("25/5")[0] == Network.of(25, 5)
    (tmp_path / "fit.json").write_text(json.dumps({"alpha": 1e-5, "beta": 1e-9, "points": []}))
    assert networks.named(str(tmp_path / "fit.json")) == (Network(1e-5, 1e-9), "fitted, fit.json")
    for wrong in ("fast", "0/5", str(tmp_path)):
        with pytest.raises(ValueError, match="network"):
            networks.named(wrong)


def test_fit_writes_what_network_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(network_fit, "measure", lambda comm, sizes: [1e-5 + 1e-9 * size for size in sizes])
    file = str(tmp_path / "n.json")
    World(1).run(lambda comm: monkeypatch.setattr(predict_records, "comm_of_job", lambda: comm))
    assert main(["predict", "fit", "--json", file]) == 0
    assert "10 us a message, 1 GB/s; --rate 8gbit --latency 10" in capsys.readouterr().out
    assert networks.named(file)[0].alpha == pytest.approx(1e-5)


def test_without_a_question_it_teaches_by_example(capsys):
    assert main(["predict"]) == 0
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
    told = ask(capsys, *"--n 1000000 --ranks 8 --rate 400gbit".split())
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


def test_a_table_by_rate_and_ranks(tmp_path, capsys):
    file = tmp_path / "n.json"
    assert main(["predict", "networks", "--model", "vgg16", "--ranks", "4", "256", "--json", str(file)]) == 0
    cases = json.loads(file.read_text())["cases"]
    assert "P = 256" in capsys.readouterr().out and len(cases) == 2 * len(predict.GIGABITS)
    for ranks in (4, 256):
        mine = [of for of in cases if of["ranks"] == ranks]
        for what in ("dense", "sparse"):
            times = [of[what] for of in mine]
            assert times == sorted(times, reverse=True)
        assert mine[0]["verdict"] == "sparse" != mine[-1]["verdict"]


# Fits to what was measured


def job(ranks, rate, off=1.0, n=400_000):
    """A record of what candidates take on a cluster that obeys the model but for a factor."""
    results = {}
    for name in CANDIDATES:
        told = calibration.predict(Exchange(name, ranks, n, 0.01, 1.0, 2, rate, RATES.get(rate)), TRUTH)
        results[name] = {"step": off * told.step}
    options = {"density": 0.01, "model": None, "n": n, "gbit": RATES.get(rate)}
    return {"rate": rate, "ranks": ranks, "options": options, "cpus": 2, "results": results}


@pytest.fixture
def compared(tmp_path):
    file = tmp_path / "compare.json"
    file.write_text(
        json.dumps({"jobs": [job(p, rate, n=n) for p in (2, 4, 8) for rate in RATES for n in (10**5, 10**6)]})
    )
    return str(file)


def test_few_ranks_predict_many(compared, tmp_path, capsys):
    file = tmp_path / "check.json"
    assert main(["predict", "check", "--from", compared, "--ranks", "8", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "fitted to P = 2, 4" in printed and "right, within 10% of the fastest: 4 of 4" in printed
    record = json.loads(file.read_text())
    assert all(of["median step error"] < 0.05 for of in record["rates"].values()) and len(record["cases"]) == 16


def test_a_fit_finds_the_cluster_that_steps_were_made_of(compared):
    found = calibration.fit(calibration.read(compared))
    # Of speed, crowding and memory others may explain the same steps.
    assert found.cluster.message == pytest.approx(9e-5, rel=0.2)
    assert max(abs(of.error) for of in found.predictions) < 0.15
    few = calibration.fit(calibration.read(compared)[:3])
    assert few.cluster.byte == TYPICAL.byte  # three steps, of which no four numbers are told


def test_advice_with_records_is_of_cores_and_has_their_errors(compared, capsys):
    told = ask(capsys, "--n", "1000000", "--ranks", "8", "--rate", "300mbit", "--from", compared)
    assert "Assumed: fitted to --from" in told
    with pytest.raises(SystemExit):
        main(["predict", "advise", "--rate", "1gbit", "--from", compared, "--on", "h100"])
    assert "--on must be cpu, got h100" in capsys.readouterr().err


def test_records_that_are_none_are_refused(tmp_path):
    file = tmp_path / "r.json"
    for wrong, match in (({"jobs": [job(1, "1gbit")]}, "2 ranks or more, got 1"), ({}, "must be a record that bench")):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=match):
            calibration.read(file)
    file.write_text(json.dumps({"jobs": [job(2, "1gbit", off=0.0)]}))
    with pytest.raises(ValueError, match="steps of more than 0 seconds"):
        calibration.read(file)
    file.write_text(json.dumps({"jobs": [job(2, "1gbit"), job(4, "1gbit")]}))
    known = calibration.read(file)
    with pytest.raises(ValueError, match="must be some of those measured, 2, 4, got 8"):
        calibration.held_out(known, [8])
    with pytest.raises(ValueError, match="must leave some to fit to"):
        calibration.held_out(known, [2, 4])
    with pytest.raises(ValueError, match="must be 3 or more, got 2"):
        calibration.fit(known[:2])


def test_the_rate_is_fitted_where_records_do_not_tell_it(compared):
    known = [of._replace(gbit=None) for of in calibration.read(compared) if of.rate == "100mbit"]
    assert calibration.fit(known).cluster.beta == pytest.approx(8e-8, rel=0.15)
