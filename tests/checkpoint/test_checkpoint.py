"""Checkpoints: bit-exact on as many ranks, nothing lost on others, whole or not at all, checked before they serve."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi import ALGORITHMS, SparseAllreduce
from sparse_mpi.checkpoint import CheckpointError, latest, load, save
from sparse_mpi.checkpoint.manifest import MANIFEST, read
from sparse_mpi.checkpoint.trees import dump_tree, load_tree
from sparse_mpi.comm import NullComm
from sparse_mpi.reduction.form import sealed
from sparse_mpi.testing.steps import same_bytes

from ..reduction.rules import KINDS

SHAPES = ((12, 10), (7,), (3, 5, 5))
N, K = 202, 12


IDENTITY = {"model": "a small one", "density": 0.06}

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
every_memory = pytest.mark.parametrize("kind", KINDS)


def vector(rank: int, step: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in float32."""
    return np.random.default_rng([step, rank]).integers(-50, 50, N).astype(np.float32)


def reducer_of(comm, name, kind="residual") -> SparseAllreduce:
    return SparseAllreduce(SHAPES, k=K, comm=comm, algorithm=name, feedback=KINDS[kind])


def shared(comm, tmp_path: Path) -> Path:
    """A folder of rank 0's that all ranks know."""
    return Path(bytes(comm.bcast(np.frombuffer(str(tmp_path).encode(), np.uint8))).decode())


@pytest.mark.thin(1)
@pytest.mark.ranks(1, 3, 4)
@every_algorithm
@every_memory
def test_a_resumed_run_goes_on_to_the_same_bits(ranks, name, kind, tmp_path):
    def body(comm):
        folder, straight, resumed = shared(comm, tmp_path), reducer_of(comm, name, kind), reducer_of(comm, name, kind)
        for step in range(4):
            straight.step(vector(comm.rank, step))
        written = save(folder, 4, IDENTITY, b"weights" if comm.rank == 0 else b"", [straight.state_dict()], comm)
        found = load(folder, comm)
        assert found[:4] == (written, 4, IDENTITY, b"weights") and len(found.states) == 1 and found.ranks == comm.size
        resumed.take_over(found.states[0], found.ranks)
        for step in range(4, 8):
            assert same_bytes(straight.step(vector(comm.rank, step)), resumed.step(vector(comm.rank, step)))

    ranks.run(body)


def test_what_cannot_be_taken_over_is_refused():
    comm = NullComm()
    state = reducer_of(comm, "topka").state_dict()
    pair = [sealed(state | {"ranks": 2}), sealed(state | {"ranks": 2, "rank": 1})]
    for states, ranks, message in (
        (pair[:1], 2, r"states must be those of ranks \[0, 1\] of 2, got those of \[0\]"),
        (pair[::-1], 2, r"must be those of ranks \[0, 1\]"),
        ([pair[0], sealed(pair[1] | {"k": 5})], 2, r"state\['k'\] must be 12, got 5"),
        ([pair[0], sealed(pair[1] | {"algorithm": {"kind": "Dense"}})], 2, r"\['algorithm'\].* must be"),
        ([pair[0], pair[1] | {"algorithm": "Dense()"}], 2, r"states\[1\]\['algorithm'\] must be dict as"),
        ([pair[0], pair[1] | {"residual": np.zeros(3)}], 2, r"states\[1\]\['residual'\] must be float32 \(202,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            reducer_of(comm, "topka").take_over(states, ranks)


def test_trees_keep_types_and_bits(tmp_path):
    tree = {
        "nested": ({"a": [1, 2.5, None, True, "ü"]}, (), [], {}),
        3: np.arange(6).reshape(2, 3)[:, ::2],
        "scalars": [np.float32(0.1), np.int64(-7), 1 << 80, float("inf"), 0.1],
        "arrays": [np.zeros((0, 4), np.int8), np.array(2.0), np.array([np.nan, -0.0], np.float16)],
    }
    with (tmp_path / "tree.npz").open("wb") as file:
        dump_tree(tree, file)
    again = load_tree(tmp_path / "tree.npz")
    assert repr(again) == repr(tree) and type(again["scalars"][0]) is np.float32
    assert again["arrays"][2].tobytes() == tree["arrays"][2].tobytes()


@pytest.mark.parametrize("bad", [{"a": [object()]}, {"a": [np.array([None])]}, {"a": [{1.5: 0}]}])
def test_what_no_tree_can_hold_is_refused_with_its_place(bad, tmp_path):
    with pytest.raises(CheckpointError, match=r"rank 0: TypeError: state\['a'\]\[0\] must be made of"):
        save(tmp_path, 1, {}, b"", bad, NullComm())
    assert list(tmp_path.iterdir()) == []


def test_older_checkpoints_and_leftovers_are_removed_after_the_next_one(tmp_path):
    comm = NullComm()
    (tmp_path / ".unfinished-step-00000009").mkdir()
    (tmp_path / ".unfinished-step-00000009" / "model.bin").write_bytes(b"half")
    (tmp_path / "step-00000099").mkdir()  # without a manifest it is none
    assert latest(tmp_path) is None and latest(tmp_path / "absent") is None
    for step in (10, 20, 30):
        save(tmp_path, step, {}, b"%d" % step, step, comm, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030", "step-00000099"]
    # from 20 the run takes another course: its checkpoints are the newest now, though of earlier steps
    assert save(tmp_path, 25, {}, b"", 0, comm) == latest(tmp_path)
    assert save(tmp_path, 30, {}, b"anew", 0, comm, keep=3) == latest(tmp_path)
    assert load(tmp_path, comm).model == b"anew" and read(latest(tmp_path)).number == 5
    save(tmp_path, 31, {}, b"", 0, comm, keep=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000031", "step-00000099"]


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_the_future(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))


def lie(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 2', '"step": 3'))


DAMAGE = {
    "missing": ("rank-00001-of-00003.npz", Path.unlink, "rank 1: .*No such file or directory"),
    "truncated": ("rank-00002-of-00003.npz", lambda p: p.write_bytes(p.read_bytes()[:-5]), r"rank 2: .* bytes instead"),
    "altered": ("rank-00000-of-00003.npz", alter, "rank 0: .*was altered"),
    "model": ("model.bin", alter, "rank 0: .*was altered"),
    "version": (MANIFEST, of_the_future, "checkpoint' 2, but .* 1 is known here"),
    "manifest": (MANIFEST, lie, f"{MANIFEST} is damaged: it was altered"),
    "no manifest": (MANIFEST, lambda p: p.write_text("{"), f"{MANIFEST} is damaged"),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.under_mpi(3)
def test_a_damaged_checkpoint_is_refused_on_every_rank(ranks, what, tmp_path):
    file, damage, message = DAMAGE[what]

    def body(comm):
        folder = shared(comm, tmp_path)
        for step in (1, 2):
            save(folder, step, {}, b"abc", {"r": np.arange(comm.rank + 3)}, comm)
        if comm.rank == 0:
            damage(latest(folder) / file)
        comm.barrier()
        with pytest.raises(CheckpointError, match=message) as caught:
            load(folder, comm)
        assert file in str(caught.value) and f"resume from {folder / 'step-00000001'}" in str(caught.value)
        assert load(folder / "step-00000001", comm).step == 1
        comm.barrier()
        save(folder, 3, {}, b"", 0, comm)
        return str(caught.value), load(folder, comm).step

    assert len(set(ranks.run(body))) == 1


@pytest.mark.ranks(1, 3)
def test_nothing_to_load_is_said_on_every_rank(ranks, tmp_path):
    def body(comm):
        folder = shared(comm, tmp_path)
        with pytest.raises(
            CheckpointError, match="cannot be used: rank 0: .*No such file or directory.*; name a check"
        ):
            load(folder, comm)

    ranks.run(body)


FULL = """
import resource, sys
import numpy as np
from sparse_mpi import World
from sparse_mpi.checkpoint import CheckpointError, load, save

folder, limited, failing = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def body(comm):
    save(folder, 1, {}, b"old", np.arange(5), comm)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limited, resource.RLIM_INFINITY))
    try:
        save(folder, 2, {}, b"new", np.zeros(50_000 if comm.rank == failing else 5), comm)
    except CheckpointError as error:
        print(error)
    found = load(folder, comm)
    print(found.step, found.model, found.states[0].tolist())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    save(folder, 3, {}, b"", 0, comm)

World(3).run(body)
"""


@pytest.mark.parametrize("failing", [0, 2])
def test_a_disk_that_is_full_leaves_the_previous_checkpoint(failing, tmp_path):
    """The operating system itself refuses to let a file grow, on one of three ranks."""
    command = [sys.executable, "-c", FULL, str(tmp_path), "100000", str(failing)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[:3] == ["1 b'old' [0, 1, 2, 3, 4]"] * 3 and len(set(lines[3:])) == 1 and len(lines) == 6
    file = f"{tmp_path}/.unfinished-step-00000002/rank-0000{failing}-of-00003.npz"
    assert lines[3] == (
        f"the checkpoint of step 2 was not written: rank {failing}: [Errno {errno.EFBIG}] File too large: '{file}'; "
        f"{tmp_path}/step-00000001 is intact; make room, or choose another folder"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


@pytest.mark.ranks(1, 3)
@pytest.mark.under_mpi(3)
def test_a_folder_that_cannot_be_made_is_refused_on_every_rank(ranks, tmp_path):
    def body(comm):
        folder = shared(comm, tmp_path)
        if comm.rank == 0:
            (folder / "file").write_text("")
        comm.barrier()
        with pytest.raises(CheckpointError, match="not written: rank 0: .*file.*; there is no earlier one"):
            save(folder / "file" / "checkpoints", 1, {}, b"", 0, comm)

    ranks.run(body)
