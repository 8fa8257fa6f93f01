"""A training program in the ranks of a World: from its command line to its records."""

from __future__ import annotations

import math
import re

import pytest

from sparse_mpi import World
from sparse_train.options.optimization import OPTIMIZERS
from sparse_train.trainer.program import Program, Settings, Tiny

from . import small_program
from .small_program import Struck, outcomes, records, refusals

SETTINGS = {"halves": Settings(6, 8, 0.05, 0.5, warmup_epochs=1, schedule="linear", clip_norm=5.0)}


class Judged(Struck):
    """A task whose score is worked out in evaluation alone."""

    headline = "right"

    def forward_and_loss(self, batch):
        loss, found = super().forward_and_loss(batch)
        found[2] += math.nan if self.model.training else 0
        return loss, found

    def scores(self, sums):
        loss, right = super().scores(sums).values()
        return {"loss": loss, "right": right}


def make(args, comm):
    if args.depth < 1 and comm.rank == 1:
        raise ValueError(f"depth must be at least 1, got {args.depth}")
    made = small_program.make(args, comm)
    return Judged(made.model, made._batches, comm.rank)


def extend(parser):
    parser.add_argument("--depth", type=int, default=1)


DEEP = Program("deep", "Deep.", make, SETTINGS, {"halves": "-"}, Tiny("halves", SETTINGS["halves"]), extend)


def train(folder, *options):
    return outcomes(DEEP, 2, folder, *options), records(folder)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(tmp_path, optimizer):
    (outcome, other), (config, *_) = train(tmp_path, "--optimizer", optimizer)
    losses = [r["test_loss"] for r in records(tmp_path, "epoch")]
    assert len(losses) == 6 and losses[-1] < 0.7 * losses[0]
    assert outcome.identical and (outcome.steps, outcome.score) == (30, other.score)
    sent = sum(5 * r["mb_sent"] for r in records(tmp_path, "epoch"))
    assert outcome.mb_sent == pytest.approx(sent) and outcome.mb_dense == pytest.approx(30 * 4 * 74 / 1e6)
    assert (config["optimizer"], config["headline"], config["items"]) == (optimizer, "right", "images")
    assert (config["k"], config["parameters"], config["clip_norm"]) == (37, 74, 5.0)


def test_optimizers_differ_and_listen_to_their_options(tmp_path):
    runs = [[], ["--momentum", "0.5"], ["--weight-decay", "1"]]
    runs += [["--optimizer", name, "--weight-decay", "1"] for name in ("adam", "adamw")]
    assert len({train(tmp_path, "--max-steps", "4", *run)[0][0].loss for run in runs}) == len(runs)


def test_a_score_of_evaluation_alone_is_left_out_of_training(tmp_path, capsys):
    (outcome, _), (_, *events) = train(tmp_path, "--plot", "--log-every", "3")
    said = capsys.readouterr().out
    assert re.search(r"epoch 6: test right \d\.\d{4}, test loss [\d.]+, loss [\d.]+, lr", said) and " images/s" in said
    assert f"final: test right {outcome.score:.4f}, replicas identical, 30 steps" in said
    assert (tmp_path / "plot.png").exists()
    for record in events:
        assert "right" not in record and ("test_right" in record) == (record["event"] == "epoch")
    assert records(tmp_path, "epoch")[-1]["lr"] == pytest.approx(0.05 * 0.2 / 5)


def test_what_make_refuses_on_one_rank_ends_all_of_them(tmp_path):
    args = DEEP.parse(["--depth", "0", "--out", str(tmp_path / "run"), "--threads", "1"])
    said = refusals(World(2), lambda comm: DEEP.train(args, comm))
    assert said == ["stopping because of rank 1; see its error", "depth must be at least 1, got 0"]
    assert not (tmp_path / "run").exists()
