"""DistributedDataParallel with the hook, under torchrun and under mpiexec: `ddp_job` trains, and this looks at it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..launch import launch, needs_mpi
from ..prefork import copied, torchrun

torch = pytest.importorskip("torch")
pytest.importorskip("sparse_mpi.ddp")

RANKS = 3
RULES = ("dgc", "moments")
UNUSED = ("unused-own", "unused-views")  # where gradients have memory of their own, or that of buckets
TRAINED = ("dense", "oktopk", "oktopk-resumed", "at once", "other buckets", "exact", "bfloat16", *UNUSED)
TAKEN = ("momentum", "nesterov", "adamw")  # optimizers that the hook takes over
LOOPS = (*TAKEN, "accumulated")
OTHERS = ("clipped", *(f"{name}-sparse" for name in LOOPS), *RULES, *(f"{rule}-resumed" for rule in RULES))
SCALED = ("local", "nesterov", "adamw")  # whose optimizer is given to the hook
MODES = ("momentum", "adamw", "arrival")
GRAPHS = ("static", "static reentrant", "anew", "alone", "autocast")
RUNS = (
    *(
        "plain",
        *TRAINED,
        *OTHERS,
        "optimizer",
        "momentum-optimizer",
        "mistakes",
        "tables",
        "tables-hook",
        "tables-sparse",
    ),
    *(f"{graph}-{how}" for graph in GRAPHS for how in ("plain", "all")),
    *(f"{name}-{how}" for name in LOOPS for how in ("plain", "all")),
    *(f"{name}-{how}" for name in TAKEN for how in ("late", "zero")),
    *(f"{name}-{how}" for name in SCALED for how in ("scaled", "skipped")),
    *(f"uneven-{how}" for how in ("plain", "all", "momentum", "sparse")),
    *("nesterov-flushed", "failed", "late mistakes", "orders", "copied-plain", "copied"),
    *(f"{layout}-{mode}" for layout in ("laid out", "turned") for mode in MODES),
)


class Saved:
    """What the ranks of a job saved, by run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, run: str) -> list:
        return [torch.load(self.folder / f"{run}-{rank}.pt", weights_only=False) for rank in range(RANKS)]


pytestmark = pytest.mark.jobs


def job(folder: Path, launcher: str, *runs: str) -> Saved:
    program = ("tests/training/ddp_job.py", str(folder), *runs)
    start = (None, *torchrun(RANKS, *program)) if launcher == "torchrun" else (RANKS, *copied(*program))
    done = launch(*start, seconds=240, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-5000:]
    return Saved(folder)


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory):
    return job(tmp_path_factory.mktemp("torchrun"), "torchrun", *RUNS)


@pytest.fixture(scope="module")
def by_mpi(tmp_path_factory):
    return job(tmp_path_factory.mktemp("mpi"), "mpiexec", "oktopk")


def assert_nothing_lost(ranks: list[dict], atol: float) -> None:
    """By the last rank, which has as many batches as any."""
    given, left = (sum(rank[name].double() for rank in ranks) for name in ("given", "residual"))
    torch.testing.assert_close(given, RANKS * ranks[-1]["applied"] + left, rtol=0, atol=atol)


def assert_alike(ranks: list[dict]) -> None:
    assert ranks[0]["parameters"].isfinite().all()
    for other in ranks[1:]:
        assert torch.equal(ranks[0]["parameters"], other["parameters"])


def assert_close(ranks: list[dict], others: list[dict], what: str = "parameters") -> None:
    for one, other in zip(ranks, others, strict=True):
        torch.testing.assert_close(one[what], other[what], rtol=1e-5, atol=1e-6)


def assert_same_bits(ranks: list[dict], others: list[dict]) -> None:
    for one, other in zip(ranks, others, strict=True):
        assert one["losses"] == other["losses"] and torch.equal(one["parameters"], other["parameters"])


@pytest.mark.parametrize("run", TRAINED + OTHERS)
def test_ranks_stay_alike_to_the_bit(by_torchrun, run):
    first, *others = by_torchrun[run]
    for other in others:
        assert torch.equal(first["parameters"], other["parameters"]) and torch.equal(first["applied"], other["applied"])
    assert first["parameters"].isfinite().all()


@pytest.mark.parametrize("run", (*TRAINED, "moments", "accumulated-sparse", "local-scaled", "uneven-sparse"))
def test_what_was_given_was_applied_or_is_in_a_residual(by_torchrun, run):
    """From the first step to the last, whatever buckets there were; half precision rounds what is applied."""
    assert_nothing_lost(by_torchrun[run], 1e-2 if run == "bfloat16" else 1e-6)


def test_steps_are_dense_at_first_and_then_sparse(by_torchrun):
    assert_close(by_torchrun["dense"], by_torchrun["plain"])
    dense, sparse = by_torchrun["plain"][0], by_torchrun["oktopk"][0]
    assert sparse["losses"][:3] == pytest.approx(dense["losses"][:3], rel=1e-5)
    assert sparse["losses"][3:] != pytest.approx(dense["losses"][3:], rel=1e-5)
    assert by_torchrun["at once"][0]["losses"][1] != pytest.approx(dense["losses"][1], rel=1e-5)
    assert sparse["sent"] < by_torchrun["dense"][0]["sent"] / 2
    for rank in by_torchrun["oktopk"]:
        assert rank["residual"].count_nonzero() > len(rank["residual"]) / 2


@pytest.mark.parametrize("run", ["oktopk", *RULES])
def test_a_resumed_job_goes_on_to_the_same_bits(by_torchrun, run):
    """Though DDP begins it with its first buckets again: one, where later there are three."""
    for straight, resumed in zip(by_torchrun[run], by_torchrun[f"{run}-resumed"], strict=True):
        assert straight["losses"][3:] == resumed["losses"]
        assert resumed["buckets"][0] == 6 and resumed["buckets"][1:] == [4, 2] * 2
        for name in ("parameters", "residual"):
            assert torch.equal(straight[name], resumed[name])


def test_residuals_move_into_other_buckets(by_torchrun):
    straight, moved = by_torchrun["oktopk"][0], by_torchrun["other buckets"][0]
    assert moved["buckets"] == [6, 6, 6]
    assert moved["losses"][:2] == straight["losses"][3:5]  # still reduced as before
    assert not torch.equal(moved["parameters"], straight["parameters"])


@pytest.mark.parametrize(("hook", "optimizer"), [("exact", "optimizer"), ("momentum-sparse", "momentum-optimizer")])
def test_distributed_optimizer_trains_to_the_same_bits(by_torchrun, hook, optimizer):
    """Where the optimizer keeps its momentum, and where error feedback takes it over by default."""
    assert_same_bits(by_torchrun[hook], by_torchrun[optimizer])


def test_the_hook_clips_the_mean(by_torchrun):
    """In each of six steps to a norm of 0.01, which a sketch tells to some percent."""
    clipped, free = ({float(rank["applied"].norm()) for rank in by_torchrun[run]} for run in ("clipped", "dense"))
    assert len(clipped) == 1 and 0.01 < max(clipped) < 1.1 * 6 * 0.01 < min(free) / 10


@pytest.mark.parametrize("run", LOOPS)
def test_with_everything_sent_each_loop_trains_as_ddp_does(by_torchrun, run):
    """Optimizers whose momentum the hook has, and backward passes of which DDP reduces the last."""
    assert_close(by_torchrun[f"{run}-all"], by_torchrun[f"{run}-plain"])


@pytest.mark.parametrize("way", ["late", "zero"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_late_process_group_closures_and_a_sharded_optimizer_change_no_bit(by_torchrun, name, way):
    """Of a state older than the group, ranks meet in the closure of the first step."""
    assert_same_bits(by_torchrun[f"{name}-{way}"], by_torchrun[f"{name}-sparse"])


@pytest.mark.parametrize("run", [*(f"{name}-late" for name in TAKEN), "adamw-scaled", "nesterov-flushed"])
def test_afterwards_an_optimizer_has_its_options_again(by_torchrun, run):
    (plain,) = by_torchrun[f"{run.partition('-')[0]}-plain"][0]["groups"]
    assert all(rank["groups"] == [plain] for rank in by_torchrun[run])


def test_a_backward_pass_that_fails_leaves_nothing_to_the_next_one(by_torchrun):
    assert all(rank["error"] == "ArithmeticError: the gradient" for rank in by_torchrun["failed"])
    assert_alike(by_torchrun["failed"])


LEFT = r"RuntimeError: gradients must be cleared between a step and the next backward\(\) or step\(\) where"
ONCE = r"RuntimeError: backward must reduce once before a step with momentum='{}', .* make all .* model.no_sync\(\), or"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        *((name, ONCE.format("matched")) for name in ("momentum", "nesterov", "everything")),
        ("adamw", ONCE.format("second-moment")),
        ("arrival", ONCE.format("arrival")),
        ("one rank", "(?s).*backward must reduce once before a step with momentum='matched'"),
        *((f"{then} {views}", LEFT) for then in ("backward", "step") for views in (True, False)),
        ("flush", "RuntimeError: flush must come between two steps, got gradients that were reduced and not stepped"),
    ],
)
def test_an_order_of_calls_in_which_momentum_would_be_applied_twice_is_refused(by_torchrun, what, message):
    for said in by_torchrun["orders"]:
        assert re.match(message, said[what]), said[what]


def test_a_copied_model_goes_on_with_what_was_owed(by_torchrun):
    assert_same_bits(by_torchrun["copied"], by_torchrun["copied-plain"])
    assert all(rank["kept"] and rank["residual"].any() for rank in by_torchrun["copied"])


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_a_weight_in_memory_and_views_of_buckets_change_nothing(by_torchrun, mode):
    first, *_ = by_torchrun[f"laid out-{mode}"]
    assert all(torch.equal(first, rank) for rank in by_torchrun[f"turned-{mode}"])


@pytest.mark.parametrize("run", [f"{name}-scaled" for name in SCALED])
def test_a_loss_scale_that_changes_is_in_no_result(by_torchrun, run):
    """Gradients of one rank overflow in the fourth step, which leaves no trace on any."""
    scaled, without = by_torchrun[run], by_torchrun[run.replace("scaled", "skipped")]
    for rank in scaled:
        assert rank["scales"] == [2.0**power for power in (14, 15, 15, 14, 14, 15)]
    assert_alike(scaled)
    assert_close(scaled, without)
    assert_close(scaled, without, "residual")


@pytest.mark.parametrize("what", ["joined", "parameters"])
def test_uneven_inputs_train_as_with_ddp(by_torchrun, what):
    """In `join`, and in the step after it, in which each rank has what its optimizer has seen."""
    assert_close(by_torchrun["uneven-all"], by_torchrun["uneven-plain"], what)


@pytest.mark.parametrize("run", ["uneven-sparse", "uneven-momentum"])
def test_ranks_that_have_run_out_of_inputs_follow_the_others(by_torchrun, run):
    """The next step of all is the same: they have the same momentum, too."""
    assert_alike(by_torchrun[run])
    assert [len(rank["losses"]) for rank in by_torchrun[run]] == [5, 6, 7]


def test_a_flush_moves_weights_once_by_all_that_is_owed(by_torchrun):
    for rank in by_torchrun["nesterov-flushed"]:
        torch.testing.assert_close(rank["parameters"], rank["expected"], rtol=1e-6, atol=1e-7)


def test_a_state_older_than_the_process_group_says_what_it_lacks(by_torchrun):
    for number, said in enumerate(by_torchrun["late mistakes"]):
        assert said["comm"].startswith("RuntimeError: comm must be known, but the state was made before the process")
        for call in ("step", "load"):
            assert said[call].startswith("RuntimeError: torch.distributed must be initialised first"), said[call]
        assert said["owed"] == {}
        assert ("mistake" in said) == (number == 1)
        assert re.match(
            "(?s)ValueError: all ranks must call with the same arguments, but.*density=0.12", said["differ"]
        )
    assert by_torchrun["late mistakes"][1]["mistake"].startswith("ValueError: density must be in (0, 1], got 1.5")


def test_half_precision_is_widened_inside(by_torchrun):
    for rank in by_torchrun["bfloat16"]:
        assert rank["parameters"].dtype == torch.bfloat16 and rank["residual"].dtype == torch.float32


def test_embeddings_train_as_ddp_does_and_stay_sparse(by_torchrun):
    """Their gradients are exact whatever becomes of the others, and of the size of what was looked up."""
    for plain, ours in zip(by_torchrun["tables"], by_torchrun["tables-hook"], strict=True):
        assert ours["sparse"] == plain["sparse"] == [True, True, True, False, False]
        torch.testing.assert_close(ours["parameters"], plain["parameters"], rtol=1e-5, atol=1e-6)
        assert ours["sent"] < 6 * 2 * (2 * 18 * (8 + 1) + 18 * (3 + 1) + 48 + 40) * 4  # a table alone has 32,000 bytes
    for rank in by_torchrun["tables-sparse"]:
        assert rank["residuals"] == ["head.bias", "head.weight"] and rank["sparse"][:3] == [True] * 3
        assert rank["flushed"] == [False, False, False, True, True]
        assert torch.equal(rank["parameters"], by_torchrun["tables-sparse"][0]["parameters"])


@pytest.mark.parametrize("graph", GRAPHS)
def test_static_graphs_and_recomputed_activations_train_as_with_ddp(by_torchrun, graph):
    """DDP waits for the first step of a static graph within a callback: what completes it must not be a later one."""
    assert_close(by_torchrun[f"{graph}-all"], by_torchrun[f"{graph}-plain"])


@pytest.mark.full("torch compiles; eager graphs are above")
def test_a_compiled_model_trains_as_with_ddp(tmp_path):
    runs = job(tmp_path, "torchrun", "compiled-plain", "compiled-all")
    assert_close(runs["compiled-all"], runs["compiled-plain"])


@pytest.mark.full("a second start of the jobs, under MPI")
@needs_mpi
def test_mpi_trains_as_torchrun_does(by_torchrun, by_mpi):
    """MPI adds the dense steps in another order."""
    for other, mpi in zip(by_torchrun["oktopk"], by_mpi["oktopk"], strict=True):
        assert mpi["losses"] == pytest.approx(other["losses"], rel=1e-5)
        torch.testing.assert_close(mpi["parameters"], other["parameters"], rtol=1e-4, atol=1e-6)
    assert_alike(by_mpi["oktopk"])
    assert_nothing_lost(by_mpi["oktopk"], 1e-6)


@pytest.mark.full("a second start of the jobs, under MPI")
@needs_mpi
def test_other_ranks_than_mpis_are_refused(by_mpi):
    errors = by_mpi["turned"]
    for rank in (0, 2):
        assert f"comm must have the ranks of the process group, got rank {rank} of 3 where that has" in errors[rank]
        assert "initialise it with the rank and size of MPI.COMM_WORLD" in errors[rank]
    assert errors[1].startswith("ValueError: all ranks must call with the same arguments")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "of another model",
            r"ValueError: named_parameters must have every parameter .* lacks a torch float32 \(10,\)",
        ),
        ("of another order", r"(?s)ValueError: all ranks must call with the same arguments.*names=\('b.weight', "),
        ("complex", "TypeError: named_parameters: weight must be of dtype float32.*got complex64"),
        ("one scaler", "(?s)ValueError: all ranks must call with the same .*scaled=True"),
        ("one optimizer", "(?s)ValueError: all ranks must call with the same .*GlobalMomentum"),
        ("zero", "TypeError: optimizer must be the one that steps, got ZeroRedundancyOptimizer around .* pass .optim"),
        ("copy", "RuntimeError: state must know the optimizer .* load the copy's state_dict"),
        ("nothing can travel", "ValueError: algorithm must carry second moments with momentum='second-moment', got"),
        *(
            (f"{which}scaler", "TypeError: step must not be taken by a GradScaler that the hook does not know")
            for which in ("", "fused ", "local ")
        ),
        ("not finite", r"FloatingPointError: total has \d+ entries that are NaN or Inf"),
        ("state", r"ValueError: state must have 'form', got \[\]; one that was written by sparse_mpi 0.2"),
        ("names", "ValueError: state must have each of this model's parameters at most once, got '0.weights'"),
    ],
)
def test_mistakes_are_named_on_every_rank(by_torchrun, what, message):
    for said in by_torchrun["mistakes"]:
        assert re.match(message, said[what]), said[what]
