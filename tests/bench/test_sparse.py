"""``bench sparse``: data, rivals, tables, figures; ``bench volume --keyed``."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.collectives.algorithms import ALGORITHMS
from sparse_mpi.collectives.choice import INLINE
from sparse_mpi.sparse import SparseVector
from sparse_mpi_bench.analysis import keyed_volume
from sparse_mpi_bench.analysis.keyed_volume import CASES, filled, stored
from sparse_mpi_bench.commands.bench_sparse import wrong_entries

from ..launch import launch, needs_mpi
from ..prefork import copied


@pytest.mark.parametrize(("size", "fill_in"), [(1, 1), (2, 1.5), (3, 1), (3, 3), (7, 2.5), (16, 16)])
def test_a_case_has_the_fill_in_that_was_asked_for(size, fill_in):
    keys = [filled(fill_in)(rank, size, 100_000, 1000) for rank in range(size)]
    assert all(len(each) == 1000 and (np.diff(each) > 0).all() and 0 <= each[0] for each in keys)
    assert max(each[-1] for each in keys) < 100_000
    assert len(np.unique(np.concatenate(keys))) / 1000 == pytest.approx(fill_in, abs=size / 1000)


def test_a_fill_in_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"fill-in must be in \[1, P\], here \[1, 2\], got 2.5"):
        filled(2.5)(0, 2, 1000, 10)
    with pytest.raises(ValueError, match="fill-in needs n of at least 300 keys, got 299"):
        filled(1)(0, 2, 299, 100)


def store(folder, *parts):
    for rank, (keys, values) in enumerate(parts):
        np.savez(folder / f"rank-{rank}.npz", keys=keys, values=values)


@pytest.mark.parametrize("size", [1, 2, 3, 12, 20])
def test_stored_data_is_dealt_to_any_number_of_ranks(tmp_path, size):
    store(tmp_path, *(([rank + 5, 3], np.array([1, 10**rank], np.int64)) for rank in range(12)))
    found = [stored(tmp_path, rank, size) for rank in range(size)]
    assert all(keys.dtype == values.dtype == np.int64 and (np.diff(keys) > 0).all() for keys, values in found)
    assert sum(values.sum() for _, values in found) == 12 + 111_111_111_111
    assert {key for keys, _ in found for key in keys.tolist()} == {3, *range(5, 17)}
    assert found[0][1][found[0][0] == 3] == sum(10**rank for rank in range(0, 12, size))


@pytest.mark.parametrize(("keys", "values"), [([-1, 2], [1.0, 1.0]), ([1, 2], [1.0]), ([1, 2], [[1.0], [1.0]])])
def test_stored_data_of_another_form_is_refused(tmp_path, keys, values):
    store(tmp_path, ([1], [1.0]), (keys, values))
    with pytest.raises(ValueError, match=r"rank-1.npz must have a value for each key, and no key below 0"):
        stored(tmp_path, 1, 2)


@needs_mpi
@pytest.mark.jobs
def test_all_candidates_are_compared_and_every_sum_checked(tmp_path):
    pytest.importorskip("scipy")
    (tmp_path / "words").mkdir()
    store(tmp_path / "words", ([5, 2**60], np.array([1, 2])), ([2**60, 1], np.array([3, 4])), ([7], np.array([1])))
    record, data = tmp_path / "record.json", ["--fill-in", "2", "--data", str(tmp_path / "words")]
    small = ["--n", "5000", "--entries", "300", "--steps", "2", "--json", str(record), *data]
    done = launch(2, *copied("-m", "sparse_mpi", "bench", "sparse", *small))
    assert done.returncode == 0, done.stderr
    cases, printed = json.loads(record.read_text())["cases"], done.stdout
    assert list(cases) == [*CASES, "fill-in 2", "words"]
    everybody = {"auto", *ALGORITHMS, "pickled allreduce", "pickled allgather", "dense"}
    for name, case in cases.items():
        rows = case["candidates"]
        assert set(rows) | set(case["skipped"]) == everybody and case["chosen"] in {*ALGORITHMS, INLINE}
        assert all(row["seconds"] > 0 and row["memory"] > 0 for row in rows.values())
        assert {"auto", "pickled allreduce"} <= set(rows) and ("dense" in rows) == (name != "words")
    assert cases["identical"]["fill-in"] == 1 and cases["fill-in 2"]["fill-in"] == 2
    assert (cases["words"]["entries"], cases["words"]["result"], cases["words"]["n"]) == (5, 4, 2**60 + 1)
    assert "best rival / it" in printed and "dense                not compared: 1,152,921,504,606,846,977" in printed


def test_sums_of_keys_are_counted_key_by_key():
    expected = np.array([1, 4, 7]), np.array([1.0, 2.0, 3.0])
    assert wrong_entries(expected, expected) == 0
    assert wrong_entries((np.array([1, 4]), np.array([1.0, 2.5])), expected) == 2
    assert wrong_entries((np.array([1, 4, 7, 8]), np.array([1.0, 2.0, 3.0, 4.0])), expected) == 1
    assert wrong_entries(SparseVector(*expected, 9).to_dense(), expected) == 0


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_volumes_are_of_the_true_sum(algorithm, size):
    found = keyed_volume.count("zipf", CASES["zipf"], algorithm, size, 2000, 90)
    keys = [CASES["zipf"](rank, size, 2000, 90) for rank in range(size)]
    assert found.entries == sum(map(len, keys)) and found.result == len(np.unique(np.concatenate(keys)))
    assert 0 <= found.sent <= found.most and (found.chosen == algorithm or algorithm == "auto")
    assert (found.messages > 0) == (size > 1)
    assert (found.most > 0) == (found.received > 0) == (size > 1 and found.chosen != "inline")
    assert found.dense == 2 * 8 * 2000 * (size - 1) / size


def test_what_gathered_keys_take_is_known():
    """Of wide keys, 8 bytes each and 8 more a message, every rank sends its own on to all others but one."""
    wide = lambda rank, ranks, n, m: np.array([rank, 2**60])  # noqa: E731
    found = keyed_volume.count("wide", wide, "gather", 4, 2**61, 2)
    message = 8 + 2 * (8 + 8)
    assert (found.sent, found.most, found.received, found.result) == (3 * message, 3 * message, 3 * message, 5)
    assert found.pairs == 16 * 8 * 3 / 4


def test_volumes_are_told_and_written(tmp_path, capsys, monkeypatch):
    def refusing(*_):
        raise ValueError("no room")

    monkeypatch.setitem(ALGORITHMS, "gather", refusing)
    file = tmp_path / "v.json"
    options = ["--ranks", "2", "3", "--cases", "uniform", "disjoint", "--json", str(file)]
    assert main(["bench", "volume", "--keyed", *options]) == 0
    record, printed = json.loads(file.read_text()), capsys.readouterr().out
    compared = [name for name in ["auto", *ALGORITHMS] if name != "gather"]
    assert [(v["case"], v["algorithm"], v["ranks"]) for v in record["volumes"]] == [
        (case, name, ranks) for case in ("uniform", "disjoint") for name in compared for ranks in (2, 3)
    ]
    assert {each["reason"] for each in record["skipped"]} == {"no room"} and len(record["skipped"]) == 4
    assert "skipped: no room" in printed and "auto: " in printed


def test_what_needs_too_much_memory_is_left_out(capsys):
    few = ["bench", "volume", "--keyed", "--cases", "uniform", "--algorithms", "gather", "--most-gigabytes", "1e-6"]
    assert main([*few, "--ranks", "64"]) == 0
    assert re.search(r"gather +64  skipped: may need 0 GB, more than --most-gigabytes 1e-06", capsys.readouterr().out)
    assert main([*few, "--ranks", "2", "3"]) == 0
    assert re.search(r"gather +2 +199 (?s:.*)gather +3  skipped", capsys.readouterr().out)
