"""``bench volume``: counted traffic beside the formulas, on made-up and recorded gradients."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi_bench.analysis import gradients, volume


def counted(name, ranks=4, kind="independent", n=4000, k=200, steps=2, warmup=1):
    return volume.count(make_algorithm(name, {}), name, gradients.make(kind, n, 0, ranks), ranks, k, steps, warmup)


def test_what_topka_sends_is_known():
    found = counted("topka")
    assert (found.words, found.most_words, found.formula_words, found.imbalance) == (1200, 1200, 1200, 1)
    assert (found.messages, found.formula_messages) == (8, 8) and found.lowest == 8 * 200 * 3 / 4
    assert (found.largest_step, found.busiest) == (1, 1) and found.over_bound == (
        4 * 1200 + found.control
    ) / found.lowest
    assert found.selected == 1 and found.fill_in == found.total > 3


def test_what_goes_to_other_nodes_is_known():
    """Of the five others three are in the other node; what topka gathers goes to all of them."""
    made, algorithm = gradients.make("independent", 4000), make_algorithm("topka", {})
    found = volume.count(algorithm, "topka", made, 6, 200, 1, 0, ranks_per_node=3)
    assert found.between == pytest.approx(3 / 5 * found.words)
    two = make_algorithm("oktopk-2level", {"ranks_per_node": 3})
    found = volume.count(two, "oktopk-2level", made, 6, 200, 1, 0, ranks_per_node=3)
    assert found.within and 0 < found.between < 0.5 * found.words


@pytest.mark.parametrize("name", ["dense", "topka"])
def test_what_takes_everything_takes_all_the_energy(name):
    """Of topka's result, all that any rank selected of its own part are the largest sums."""
    assert counted(name, kind="disjoint", n=400, k=400, steps=3, warmup=0).energy == pytest.approx(1, abs=1e-6)


def test_embedding_like_gradients_have_few_rows_and_disjoint_ones_nothing_in_common():
    made = gradients.make("embedding-like", 64 * 1000, ranks=4)
    rows = [made.at(0, rank).reshape(1000, 64).any(axis=1) for rank in range(4)]
    assert all(20 < row.sum() < 128 for row in rows) and 0 < np.logical_and.reduce(rows).sum() < 64
    apart = gradients.make("disjoint", 1001, ranks=3)
    np.testing.assert_array_equal(sum(apart.at(0, rank) != 0 for rank in range(3)), np.ones(1001))


def test_a_formula_that_is_exceeded_shows(capsys, monkeypatch):
    monkeypatch.setattr(volume, "formula", lambda *_: (1.0, 1.0, 1.0))
    assert main(["bench", "volume", "--ranks", "2", "--algorithms", "topka"]) == 1
    assert capsys.readouterr().out.splitlines()[1].endswith(" !")


@pytest.mark.parametrize("kind", gradients.KINDS)
def test_gradients_are_the_same_again_and_others_elsewhere(kind):
    made, again = gradients.make(kind, 5000, 3), gradients.make(kind, 5000, 3)
    first = made.at(1, 2)
    assert first.dtype == np.float32 and first.shape == (5000,)
    np.testing.assert_array_equal(first, again.at(1, 2))
    assert not np.array_equal(first, made.at(2, 2)) and not np.array_equal(first, made.at(1, 3))
    agreeing = np.corrcoef(np.sign(first), np.sign(made.at(1, 3)))[0, 1]  # 2/pi arcsin of the values' correlation
    correlation = {"correlated": gradients.COMMON, "opposed": (gradients.SHARE**2 - 1) / (gradients.SHARE**2 + 1)}
    expected = 2 / np.pi * np.arcsin(correlation.get(kind, 0))
    assert agreeing == pytest.approx(expected, abs=0.06)
    scale = np.abs(first[:15]).mean() / np.abs(first[-500:]).mean()
    assert (scale > 1000) == (kind == "layer-skewed")


def test_recorded_gradients_come_back_and_go_round(tmp_path):
    file = tmp_path / "g.npz"
    steps = {4: np.arange(6, dtype=np.float32).reshape(2, 3), 9: np.ones((2, 3), np.float32)}
    gradients.write(file, steps, {"program": "vgg", "data": "digits"})
    made = gradients.make(str(file), None)
    assert made.size == 3 and "vgg digits, 2 ranks, steps 4, 9" in made.title
    np.testing.assert_array_equal(made.at(0, 1), [3, 4, 5])
    np.testing.assert_array_equal(made.at(0, 2), [1, 1, 1])  # a third rank takes rank 0's of the next step
    np.testing.assert_array_equal(made.at(3, 3), [3, 4, 5])
    with pytest.raises(ValueError, match="n must be left out or be that of .*, 3, got 4"):
        gradients.make(str(file), 4)
    with pytest.raises(ValueError, match=r"setup.cfg must be an .npz that train/gradients.py wrote"):
        gradients.make("setup.cfg", None)


def test_table_record_and_what_is_skipped(tmp_path, capsys):
    file = tmp_path / "v.json"
    options = ["--ranks", "2", "3", "--algorithms", "topka", "oktopk"]
    assert main(["bench", "volume", *options, "--json", str(file)]) == 0
    record, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert [(v["algorithm"], v["ranks"], v["k"]) for v in record["volumes"]] == [
        (name, ranks, 64 * ranks) for ranks in (2, 3) for name in ("topka", "oktopk")
    ]
    assert all(v["within"] and v["gradients"] == "independent" and v["over bound"] > 1 for v in record["volumes"])
    assert printed.count("topka") == 2 and "energy" in printed
    assert main(["bench", "volume", "--ranks", "2", "--algorithms", "topka", "--most-gigabytes", "1e-9"]) == 0
    assert "GB of vectors, more than --most-gigabytes 1e-09" in capsys.readouterr().out
