"""Files of the ranks beside a framework's checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparse_mpi import World

pytest.importorskip("torch")

from sparse_mpi.integrations.framework_state import rank_file, restore, save


def saved_and_restored(folder, saving: int, restoring: int, lost: int | None = None) -> list:
    """What each rank reads of what as many others wrote, but for the file of rank ``lost``."""
    checkpoint = folder / "checkpoint"
    World(saving).run(lambda comm: save(SimpleNamespace(comm=comm, state_dict=lambda: {"of": comm.rank}), checkpoint))
    if lost is not None:
        rank_file(checkpoint, lost).unlink()

    def read(comm):
        found = []
        restore(SimpleNamespace(comm=comm, load_state_dict=found.append), checkpoint)
        return found

    return World(restoring).run(read)


def test_each_rank_reads_its_own(tmp_path):
    assert saved_and_restored(tmp_path, 3, 3) == [[{"of": 0}], [{"of": 1}], [{"of": 2}]]


@pytest.mark.parametrize(
    ("restoring", "lost", "message"),
    [
        (2, None, "resumed by as many ranks as have saved it, got 2 and .*checkpoint.rank2.pt"),
        (4, None, r"checkpoint.rank\*.pt=missing"),
        (3, 1, r"checkpoint.rank\*.pt=missing"),
    ],
)
def test_other_numbers_of_ranks_are_refused(tmp_path, restoring, lost, message):
    with pytest.raises(ValueError, match=message):
        saved_and_restored(tmp_path, 3, restoring, lost)


def test_no_files_are_a_warning(tmp_path, caplog):
    assert saved_and_restored(tmp_path, 1, 1, lost=0) == [[]]
    assert "there is no" in caplog.text and "what earlier steps had not sent yet is lost" in caplog.text
