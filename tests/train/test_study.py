"""The study of ways to reduce by training: paired, recorded, resumable."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import study
from sparse_mpi_bench.analysis.interval import Interval
from sparse_train.records import comparison
from sparse_train.records.comparison import arguments, dealing
from study import Run

from ..launch import ROOT


def test_a_run_trains_the_program_with_the_way_it_names():
    options = ("--tiny", "--max-steps", "2", "--epochs", "1", "--check-every", "1")
    record = study.train(Run("vgg", 2, "oktopk:wire=packed", "sorted", 3, options))
    assert record["seed"] == 3 and record["headline"] == "accuracy" and 0 <= record["score"] <= 1
    (epoch,) = record["epochs"]
    assert epoch["step"] == 2 and epoch["test_accuracy"] == record["score"]
    assert epoch["messages"] > 2
    assert epoch["mb_sent"] == record["mb_sent"] > 0 and record["mb_total"] == 2 * record["mb_sent"]


def test_what_is_recorded_is_not_run_again_and_ways_are_paired_by_seed(tmp_path, capsys):
    """Scores by hand: the second way is better by 0.1 with each seed, though seeds differ by more."""
    for seed, way in [(seed, way) for seed in (1, 2, 3) for way in ("dense", "oktopk:wire=packed")]:
        score = 0.2 * seed + 0.1 * (way != "dense")
        epochs = [{"test_loss": 1 / epoch, "test_accuracy": score} for epoch in (1, 2)]
        record = {"way": way, "shards": "shuffled", "seed": seed, "options": ["--tiny"], "headline": "accuracy"}
        name = Run("vgg", 8, way, "shuffled", seed, ("--tiny",)).name
        record |= {"score": score, "loss": 1, "mb_sent": 2, "mb_total": 4, "epochs": epochs}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    ways = ["--ways", "dense", "oktopk:wire=packed", "--seeds", "1", "2", "3", "--out", str(tmp_path)]
    study.main(["vgg", *ways, "--", "--tiny"])
    assert "| shuffled | oktopk:wire=packed | 0.5000 +- 0.4968 | 0.1000 +- 0.0000 |" in capsys.readouterr().out
    assert (tmp_path / "gaps.svg").stat().st_size > 5000
    assert (tmp_path / "study.svg").stat().st_size > 5000 and (tmp_path / "tables.md").read_text().count("\n") > 8
    with pytest.raises(SystemExit, match="is of another study"):
        study.main(["vgg", *ways, "--", "--tiny", "--epochs", "5"])


@pytest.mark.parametrize(("headline", "best"), [("accuracy", "lr=0.2"), ("perplexity", "lr=0.1")])
def test_each_way_gets_the_value_that_is_best_for_it_on_seeds_of_its_own(headline, best, tmp_path, monkeypatch, capsys):
    """Dense does best at 0.1 where more is better and at 0.2 where less is; the other way the other way round."""
    made = []

    def train(run):
        made.append((run.way, run.tuned, run.seed))
        score = {"lr=0.1": 1, "lr=0.2": 2, "": 0}[run.tuned] * (-1 if run.way == "dense" else 1) + run.seed / 10
        epochs = [{"test_loss": 1, f"test_{headline}": score, "step": 1}]
        costs = {"loss": 1, "mb_sent": 1, "mb_total": 1}
        return {**run._asdict(), "headline": headline, "score": score, **costs, "epochs": epochs}

    monkeypatch.setattr(study, "train", train)
    # figures, which the test before draws
    monkeypatch.setattr("sparse_mpi_bench.figures.style.write", lambda draw, file: None)
    monkeypatch.setattr(study, "ProcessPoolExecutor", lambda jobs, context: ThreadPoolExecutor(1))
    out = ["--out", str(tmp_path), "--seeds", "1", "2", "--tuning-seeds", "7", "8"]
    study.main(["vgg", "--ways", "dense", "topka", "--tune", "lr=0.1,0.2", *out, "--", "--tiny"])
    other = {"lr=0.1": "lr=0.2", "lr=0.2": "lr=0.1"}[best]
    assert {(way, value) for way, value, seed in made if seed < 3} == {("dense", other), ("topka", best)}
    assert sorted({seed for _, _, seed in made}) == [1, 2, 7, 8] and len(made) == 2 * 2 * 2 + 2 * 2
    assert f"shuffled, topka: {best} of" in capsys.readouterr().out


def run(way, seed, *scores, seconds=(1.0, 1.0), headline="perplexity", **more):
    """Return the record of a run: of each epoch, of 10 steps, the score at its end and its seconds."""
    epochs = [
        {"step": 10 * number, "seconds": span, "messages": 4, "mb_sent": 2.0, "test_loss": score / 10}
        | {f"test_{headline}": score}
        for number, (score, span) in enumerate(zip(scores, seconds, strict=True), 1)
    ]
    about = {"program": "gpt2", "ranks": 4, "options": [], "shards": "shuffled", "step_seconds": 0.5}
    return {"way": way, "seed": seed, "headline": headline, "epochs": epochs, **about, **more}


def test_options_of_a_way_go_to_the_algorithm_or_to_the_program():
    assert arguments("elect:votes=0.5:momentum-by=global:no-overlap") == [
        *("--algo", "elect:votes=0.5", "--momentum-by", "global", "--no-overlap")
    ]
    assert dealing("sorted:norm=group") == ["--shards", "sorted", "--norm", "group"]
    assert dealing("shuffled:norm=group") == ["--norm", "group"]


def test_an_interval_is_students():
    assert Interval.of([1.0, 3.0]).mean == 2 and Interval.of([1.0, 3.0]).half == pytest.approx(12.706, abs=1e-3)
    assert str(Interval.of([0.5])) == "0.5000 +- nan"


def test_times_on_a_network_are_measured_steps_times_those_until_the_score():
    """By hand: 10 and 20 steps of 0.5 s until the two seeds have a perplexity of 5; one that never has is told."""
    records = [run("dense", 1, 5.0, 4.0), run("dense", 2, 6.0, 4.5)]
    records += [run("elect", 1, 5.5, 5.5), run("elect", 2, 5.0, 4.0)]
    table = comparison.race_table(records, "10mbit", {"dense": 0.5, "elect": 0.1}, {"dense": 0.25, "elect": 0.1}, 5.0)
    assert "| dense | 500.00 | 50% | 10.0 | 7.5 | 2 of 2 |" in table
    assert "| elect | 100.00 | 100% | 2.0 | 1.0 | 1 of 2 |" in table
    shown = comparison.race_record(records, {"10mbit": {"dense": 0.5, "elect": 0.1}})
    assert shown["courses"]["dense"] == [(10, 20.0, pytest.approx(0.55)), (20, 40.0, pytest.approx(0.425))]
    assert shown["seeds"] == [1, 2] and shown["seconds"]["10mbit"]["elect"] == 0.1


@pytest.mark.jobs
@pytest.mark.full("times steps of a whole program")
def test_steps_of_each_way_are_measured_in_turns(tmp_path):
    command = [sys.executable, "-m", "sparse_mpi", "run", "-n", "2", "train/pace.py", "vgg", "--out", str(tmp_path)]
    command += ["--ways", "dense", "oktopk:local-steps=3", "--steps", "4", "--warm-up", "1", "--rounds", "2"]
    done = subprocess.run([*command, "--", "--tiny"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "pace.json").read_text())
    assert record["ranks"] == 2 and record["steps"] == 6 and record["warm_up"] == 3, "multiples of the local steps"
    assert set(record["seconds"]) == {"dense", "oktopk:local-steps=3"}
    assert all(len(taken) == 2 and min(taken) > 0 for taken in record["seconds"].values())
    assert comparison.median_step_seconds(tmp_path / "pace.json").keys() == record["seconds"].keys()
