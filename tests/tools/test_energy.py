"""``bench energy``: the energy and the bytes of algorithms from a cold start."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.commands.bench_energy import energy_of

FEW = ["bench", "energy", "--n", "500", "--steps", "3", "--gradients", "independent", "disjoint"]


@pytest.mark.parametrize("name", ["dense", "topka"])
def test_what_takes_everything_takes_all_the_energy(name):
    """Of topka's result, all that any rank selected of its own part are the largest sums."""
    found = energy_of(make_algorithm(name, {}), gradients.make("disjoint", 400, 0, 4), 4, 400, 3)
    assert found.energy == pytest.approx(1, abs=1e-6) and found.messages > 0


def test_bytes_of_topka_are_known():
    found = energy_of(make_algorithm("topka", {}), gradients.make("independent", 1000, 0, 4), 4, 50, 4)
    assert found.volume == pytest.approx((8 * 50 * 3 + 12 + 24) / found.lowest) and found.control == 12 + 24
    assert found.lowest == 8 * 50 * 3 / 4 and found.selected == 1 < found.total
    peaks = found.largest_step, found.busiest_sender, found.busiest_receiver, found.worst
    assert peaks == (1, 1, 1, 1)


def test_embedding_like_gradients_have_few_rows_and_disjoint_ones_nothing_in_common():
    made = gradients.make("embedding-like", 64 * 1000, ranks=4)
    rows = [made.at(0, rank).reshape(1000, 64).any(axis=1) for rank in range(4)]
    assert all(20 < row.sum() < 128 for row in rows) and 0 < np.logical_and.reduce(rows).sum() < 64
    apart = gradients.make("disjoint", 1001, ranks=3)
    np.testing.assert_array_equal(sum(apart.at(0, rank) != 0 for rank in range(3)), np.ones(1001))


def test_opposed_pulls_cancel_and_mislead_who_selects_by_them():
    """What is left of the sum is what ranks share; topka adds more to it than it removes, elect does not."""
    made = gradients.make("opposed", 20_000, ranks=8)
    left = sum(made.at(3, rank) for rank in range(8))
    assert np.linalg.norm(left) < 0.2 * np.linalg.norm(made.at(3, 0)) * 8
    energies = [energy_of(make_algorithm(name, {}), made, 8, 200, 20).energy for name in ("topka", "elect")]
    assert energies[0] < 0 < energies[1]


def test_a_record_is_continued_and_another_measurement_needs_another_file(tmp_path, capsys):
    record, table = tmp_path / "e.json", tmp_path / "e.md"
    common = [*FEW, "--algorithms", "oktopk", "elect", "--json", str(record), "--table", str(table)]
    assert main([*common, "--ranks", "2"]) == 0
    first = json.loads(record.read_text())["cases"]
    assert [(c["gradients"], c["algorithm"]) for c in first[:3]] == [
        ("independent", "oktopk"),
        ("independent", "elect"),
        ("disjoint", "oktopk"),
    ]
    capsys.readouterr()
    assert main([*common, "--ranks", "2", "3"]) == 0
    cases = json.loads(record.read_text())["cases"]
    assert cases[:4] == first and len(cases) == 8
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| 2 | independent | oktopk |") and lines[2].endswith("| 1.00 |")
    assert table.read_text().startswith("`python ") and lines[2] in table.read_text()
    edited = json.loads(record.read_text())
    edited["cases"][1] |= {"made": "Elect of another day", "energy": -1.0}
    record.write_text(json.dumps(edited))
    assert main([*common, "--ranks", "2"]) == 0 and json.loads(record.read_text())["cases"][1] == first[1]
    with pytest.raises(SystemExit, match=r"--n must be 500 as in .*e.json, got 600"):
        main(["bench", "energy", "--n", "600", "--steps", "3", "--json", str(record)])
