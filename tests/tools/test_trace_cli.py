"""``trace``: the matrix and the timeline of a step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparse_mpi.__main__ import main

OPTIONS = ["trace", "--ranks", "4", "--n", "2000", "--density", "0.05", "--step", "2", "--network", "8/2"]


def test_table_and_record_tell_of_every_message(tmp_path, capsys):
    file = tmp_path / "t.json"
    assert main([*OPTIONS, "--algorithms", "topka", "gtopk", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("P = 4, 4 a node, n = 2,000, density 0.05, step 2, independent normal entries; 8/2: 2 us")
    assert "topka.reduce: allgatherv" in printed and "gtopk.climb: sendrecv" in printed
    record = json.loads(file.read_text())
    topka, gtopk = record["algorithms"]["topka"], record["algorithms"]["gtopk"]
    assert record["network"] == pytest.approx({"alpha": 2e-6, "beta": 1e-9})
    # the agreement, which takes 16 us; then counts of 4 bytes in two rounds, and pairs of 100 entries in two more
    checks = 4 * 24
    assert np.sum(topka["matrix"]) == checks + 4 * (12 + 3 * 800) and np.trace(topka["matrix"]) == 0
    assert topka["seconds"] == pytest.approx(4 * 2e-6 + 24e-9 + 4 * 2e-6 + (12 + 2400) * 1e-9, rel=1e-3)
    assert np.sum(gtopk["matrix"]) == checks + 3 * 800 + 3 * (800 + 8)
    up = [(t["source"], t["dest"]) for t in gtopk["transfers"] if t["phase"] == "gtopk.climb: sendrecv"]
    assert sorted(up) == [(1, 0), (2, 0), (3, 2)]


def test_two_levels_keep_most_bytes_inside_the_nodes(tmp_path, capsys):
    file = tmp_path / "t.json"
    options = ["--algorithms", "oktopk-2level", "oktopk", "--ranks-per-node", "2", "--json", str(file)]
    assert main([*OPTIONS, *options]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())["algorithms"]
    two, flat = record["oktopk-2level"], record["oktopk"]
    assert f"between nodes: {two['between nodes']} of {np.sum(two['matrix'])} bytes" in printed
    assert 0 < two["between nodes"] < flat["between nodes"] and np.sum(two["matrix"]) > np.sum(flat["matrix"])
    summing = [t for t in two["transfers"] if t["phase"] == "two_level.sum_segments: alltoallv"]
    assert [(t["source"], t["dest"], t["bytes"]) for t in summing] == [(r, r ^ 1, 4000) for r in range(4)]


def test_figure_has_two_panels_an_algorithm(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*OPTIONS, "--algorithms", "topka", "oktopk", "--plot", str(tmp_path / "t.svg")]) == 0
    drawn = (tmp_path / "t.svg").read_text()
    assert drawn.count("receiver") == drawn.count(" messages<") == 2
    assert "topka.reduce" in drawn and "kB" in drawn
