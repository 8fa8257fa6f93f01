"""Files that sparse_mpi 0.1.0 and 0.2.0 wrote still load: checkpoints of reducers, optimizers and training runs, plans.

`written_by_*` hold the states of two ranks after three steps by every algorithm, what each gave in the fourth step, and
a training run of `tests.train.small_program` that was stopped half way. Of 0.2.0 there are optimizers, too, and of
0.1.0 a plan and a profile.
"""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World, checkpoint
from sparse_mpi.tools.plan import store
from sparse_mpi.tools.plan.store import algorithm_of

OLD = {release: Path(__file__).with_name(f"written_by_{release}") for release in ("0.1.0", "0.2.0")}
SHAPES = [(12, 30), (30,), (7, 5, 3, 3), (7,)]
RENAMED = {"memory": "feedback"}  # arguments of 0.1.0


def today(case):
    """Return the arguments of today for those of an earlier release; what it gave nothing for had another default."""
    case = {RENAMED.get(name, name): value for name, value in case.items()}
    former = {"wire": "packed"} if case["algorithm"] == "elect" else {}
    return former | case | ({"residual": "merger"} if "residual" in case else {})


CASES = [
    (release, label, today(case))
    for release, folder in OLD.items()
    for label, case in json.loads((folder / "checkpoints" / "step-00000003" / "checkpoint.json").read_text())[
        "identity"
    ]["cases"].items()
]


def name(value):
    return value if isinstance(value, str) else ""


def gradient(step, rank):
    return np.random.default_rng([step, rank]).standard_normal(sum(map(np.prod, SHAPES))).astype(np.float32)


def dense(total):
    return total.to_dense() if hasattr(total, "to_dense") else total


def resumed(comm, release, label, case):
    """Return the reducer that goes on from the states of two ranks, and the states that this rank was given."""
    found = checkpoint.load(OLD[release] / "checkpoints", comm)
    reducer = SparseAllreduce(SHAPES, k=60, comm=comm, **case)
    states = [state[label] for state in found.states]
    reducer.take_over(states, found.ranks)
    return reducer, states


@pytest.mark.parametrize(("release", "label", "case"), CASES, ids=name)
def test_a_reducer_goes_on_where_the_old_one_stopped(release, label, case):
    """To the same entries, and to the same values but for the rounding of another processor.

    Two levels share k among their lanes otherwise since 0.1.0, and take more of the gradient with them.
    """

    def step(comm):
        return dense(resumed(comm, release, label, case)[0].step(gradient(3, comm.rank), check=True))

    expected = np.load(OLD[release] / "totals.npz")[label]
    for total in World(2).run(step):
        if (release, label) == ("0.1.0", "oktopk-2level"):
            assert np.count_nonzero(total) <= 60 and np.linalg.norm(total) > np.linalg.norm(expected)
            continue
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)
        assert ((total != 0) == (expected != 0)).all()


@pytest.mark.parametrize(
    ("release", "label", "case"), [case for case in CASES if case[2].get("feedback") != "ef21"], ids=name
)
def test_three_ranks_take_over_what_the_old_two_owed(release, label, case):
    """EF21 owes nothing: what it keeps are estimates, which are not added up."""

    def resume(comm):
        reducer, states = resumed(comm, release, label, case)
        return reducer.residual, [state["residual"] for state in states if "residual" in state]

    new = World(3).run(resume)
    owed = sum(residual for residual, _ in new)
    np.testing.assert_allclose(owed, sum(old for _, states in new for old in states), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("label", "momentum"), [("sgd", "global"), ("adam", "arrival"), ("local", "local"), ("elect", "global")]
)
def test_an_optimizer_goes_on_where_that_of_0_2_stopped(label, momentum):
    """By Ok-Topk to the same weights; Elect's votes were others, and so only what is owed must be the same."""
    torch = pytest.importorskip("torch")
    from sparse_mpi.optim import DistributedOptimizer

    network = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    networks = deepcopy(network), deepcopy(network)
    options = {"algorithm": "elect", "wire": "packed"} if label == "elect" else {"algorithm": "oktopk"}

    def tensors(tree):
        if isinstance(tree, dict):
            return {name: tensors(value) for name, value in tree.items()}
        if isinstance(tree, list):
            return [tensors(value) for value in tree]
        return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree

    def step(comm):
        found = checkpoint.load(OLD["0.2.0"] / "optimizers", comm)
        model, (state,) = networks[comm.rank], [state[label] for state in found.states]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), state["parameters"], strict=True):
                parameter.copy_(torch.from_numpy(value))
        inner = (
            torch.optim.Adam(model.parameters(), lr=0.01)
            if label == "adam"
            else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        )
        optimizer = DistributedOptimizer(
            inner, model.named_parameters(), density=0.1, comm=comm, momentum=momentum, **options
        )
        optimizer.load_state_dict(tensors(state["optimizer"]))
        optimizer.reduction.take_over([state["reduction"]], found.ranks)
        owed = [bucket.reducer.residual.copy() for bucket in optimizer.reduction.buckets]
        optimizer.zero_grad()
        batch = torch.randn(8, 20, generator=torch.Generator().manual_seed(300 + comm.rank))
        model(batch).square().mean().backward()
        optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy(), owed, state["reduction"]

    for weights, owed, saved in World(2).run(step):
        if label == "elect":
            np.testing.assert_array_equal(owed, [bucket["residual"] for bucket in saved["buckets"]])
        else:
            np.testing.assert_allclose(weights, np.load(OLD["0.2.0"] / "parameters.npz")[label], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("release", "options", "refused"),
    [
        ("0.1.0", ("--algo", "oktopk", "--feedback", "residual"), "with feedback residual, but this one has gmc"),
        ("0.2.0", ("--wire", "packed", "--feedback", "gmc"), "with wire packed, but this one has None"),
    ],
)
def test_a_training_run_goes_on(tmp_path, no_signals, release, options, refused):
    pytest.importorskip("torch")
    from sparse_train.ranks.job import JobError

    from ..train import small_program

    saved = str(OLD[release] / "run" / "checkpoints" / "step-00000006")
    with pytest.raises(JobError, match=f"{refused}.*; resume with what it was saved with"):
        small_program.train(2, tmp_path / "anew", *options[:2] * (release == "0.1.0"), "--resume", saved)
    with pytest.raises(JobError, match="but this one has gmc, matched to the wait; resume with what it was saved with"):
        small_program.train(2, tmp_path / "matched", *options[:2], "--resume", saved)
    outcome = small_program.train(2, tmp_path, *options, "--resume", saved)
    straight = json.loads((OLD[release] / "run" / "outcome.json").read_text())
    assert outcome.steps == straight["steps"] and outcome.identical
    assert outcome.loss == pytest.approx(straight["loss"], rel=1e-3 if release == "0.1.0" else 1e-2)
    assert outcome.score == pytest.approx(straight["score"], abs=0.02 if release == "0.1.0" else 0.06)


def test_plans_and_profiles_are_read():
    plan, profile = store.load(OLD["0.1.0"] / "plan.json"), store.load(OLD["0.1.0"] / "profile.json", store.Profile)
    assert plan.ranks == 4 and len(plan.parts) == 2
    assert len(profile.tensors) == 2


def test_a_plan_is_carried_out(ranks):
    """The plan of 0.1: the second tensor densely, of the first five entries of each rank, in two partitions."""
    plan = store.load(OLD["0.1.0"] / "plan.json")
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
    shutil.copytree(OLD["0.2.0"] / "checkpoints" / place.name, place)
    found = json.loads((place / "checkpoint.json").read_text())
    (place / "checkpoint.json").write_text(json.dumps(found | {"version": 2}))

    def load(comm):
        with pytest.raises(
            checkpoint.CheckpointError, match="checkpoint' 2, but .* use the sparse_mpi that wrote"
        ) as caught:
            checkpoint.load(place, comm)
        assert "\n" not in str(caught.value)

    World(2).run(load)
