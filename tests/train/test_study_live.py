"""Studies whose runs are real jobs on emulated hosts: times by hand, refusals, and a whole one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import study
from sparse_mpi_bench.emulation import hosts
from sparse_mpi_bench.figures.training import short
from sparse_train.records import comparison
from study import Run

from .test_study import run

LINKS = ("--rate", "1gbit,50mbit", "--every", "30s")


def test_seconds_until_a_score_are_those_of_the_epochs_before():
    """Epochs of 3 and 5 s: a perplexity of 6 is there after 8 s, one of 7 after 3, one of 5 never."""
    record = run("dense", 1, 7.0, 6.0, seconds=(3.0, 5.0))
    assert [comparison.until(record, score) for score in (7.0, 6.0, 5.0)] == [3.0, 8.0, None]


def test_a_table_has_means_over_seeds_and_rates_of_bytes():
    """By hand: 20 steps of 2 MB in 8 and 4 s are 5 and 10 MB/s."""
    records = [
        run("dense", 1, 7.0, 6.0, seconds=(3.0, 5.0)),
        run("dense", 2, 7.0, 6.5, seconds=(2.0, 2.0)),
        run("elect:density=0.05", 1, 7.0, 6.0, seconds=(3.0, 3.0)),
    ]
    table = comparison.live_table(records, "1gbit", 6.0)
    assert "| dense | 500.0 | 7.5 | 6.0000 +- 25.4124 | 8.0000 +- nan | 1 of 2 |" in table
    assert "| elect:density=0.05 | 500.0 | 6.67 | 6.0000 +- nan | 6.0000 +- nan | 1 of 1 |" in table
    assert comparison.courses(records) == {"dense": [2.5, 6.0], "elect:density=0.05": [3.0, 6.0]}


def test_records_on_different_links_have_different_names():
    names = {Run("gpt2", 4, "elect:data-dir=a/b", "shuffled", 1, (), links=links).name for links in ((), LINKS)}
    assert len(names) == 2 and not any("/" in name for name in names)


def test_ways_of_one_algorithm_are_told_apart_by_what_they_send():
    ways = ["elect:density=0.01:lr=0.1", "elect:density=0.03:lr=0.1", "dense"]
    assert list(short(ways).values()) == ["elect 0.01", "elect 0.03", "dense"]
    assert list(short(["dense", "elect:local-steps=4:density=0.1"]).values()) == ["dense", "elect /4"]


def test_a_job_that_fails_ends_the_study_with_what_it_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(comparison.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(SystemExit) as ended:
        comparison.start("broken", 2, ["--rate", "none"], [], tmp_path / "log")
    assert ended.value.code == 3 and "no such luck" in capfd.readouterr().err


@pytest.mark.jobs
@pytest.mark.full("a study of several jobs on emulated hosts")
def test_runs_on_links_that_change_are_timed(tmp_path):
    if lacks := hosts.missing():
        pytest.skip("; ".join(lacks))
    ways = ["elect:density=0.1", "elect:density=0.05"]
    links = ["--links", "1gbit,20mbit", "--every", "2s", "--target", "1000"]
    options = ["--tiny", "--epochs", "1", "--max-steps", "12", "--batch-size", "4"]
    study.main(
        ["gpt2", "--ranks", "2", "--seeds", "1", "--ways", *ways, *links, "--out", str(tmp_path), "--", *options]
    )
    records = {}
    for file in tmp_path.glob("gpt2-*.json"):
        record = json.loads(file.read_text())
        records[record["way"]] = record
    assert set(records) == set(ways)
    for record in records.values():
        assert record["links"] == ["--rate", "1gbit,20mbit", "--every", "2s"] and record["step_seconds"] > 0
        assert sum(epoch["seconds"] for epoch in record["epochs"]) > 0 and record["epochs"][-1]["step"] == 12
    race = json.loads((tmp_path / "race.json").read_text())
    assert [len(ends) for ends in race["seconds"]["1gbit,20mbit every 2s"].values()] == [1, 1]
    assert "| elect:density=0.05 |" in Path(tmp_path / "tables.md").read_text()
