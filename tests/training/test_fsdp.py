"""FSDP2 with sparse sums over replicas, under torchrun: `fsdp_job` trains, and this looks at what it saves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..launch import launch
from ..prefork import torchrun

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="needs FSDP2")
fsdp = pytest.importorskip("sparse_mpi.fsdp")

pytestmark = pytest.mark.jobs

STEPS = 6  # of `fsdp_job`
RESUMED = ("momentum", "adamw", "arrival")
# What sends everything, and the same by HSDP
LOOPS = dict(momentum="momentum", adamw="adamw", arrival="adamw", roots="momentum")
LOOPS |= dict(twice="twice", skipped="skipped")
SPARSE = (*(f"saved-{name}" for name in RESUMED), "sparse-skipped")
SPARSE += ("oktopk", "accumulated", "bfloat16")


class Saved:
    """What the ranks of a job with that many replicas and processes saved, by run."""

    def __init__(self, folder: Path, replicas: int, processes: int) -> None:
        self.folder, self.replicas, self.processes = folder, replicas, processes

    def __getitem__(self, run: str) -> list[dict]:
        ranks = range(self.processes)
        return [torch.load(self.folder / f"{run}-{self.replicas}-{rank}.pt", weights_only=False) for rank in ranks]


def job(folder: Path, replicas: int, *runs: str, processes: int = 4) -> Saved:
    program = ("tests/training/fsdp_job.py", str(folder), str(replicas), *runs)
    done = launch(None, *torchrun(processes, *program), seconds=280, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-5000:]
    return Saved(folder, replicas, processes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture(scope="module")
def two_by_two(folder):
    """Two replicas of two shards."""
    runs = [*(f"hsdp-{name}" for name in dict.fromkeys(LOOPS.values())), *(f"all-{name}" for name in LOOPS)]
    resumed = (f"{how}-{name}" for how in ("loaded", "first") for name in RESUMED)
    return job(folder, 2, *runs, *SPARSE, *resumed, "frozen", "narrow", "mistakes")


@pytest.fixture(scope="module", params=[(4, 4), (1, 4), (2, 8)], ids=["4x1", "1x4", "2x4"])
def regridded(request, two_by_two):
    """Other replicas and shards, which load what two by two have saved."""
    replicas, processes = request.param
    return job(two_by_two.folder, replicas, *(f"loaded-{name}" for name in RESUMED), processes=processes)


def lanes(ranks: list[dict]) -> list[list[dict]]:
    """The ranks that hold the same shard, by shard."""
    return [[rank for rank in ranks if rank["shard"] == shard] for shard in sorted({rank["shard"] for rank in ranks})]


def assert_same_parameters(first: dict, second: dict, **tolerance: float) -> None:
    for name, parameter in first["parameters"].items():
        if tolerance:
            torch.testing.assert_close(parameter, second["parameters"][name], **tolerance)
        else:
            assert torch.equal(parameter, second["parameters"][name]), name


def assert_nothing_lost(ranks: list[dict]) -> None:
    """On every lane what was given was applied, times the replicas, or is in a residual."""
    for lane in lanes(ranks):
        given, left = (sum(rank[name].double() for rank in lane) for name in ("given", "residual"))
        torch.testing.assert_close(given, len(lane) * lane[0]["applied"] + left, rtol=0, atol=1e-5)
        assert all(torch.equal(rank["applied"], lane[0]["applied"]) for rank in lane)


def mean_loss(ranks: list[dict], steps: slice) -> float:
    """Of all ranks, each of which has samples of its own."""
    return sum(sum(rank["losses"][steps]) / 3 for rank in ranks) / len(ranks)


@pytest.mark.parametrize("run", LOOPS)
def test_what_sends_everything_trains_as_hsdp_does(two_by_two, run):
    """Also with several roots, two passes a step, and layers that are left out of vectors of several units."""
    for dense, ours in zip(two_by_two[f"hsdp-{LOOPS[run]}"], two_by_two[f"all-{run}"], strict=True):
        assert dense["losses"] == pytest.approx(ours["losses"], rel=1e-4)
        assert_same_parameters(dense, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["oktopk", "accumulated", "sparse-skipped"])
def test_what_was_given_was_applied_or_is_in_a_residual(two_by_two, run):
    assert_nothing_lost(two_by_two[run])


@pytest.mark.parametrize("run", SPARSE)
def test_replicas_stay_alike_and_send_little(two_by_two, run):
    """The whole model is the same everywhere, the sums are sparse, and padding has no residual."""
    ranks = two_by_two[run]
    for rank in ranks:
        assert_same_parameters(ranks[0], rank)
        assert len(rank["residual"]) == rank["elements"] and rank["residual"].count_nonzero() > rank["elements"] / 4
        assert 0 < rank["sent"] < STEPS * 4 * rank["elements"] / 4
        assert 0 < rank["report"]["total"] < 0.1 * rank["elements"]
    assert mean_loss(ranks, slice(-3, None)) < mean_loss(ranks, slice(3))
    assert len({rank["elements"] for rank in ranks}) == 2  # 101 rows are 51 and 50


def test_a_card_carries_what_the_formula_says(two_by_two):
    """4 k (N - 1) / (N G) words a step for N replicas of G shards, k entries of the whole model."""
    for rank in two_by_two["oktopk"]:
        words = 4 * 0.01 * rank["elements"] * (2 - 1) / 2
        assert rank["sent"] == pytest.approx(STEPS * 4 * words, rel=0.1)


def test_gradients_are_clipped_by_the_norm_of_the_whole_model(two_by_two):
    ranks = two_by_two["accumulated"]
    assert all(rank["norms"] == ranks[0]["norms"] for rank in ranks) and max(ranks[0]["norms"]) > 0.5


def test_a_frozen_layer_keeps_what_it_owes(two_by_two):
    for rank in two_by_two["frozen"]:
        assert rank["waits"][0].any() and torch.equal(*rank["waits"])


def test_what_is_reduced_in_bfloat16_is_owed_in_float32(two_by_two):
    for rank in two_by_two["bfloat16"]:
        assert rank["residual"].dtype == torch.float32 and set(rank["dtypes"]) == {"torch.float32"}


def test_a_flush_leaves_nothing(two_by_two):
    for rank in two_by_two["frozen"]:
        assert not rank["residual"].any()
        for name, owed in rank["before"].items():
            torch.testing.assert_close(rank["flushed"][name], owed / 2, rtol=1e-5, atol=1e-7)


def test_a_process_may_hold_padding_alone(two_by_two):
    for number, rank in enumerate(two_by_two["narrow"]):
        assert_same_parameters(rank["hsdp"], rank["all"], rtol=1e-4, atol=1e-6)
        assert (rank["held"], rank["reports"]) == ([], False) if number % 2 else (["0.weight", "0.bias"], True)


@pytest.mark.parametrize("optimizer", RESUMED)
@pytest.mark.parametrize("how", ["loaded", "first"])
def test_a_resumed_job_goes_on_to_the_same_bits(two_by_two, optimizer, how):
    """Also where the optimizer's state is loaded before the model is attached."""
    for straight, resumed in zip(two_by_two[f"saved-{optimizer}"], two_by_two[f"{how}-{optimizer}"], strict=True):
        assert straight["losses"][STEPS // 2 :] == resumed["losses"]
        assert_same_parameters(straight, resumed)
        assert torch.equal(straight["residual"], resumed["residual"])


@pytest.mark.full("three more jobs")
@pytest.mark.parametrize("optimizer", RESUMED)
def test_other_replicas_and_shards_owe_what_the_former_ones_did(regridded, two_by_two, optimizer):
    """Scaled as the number of replicas by which their sum is divided; and training goes on."""
    before = two_by_two[f"saved-{optimizer}"][0]["before"]
    ranks = regridded[f"loaded-{optimizer}"]
    for rank in ranks:
        for name, owed in before.items():
            torch.testing.assert_close(rank["before"][name], owed * regridded.replicas / 2, rtol=1e-6, atol=1e-7)
        assert_same_parameters(ranks[0], rank)
    assert mean_loss(ranks, slice(-3, None)) < mean_loss(two_by_two[f"saved-{optimizer}"], slice(3))


@pytest.mark.full("torch compiles")
def test_compiled_layers_train(folder):
    ranks = job(folder, 2, "compiled")["compiled"]
    for rank in ranks:
        assert_same_parameters(ranks[0], rank)
        assert rank["sent"] > 0
    assert mean_loss(ranks, slice(-3, None)) < mean_loss(ranks, slice(3))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("plain", "TypeError: model must be sharded by FSDP2, got a Net that is not; call torch.distributed.fsdp.full"),
        ("float16", r"TypeError: model must reduce means in float32 or bfloat16, got torch.float16 of a "),
        ("two dimensions", r"TypeError: model must be sharded over a mesh of one dimension, got \('replicate', 'shard"),
        ("complex", "TypeError: model: head.more must be of dtype float32.* got complex64"),
        (
            "empty",
            r"ValueError: model must have parameters with elements, .* head.more, .* call its requires_grad_\(False\)",
        ),
        ("other order", "(?s)ValueError: all ranks must call with the same arguments"),
        ("copy", "TypeError: ShardedReduction must not be copied or pickled, .* save its state"),
        ("partly", "ValueError: model must have all its parameters sharded, layers.0.weight is in no unit; call"),
        ("twice", r"ValueError: model must be attached once, got one that is; call its detach\(\) first"),
        (
            "not replicas",
            "ValueError: replicas must hold the same shard of models of their own, got .* 0 of 2 from [02]",
        ),
        ("everybody", "ValueError: replicas must hold the same shard of models of their own, got .* 1 of 2 from 2"),
        ("optimizer", r"ValueError: optimizer must have the parameters of the sharded model, got one of shape \(101, "),
        ("unused there", "(?s)ValueError: .*a backward pass must bring gradients of all parameters of a unit, 714"),
        (
            "hook",
            r"ValueError: parameters must have no hook that is called when .grad is accumulated, got one of head.w",
        ),
        (
            "two passes",
            r"RuntimeError: backward must reduce once before a step .* model.set_requires_gradient_sync\(Fa",
        ),
        (
            "flush between",
            "RuntimeError: flush must come between two steps, got gradients that were reduced and not st",
        ),
        ("detached", "ValueError: the optimizer has its momentum"),
        ("unused", "ValueError: a backward pass must bring gradients of all parameters of a unit, 714 numbers for la"),
        ("clip_norm", "ValueError: clip_norm must be None where a rank knows its shard alone; call"),
        ("scaler", "TypeError: step must not be taken by a GradScaler .* train in bfloat16"),
        ("other folder", "ValueError: folder must be of algorithm .*TopkA.*, got .*Elect.*; attach as before saving"),
    ],
)
def test_mistakes_are_named_on_every_rank(two_by_two, what, message):
    for said in two_by_two["mistakes"]:
        assert re.match(message, said[what]), said[what]
