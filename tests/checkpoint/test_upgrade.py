"""Files that sparse_mpi 0.1.0 wrote still load: checkpoints of reducers and of training runs, plans and profiles.

`written_by_0.1.0` holds the states of two ranks after three steps by every algorithm, what each gave in the fourth
step, and a training run of `tests.train.small_program` that was stopped half way.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World, checkpoint
from sparse_mpi.tools.plan import store
from sparse_mpi.tools.plan.store import algorithm_of

OLD = Path(__file__).with_name("written_by_0.1.0")
SHAPES = [(12, 30), (30,), (7, 5, 3, 3), (7,)]
SAVED = json.loads((OLD / "checkpoints" / "step-00000003" / "checkpoint.json").read_text())["identity"]["cases"]
NAMES = {"memory": "feedback"}  # former names of arguments
CASES = {label: {NAMES.get(name, name): value for name, value in case.items()} for label, case in SAVED.items()}


def gradient(step, rank):
    return np.random.default_rng([step, rank]).standard_normal(sum(map(np.prod, SHAPES))).astype(np.float32)


def dense(total):
    return total.to_dense() if hasattr(total, "to_dense") else total


@pytest.mark.parametrize("label", CASES)
def test_a_reducer_goes_on_where_the_old_one_stopped(label):
    """To the same entries, and to the same values but for the rounding of another processor.

    Two levels share k among their lanes otherwise since then, and take more of the gradient with them.
    """

    def resume(comm):
        found = checkpoint.load(OLD / "checkpoints", comm)
        reducer = SparseAllreduce(SHAPES, k=60, comm=comm, **CASES[label])
        reducer.take_over([state[label] for state in found.states], found.ranks)
        return dense(reducer.step(gradient(3, comm.rank)))

    expected = np.load(OLD / "totals.npz")[label]
    for total in World(2).run(resume):
        if label == "oktopk-2level":
            assert np.count_nonzero(total) <= 60 and np.linalg.norm(total) > np.linalg.norm(expected)
            continue
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)
        assert ((total != 0) == (expected != 0)).all()


@pytest.mark.parametrize("label", CASES)
def test_three_ranks_take_over_from_the_old_two(label):
    def resume(comm):
        found = checkpoint.load(OLD / "checkpoints", comm)
        reducer = SparseAllreduce(SHAPES, k=60, comm=comm, **CASES[label])
        reducer.take_over([state[label] for state in found.states], found.ranks)
        return reducer.residual, [state[label]["residual"] for state in found.states]

    new = World(3).run(resume)
    owed = sum(residual for residual, _ in new)
    np.testing.assert_allclose(owed, sum(old for _, states in new for old in states), rtol=1e-5, atol=1e-6)


def test_a_training_run_goes_on(tmp_path, no_signals):
    pytest.importorskip("torch")
    from sparse_train.ranks.job import JobError

    from ..train import small_program

    saved = str(OLD / "run" / "checkpoints" / "step-00000006")
    with pytest.raises(JobError, match="with feedback residual, but this one has gmc; resume with what it was saved"):
        small_program.train(2, tmp_path / "anew", "--algo", "oktopk", "--resume", saved)
    outcome = small_program.train(2, tmp_path, "--algo", "oktopk", "--feedback", "residual", "--resume", saved)
    straight = json.loads((OLD / "run" / "outcome.json").read_text())
    assert outcome.steps == straight["steps"] and outcome.identical
    assert outcome.loss == pytest.approx(straight["loss"], rel=1e-3)
    assert outcome.score == pytest.approx(straight["score"], abs=0.02)


def test_plans_and_profiles_are_read():
    plan, profile = store.load(OLD / "plan.json"), store.load(OLD / "profile.json", store.Profile)
    assert plan.ranks == 4 and len(plan.parts) == 2
    assert len(profile.tensors) == 2


def test_a_plan_is_carried_out(ranks):
    """The plan of 0.1: the second tensor densely, of the first five entries of each rank, in two partitions."""
    plan = store.load(OLD / "plan.json")
    shapes = [shape for _, shape in plan.tensors]

    def step(comm):
        reducer = SparseAllreduce(shapes, density=plan.density, comm=comm, algorithm=algorithm_of(plan))
        x = np.random.default_rng(comm.rank).standard_normal(150).astype(np.float32)
        return x, dense(reducer.step(x.copy(), check=True))

    given, totals = zip(*ranks.run(step), strict=True)
    np.testing.assert_allclose(totals[0][50:], sum(x[50:] for x in given), rtol=1e-4, atol=1e-5)
    assert 5 <= np.count_nonzero(totals[0][:50]) <= 5 * len(given)
    assert len({total.tobytes() for total in totals}) == 1


def test_a_checkpoint_of_a_later_release_is_refused_in_one_line(tmp_path):
    place = tmp_path / "step-00000003"
    shutil.copytree(OLD / "checkpoints" / place.name, place)
    found = json.loads((place / "checkpoint.json").read_text())
    (place / "checkpoint.json").write_text(json.dumps(found | {"version": 2}))

    def load(comm):
        with pytest.raises(
            checkpoint.CheckpointError, match="checkpoint' 2, but .* use the sparse_mpi that wrote"
        ) as caught:
            checkpoint.load(place, comm)
        assert "\n" not in str(caught.value)

    World(2).run(load)
