"""VGG-16, and its training program as a user starts it: under mpiexec, and without a launcher."""

from __future__ import annotations

import json
import re

import pytest
import torch

import vgg
from sparse_mpi import World
from sparse_mpi.algorithms.elect import CANDIDATES_PER_VOTE
from sparse_train.models.vision import VGG16

from ..launch import launch, needs_mpi


def start(ranks, *options, program=("train/vgg.py",)):
    """Run ``program`` on ``ranks`` ranks, None for no launcher; exit code and what it printed."""
    done = launch(ranks, *program, *options, seconds=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3), (48, 3)])
def test_vgg16_takes_small_and_large_images(size, channels):
    model = VGG16(classes=7, channels=channels).eval()
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 7)


def test_a_tiny_one_learns_in_a_moment(tmp_path):
    args = vgg.PROGRAM.parse(["--tiny", "--no-progress", "--threads", "1", "--out", str(tmp_path)])
    World(1).run(lambda comm: vgg.PROGRAM.train(args, comm))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [r["loss"] for r in records if r["event"] == "epoch"]
    assert records[0]["parameters"] == 232_130 and len(losses) == 2 and losses[1] < 0.9 * losses[0]


@pytest.mark.full("a whole job; what it does is tested in process, and one job of each program in test_train_programs")
@needs_mpi
def test_two_ranks_train_and_leave_records(tmp_path):
    folder = tmp_path / "run"
    options = "--max-steps 3 --batch-size 4 --check-every 2 --dense-warmup 1 --plot --log-every 1"
    code, out, error = start(2, *options.split(), "--out", str(folder))
    assert code == 0, error
    assert out.count("final: test accuracy 0.") == 1 and "replicas identical, 3 steps" in out
    assert re.search(r"epoch 1/\d+: 3/\d+ after \d+ s, loss .* MB$", error, re.MULTILINE)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config, *steps, epoch, final = records
    assert [r["event"] for r in records] == ["config", "step", "step", "step", "epoch", "final"]
    assert config["ranks"] == 2 and config["parameters"] == 14_727_114 and config["k"] == 404_996
    assert config["versions"].keys() >= {"python", "numpy", "torch", "mpi4py", "mpi"}
    k, most = config["k"], CANDIDATES_PER_VOTE * config["k"]
    assert steps[0]["selected"] == 14_727_114
    assert all(r["selected"] <= most and 0.8 * k <= r["total"] <= k for r in steps[1:])
    assert {"compute_seconds", "selection_seconds", "exchange_seconds", "merge_seconds"} <= epoch.keys()
    assert final["identical"] is True and final["steps"] == 3
    assert (folder / "plot.png").exists() and list(folder.glob("events*"))


@pytest.mark.full("one job of each program is in test_train_programs")
def test_one_process_needs_no_launcher(tmp_path):
    options = (
        "--max-steps 1 --batch-size 2 --algo topka --feedback dgc --clip-norm 2 --density-warmup 0.25 --no-progress"
    )
    code, out, error = start(None, *options.split(), "--out", str(tmp_path))
    assert code == 0, error
    assert "replicas identical, 1 steps" in out and "epoch 1/" not in error
    config, *_, epoch, _ = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kept = [config[name] for name in ("feedback", "zero_copy", "correction", "momentum")]
    assert kept == ["dgc", False, 0.75, 0.75]
    # A quarter of all entries at most: of two images less than that is not zero
    assert config["parameters"] / 8 < epoch["selected"] <= config["parameters"] / 4 + 1


@pytest.mark.full("a whole job; what it does is tested in process, and one job of each program in test_train_programs")
@needs_mpi
def test_a_folder_without_the_data_ends_the_job_with_an_error_from_every_rank(tmp_path):
    code, _, error = start(2, "--data", "cifar10", "--data-dir", str(tmp_path))
    assert code != 0
    for rank in range(2):
        assert f"error on rank {rank}: neither cifar-10-python.tar.gz nor" in error
    assert "Traceback" not in error


@pytest.mark.full("a whole job; what it does is tested in process, and one job of each program in test_train_programs")
@needs_mpi
def test_a_folder_that_cannot_be_made_ends_the_job(tmp_path):
    (tmp_path / "file").write_text("")
    code, _, error = start(2, "--max-steps", "1", "--out", str(tmp_path / "file" / "run"))
    assert code == 2 and error.count("vgg.py: error: argument --out/--log-dir: must be a folder") == 1


BROKEN = """
import sys
sys.path.insert(0, "train")
from sparse_train.ranks.job import run

def program(args, comm):
    if comm.rank == 1:
        raise KeyError("broken on one rank")
    comm.barrier()

run(program, None)
"""


@needs_mpi
def test_an_unexpected_error_on_one_rank_ends_the_job_with_its_traceback():
    code, _, error = start(2, program=("-c", BROKEN))
    assert code != 0 and "Traceback" in error and "KeyError: 'broken on one rank'" in error


def test_processes_that_mpi_does_not_know_of_are_refused():
    done = launch(None, "train/vgg.py", "--max-steps", "1", PMI_SIZE="2")
    assert done.returncode != 0 and "singletons" in done.stderr and "Traceback" not in done.stderr
