"""Checkpoints damaged at random: one error on all ranks, or what was saved; no wait, and no write behind a link."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from sparse_mpi import World, checkpoint
from sparse_mpi.checkpoint import manifest

PARTS, EACH = 10, 60
STATE = {"step": 1, "residual": np.arange(300.0), "names": ["a", ("b", None)], "shape": np.int64(3)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return World(2).run(lambda comm: checkpoint.save(folder, 1, {"of": "a test"}, b"model" * 99, STATE, comm))[0]


def damaged(rng, path, victim):
    """Damage a file, or put something else in its place."""
    data, kind = bytearray(path.read_bytes()), int(rng.integers(10))
    path.unlink()
    if kind < 4:
        for at in rng.integers(len(data), size=1 + rng.integers(3)):
            data[at] ^= rng.integers(1, 256)
    elif kind == 4:
        del data[rng.integers(len(data)) :]
    elif kind == 5:
        data += rng.bytes(9)
    if kind < 6:
        path.write_bytes(data)
    elif kind == 6:
        path.mkdir()
    elif kind == 7:
        os.mkfifo(path)
    elif kind == 8:
        path.symlink_to([victim, path, "/dev/zero", path.with_name("nothing")][rng.integers(4)])


def load(comm, place):
    try:
        return checkpoint.load(place, comm)
    except checkpoint.CheckpointError as error:
        return str(error)


@pytest.mark.thin(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_checkpoint_is_one_error_or_what_was_saved(saved, tmp_path, part):
    victim, refused = tmp_path / "victim", 0
    victim.write_text("theirs")
    for number in range(EACH):
        rng, place = np.random.default_rng([part, number]), tmp_path / str(number) / saved.name
        shutil.copytree(saved, place)
        path = sorted(place.iterdir())[rng.integers(4)]
        damaged(rng, path, victim)
        plain = path.is_file() and not path.is_symlink() and path.name != manifest.MANIFEST
        if plain and rng.integers(2):  # by somebody who makes the hashes fit
            found = manifest.read(place)
            files = found.files | {path.name: manifest.examine(path)}
            (place / manifest.MANIFEST).write_text(manifest.dumps(found._replace(files=files)))
        first, second = World(2).run(lambda comm, place=place: load(comm, place))
        if isinstance(first, str):
            refused += 1
            assert first == second and str(place) in first and len(first) < 1000, first
        else:
            assert (first.step, first.ranks, len(first.states), len(second.states)) == (1, 2, 1, 1)
        World(2).run(lambda comm, place=place: checkpoint.save(place.parent, 1, {}, b"", {}, comm))
        assert victim.read_text() == "theirs"
        shutil.rmtree(place.parent)
    assert refused > EACH / 2
