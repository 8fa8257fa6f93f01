"""Files of the ranks beside a framework's checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse_mpi import World
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


def test_a_damaged_file_is_refused_by_name_and_links_are_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    for name in ("checkpoint.rank0.pt", "checkpoint.rank0.pt.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "theirs")
    assert saved_and_restored(tmp_path, 2, 2) == [[{"of": 0}], [{"of": 1}]]
    assert (tmp_path / "theirs").read_text() == "theirs" and len(list(tmp_path.iterdir())) == 3
    rng, file, refused = np.random.default_rng(0), rank_file(tmp_path / "checkpoint", 1), 0
    whole = file.read_bytes()
    for _ in range(50):
        at = rng.integers(len(whole))
        file.write_bytes(whole[:at] + rng.bytes(rng.integers(9)) + whole[at + rng.integers(99) :])
        try:
            World(2).run(lambda comm: restore(SimpleNamespace(comm=comm, load_state_dict=len), tmp_path / "checkpoint"))
        except ValueError as error:
            refused += "checkpoint.rank1.pt must be what this rank has saved, got " in str(error)
    assert refused > 25
