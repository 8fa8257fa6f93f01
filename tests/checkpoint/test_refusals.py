"""What cannot be saved or used, arguments or forged files, is one error on all ranks; strays are no obstacle."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from sparse_mpi import World, checkpoint
from sparse_mpi.checkpoint import manifest

STATE = {"residual": np.ones(3)}


def save(comm, folder, step=1, keep=2):
    return checkpoint.save(folder, step, {}, b"model", STATE, comm, keep)


def refusals(call):
    def run(comm):
        with pytest.raises((TypeError, ValueError, checkpoint.CheckpointError)) as caught:
            call(comm)
        return str(caught.value)

    return World(2).run(run)


@pytest.mark.parametrize("call", [save, lambda comm, folder: checkpoint.load(folder, comm)], ids=["save", "load"])
def test_of_the_folders_that_ranks_name_the_first_counts(tmp_path, call):
    World(2).run(lambda comm: save(comm, None if comm.rank else tmp_path))
    World(2).run(lambda comm: call(comm, None if comm.rank else tmp_path))
    assert all("None" in text for text in refusals(lambda comm: call(comm, tmp_path if comm.rank else None)))


def test_a_folder_may_have_a_name_that_is_no_text(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    assert World(2).run(lambda comm: save(comm, folder))[0].parent == folder
    assert World(2).run(lambda comm: checkpoint.load(folder, comm).step) == [1, 1]
    (folder / "step-00000001" / manifest.MODEL).unlink()
    told = refusals(lambda comm: checkpoint.load(folder, comm))
    assert told[0] == told[1] and r"caf\udce9" in told[0]


def test_a_step_may_be_a_number_of_numpy(tmp_path):
    World(2).run(lambda comm: save(comm, tmp_path, np.int64(3)))
    assert World(1).run(lambda comm: checkpoint.load(tmp_path, comm).step) == [3]


@pytest.mark.parametrize("name", [".unfinished-step-00000001", ".unfinished-replaced-step-00000001", "step-00000001"])
def test_a_stray_file_or_link_does_not_keep_a_job_from_saving(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").touch()
    for number, make in enumerate([lambda path: path.touch(), lambda path: path.symlink_to(elsewhere)]):
        folder = tmp_path / f"saved{number}"
        folder.mkdir()
        make(folder / name)
        for step in (1, 1, 2):
            World(2).run(lambda comm, step=step, folder=folder: save(comm, folder, step))
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]
    assert (elsewhere / "theirs").exists()


def forged(place, **changed):
    content = manifest.read(place)._asdict()
    content["files"] = {name: entry._asdict() for name, entry in content["files"].items()}
    content |= changed
    head = {"format": manifest.FORMAT, "version": manifest.VERSION, "hash": manifest._hash(content)}
    (place / manifest.MANIFEST).write_text(json.dumps(head | content))


WRONG = [-1, "x", None, 1.0, True, [1]]
MANIFESTS = [{name: wrong} for name in ("number", "step", "ranks") for wrong in WRONG]
MANIFESTS += [{"ranks": 0}, {"ranks": 1}, {"ranks": 10**30}, {"more": 1}, {"identity": [1]}, {"identity": None}]
MANIFESTS += [{"files": wrong} for wrong in (7, [], {}, {"model.bin": 3}, {"model.bin": {"bytes": 3}})]


@pytest.mark.parametrize("changed", MANIFESTS, ids=str)
def test_a_forged_manifest_is_refused_and_does_not_keep_a_job_from_saving(tmp_path, changed):
    place = World(2).run(lambda comm: save(comm, tmp_path))[0]
    forged(place, **changed)
    told = refusals(lambda comm: checkpoint.load(place, comm))
    assert told[0] == told[1] and f"{place / manifest.MANIFEST} is damaged" in told[0]
    World(2).run(lambda comm: save(comm, tmp_path, 2))
    assert World(2).run(lambda comm: checkpoint.load(tmp_path, comm).step) == [2, 2]


TREES = [{}, {"foo": "array0"}, {"a": 1, "b": 2}, {"dict": [1]}, {"dict": 5}, {"tuple": 3}, {"tuple": {"dict": 1}}]
TREES += [{"array": "missing"}, {"array": ["x"]}, {"scalar": "array0"}, {"dict": [[["a"], 1]]}, {"array": "tree"}]


@pytest.mark.parametrize("tree", [*map(json.dumps, TREES), "[" * 100_000, "\xff", ""], ids=lambda tree: tree[:20])
def test_a_forged_state_is_refused_by_the_name_of_its_file(tmp_path, tree):
    place = World(2).run(lambda comm: save(comm, tmp_path))[0]
    path = place / manifest.rank_name(1, 2)
    np.savez(path, tree=np.frombuffer(tree.encode("latin-1"), np.uint8), array0=np.ones(3))
    files = manifest.read(place).files | {path.name: manifest.examine(path)}
    (place / manifest.MANIFEST).write_text(manifest.dumps(manifest.read(place)._replace(files=files)))
    told = refusals(lambda comm: checkpoint.load(place, comm))
    assert told[0] == told[1] and f"rank 1: {path} must be a tree of arrays" in told[0]
