"""``python -m sparse_mpi plan``: measured on all ranks, printed and written by the first."""

from __future__ import annotations

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.comm import NullComm
from sparse_mpi.planning import measure, store
from sparse_mpi.planning.base import Plan, PlannedPart


@pytest.mark.parametrize("rank", [0, 1])
def test_measures_on_all_ranks_and_prints_on_the_first(rank, tmp_path, capsys, monkeypatch):
    calls = []

    def measured(tensors, density, comm, **options):
        calls.append((len(tensors), density, comm.size, options))
        part = PlannedPart("topka", tuple(range(len(tensors))))
        return Plan(dict(tensors), comm.size, density, "topka", (part,), {"dense": 0.4, "topka": 0.1, "gtopk": 0.2})

    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr("sparse_mpi.planning.plan_command.comm_of_job", lambda: NullComm(4, rank))
    out = tmp_path / "plan.json"
    assert main(["plan", "--model", "vgg16", "--density", "0.02", "--out", str(out)]) == 0
    assert calls == [(54, 0.02, 4, {"progress": True})]
    printed = capsys.readouterr().out
    assert ("54 tensors, density 0.02, P = 4" in printed) == out.exists() == (rank == 0)
    if rank == 0:
        lines = printed.splitlines()
        assert [line.split() for line in lines[2:5]] == [
            ["topka", "0.1", "0.250"],
            ["gtopk", "0.2", "0.500"],
            ["dense", "0.4", "1.000"],
        ]
        assert lines[5].startswith("topka for 54 of 54 tensors, 100 % of the elements. A reduction takes 0.1 s")
        assert store.load(out).way == "topka"
