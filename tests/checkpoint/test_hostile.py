"""Files from elsewhere run no code: neither what is in a checkpoint, its hashes made to fit, nor recorded arrays."""

from __future__ import annotations

import os
import pickle
import re
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_mpi import World, checkpoint
from sparse_mpi.checkpoint import manifest
from sparse_mpi.comm import NullComm
from sparse_mpi.integrations import framework_state
from sparse_mpi.planning import store
from sparse_mpi.training import diloco_snapshot
from sparse_mpi_bench.analysis.gradients import Recorded
from sparse_mpi_bench.analysis.keyed_volume import stored
from sparse_train.ranks.job import JobError
from sparse_train.trainer import checkpoints

from ..launch import ROOT


class Payload:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def payload(tmp_path):
    """A payload that works, and that nobody has unpickled by the end of the test."""
    proof = tmp_path / "proof"
    pickle.loads(pickle.dumps(Payload(proof)))
    proof.rmdir()
    yield Payload(proof)
    assert not proof.exists()


@pytest.fixture
def place(tmp_path):
    def save(comm):
        return checkpoint.save(tmp_path / "saved", 1, {}, b"model", {"step": 1, "residual": np.ones(3)}, comm)

    return World(2).run(save)[0]


def replace(place: Path, name: str, write) -> None:
    """Write another file into a checkpoint, and its size and hash into the manifest."""
    with (place / name).open("wb") as file:
        write(file)
    found = manifest.read(place)
    entry = {name: manifest.examine(place / name)}
    (place / manifest.MANIFEST).write_text(manifest.dumps(found._replace(files=found.files | entry)))


@pytest.mark.parametrize(
    ("member", "says"), [("array0", ".*llow_pickle=False"), ("tree", ".*llow_pickle=False"), ("all of it", "")]
)
def test_a_state_with_a_pickle_is_refused_on_every_rank(member, says, place, payload):
    good = dict(np.load(place / manifest.rank_name(1, 2)))
    bad = good | {member: np.array([payload], dtype=object)}
    write = partial(pickle.dump, payload) if member == "all of it" else lambda file: np.savez(file, **bad)
    replace(place, manifest.rank_name(1, 2), write)

    def load(comm):
        with pytest.raises(checkpoint.CheckpointError, match=f"rank 1: {says}") as caught:
            checkpoint.load(place, comm)
        return str(caught.value)

    assert len(set(World(2).run(load))) == 1


def test_a_model_with_a_pickle_is_refused_in_one_line(place, payload):
    """What `torch.save` writes is a pickle; only tensors and plain data are taken from it."""
    replace(place, manifest.MODEL, lambda file: torch.save({"model": payload}, file))
    args = Namespace(resume=place, checkpoint_dir=place.parent, checkpoint_every=0, out=place.parent)

    def find(comm):
        with pytest.raises(JobError, match=r"holds more than tensors and plain data.*from whom you have it") as caught:
            checkpoints.find(args, comm)
        assert "\n" not in str(caught.value)

    World(1).run(find)


def test_local_steps_and_broadcasts_take_tensors_only(payload):
    assert (diloco_snapshot.unpacked(diloco_snapshot.packed({"a": torch.ones(2)}))["a"] == 1).all()
    with pytest.raises(pickle.UnpicklingError):
        diloco_snapshot.unpacked(diloco_snapshot.packed({"a": payload}))


def test_files_of_ranks_beside_a_framework_take_tensors_only(payload, tmp_path):
    for protocol in (2, 4):
        torch.save(payload, framework_state.rank_file(tmp_path / "checkpoint", 0), pickle_protocol=protocol)
        with pytest.raises(ValueError, match="must be what this rank has saved"):
            framework_state.restore(Namespace(comm=NullComm(), load_state_dict=len), tmp_path / "checkpoint")


def test_recorded_gradients_and_entries_are_arrays_only(payload, tmp_path):
    bad = np.array([payload], dtype=object)
    np.savez(tmp_path / "gradients.npz", step_0=bad, about=bad)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Recorded(tmp_path / "gradients.npz")
    np.savez(tmp_path / "rank-0.npz", keys=bad, values=bad)
    with pytest.raises((ValueError, OSError)):
        stored(tmp_path, 0, 1)


def test_a_plan_is_json(payload, tmp_path):
    (tmp_path / "plan.json").write_bytes(pickle.dumps(payload, 0))
    with pytest.raises(ValueError, match="plan.json"):
        store.load(tmp_path / "plan.json")


def test_torch_unpickles_nothing_of_what_is_read():
    """docs/reference/security.md promises it; tests read files of their own."""
    calls = []
    for folder in ("sparse_mpi", "bench", "train", "examples", "docs", "runs", "slurm", "reframe", "README.md"):
        for file in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            if file.suffix in (".py", ".md", ".rst", ".ipynb", ".toml"):
                calls += [(file, call) for call in re.findall(r"torch\.load\(.*", file.read_text())]
    assert len(calls) > 5
    assert not [(file, call) for file, call in calls if "weights_only=True" not in call]
