"""A checkpoint's folder is never lost while it is rewritten or thinned out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparse_mpi.checkpoint import latest, load, save
from sparse_mpi.checkpoint.manifest import MANIFEST
from sparse_mpi.comm import NullComm


class Killed(BaseException):
    """The end of a process, between two of its instructions."""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_a_step_is_written_again_loses_nothing(renames, tmp_path, monkeypatch):
    comm, rename, done = NullComm(), Path.rename, []

    def strike(path, target):
        if len(done) == renames:
            raise Killed
        done.append(target)
        return rename(path, target)

    save(tmp_path, 1, {}, b"old", "old", comm)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "rename", strike)
        patched.setattr("shutil.rmtree", lambda *args, **options: strike(None, None))
        save(tmp_path, 1, {}, b"new", "new", comm)
    assert len(done) == renames
    expected = b"new" if renames == 2 else b"old"
    found = load(latest(tmp_path), comm)
    assert (found.model, found.states) == (expected, [expected.decode()]) and load(tmp_path, comm).model == expected
    save(tmp_path, 2, {}, b"next", 0, comm)
    assert load(tmp_path / "step-00000001", comm).model == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("changes", [{"version": 2}, {"format": "another"}, {"version": 2, "number": None}], ids=str)
def test_checkpoints_of_another_version_are_not_removed(changes, tmp_path):
    comm = NullComm()
    for step in (1, 2):
        save(tmp_path, step, {}, b"", 0, comm)
    manifest = tmp_path / "step-00000001" / MANIFEST
    saved = json.loads(manifest.read_text())
    del saved["hash"]  # which the other version may know nothing of
    manifest.write_text(json.dumps(saved | changes))
    for step in (3, 4, 5):
        save(tmp_path, step, {}, b"", 0, comm, keep=2)
    assert sorted(path.name[-1] for path in tmp_path.iterdir()) == ["1", "4", "5"]
    if changes.get("number", 0) is not None:
        assert latest(tmp_path).name == "step-00000005"
