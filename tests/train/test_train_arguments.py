"""Options of the training programs, and the rates and densities of a run that they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sparse_train.options.arguments import Settings, Tiny, parse
from sparse_train.options.optimization import OPTIMIZERS, Ramp, density, learning_rate
from sparse_train.options.reduction import feedback_options

SETTINGS = {
    "small": Settings(5, 16, 0.1, 0.01, 1, (3, 4), 1e-4),
    "large": Settings(90, 32, 0.0125, 0.02, 5, (30, 60, 80), 5e-5, lr_times_ranks=True),
    "text": Settings(3, 8, 1e-3, 0.02, 0.1, optimizer="adam", schedule="linear", clip_norm=2.5),
}
TINY = Tiny("toy", Settings(1, 4, 0.5, 0.1, 0, momentum=0.25))
FOLDERS = {"small": "here", "large": "there", "text": "where", "toy": "nowhere"}


def nothing(args):
    """Add no options, or take all."""


def options(*argv):
    return parse("net", "Train net.", SETTINGS, FOLDERS, TINY, nothing, nothing, argv)


def test_defaults_are_those_of_the_data_set():
    args = options()
    assert (args.data, args.algo, args.density, args.k) == ("small", "elect", 0.01, None)
    assert args.selector is None and options("--algo", "topka", "--selector", "random").selector == "random"
    assert args.wire is None and options("--wire", "packed+bf16").wire == "packed+bf16"
    assert (args.epochs, args.milestones, args.momentum, args.lr_times_ranks) == (5, (3, 4), 0.9, False)
    assert args.data_dir == Path("here") and args.out.match("runs/net-small-elect-*")
    assert (args.rank, args.plan) == (None, None)
    planned = options("--plan", "setup.cfg")
    assert (planned.density, planned.algo) == (None, "plan") and planned.out.match("runs/net-small-plan-*")
    args = options("--plan", "auto")
    assert (args.algo, args.plan) == ("plan", "auto")
    assert (args.density, args.overlap) == (0.01, False) and options("--plan", "auto", "--k", "9").density is None
    args = options("--algo", "auto")
    assert (args.algo, args.plan, args.overlap, args.bucket_mb) == ("auto", None, True, 25)
    args = options(
        "--data", "large", "--epochs", "7", "--milestones", "2", "6.5", "--data-dir", "docs", "--log-dir", "o"
    )
    assert (args.density, args.epochs, args.milestones, args.batch_size) == (0.02, 7, [2, 6.5], 32)
    assert (args.data_dir, args.out) == (Path("docs"), Path("o"))


def test_a_warmup_that_is_a_share_of_the_epochs_goes_with_their_number():
    shared = {"long": replace(SETTINGS["text"], epochs=4, warmup_epochs=0.5, warmup_scales=True), **SETTINGS}

    def warmup(*argv):
        own = nothing, nothing
        return parse("net", "Train net.", shared, FOLDERS | {"long": "."}, TINY, *own, argv).warmup_epochs

    assert (warmup(), warmup("--epochs", "12"), warmup("--epochs", "12", "--warmup-epochs", "2")) == (0.5, 1.5, 2)
    assert warmup("--data", "text", "--epochs", "12") == 0.1


def test_a_given_lr_is_the_peak_and_a_given_k_replaces_the_density():
    assert options("--data", "large").lr_times_ranks
    args = options("--data", "large", "--lr", "0.0125", "--k", "9", "--milestones")
    assert not args.lr_times_ranks
    assert (args.k, args.density, args.milestones) == (9, None, [])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--selector", "dgc", "--algo", "dense"], ["--selector", "dense"]),
        (["--wire", "packed", "--algo", "powersgd"], ["--wire", "powersgd"]),
        (["--flush", "--feedback", "none"], ["--flush", "--feedback none owes nothing"]),
        (
            ["--optimizer", "adam", "--momentum-by", "corrected"],
            ["corrected needs --optimizer sgd", "got adam"],
        ),
        (["--momentum-by", "global", "--momentum", "1"], ["--momentum-by: global needs", "--momentum below 1"]),
        (["--k", "5", "--density", "0.1"], ["not allowed with"]),
        (["--rank", "4"], ["--rank", "elect cannot take 4"]),
        (["--algo", "adtopk", "--selector", "dgc"], ["--selector", "adtopk cannot take dgc"]),
        (["--algo", "auto", "--selector", "dgc"], ["--selector", "--algo auto cannot take dgc"]),
        (["--plan", "auto", "--selector", "dgc"], ["--selector", "a plan cannot take dgc"]),
        (["--plan", "setup.cfg", "--algo", "topka"], ["--plan", "leave out --algo topka"]),
        (["--plan", "auto", "--algo", "auto"], ["--plan auto chooses the algorithms", "leave out --algo auto or"]),
        (["--plan", "auto", "--overlap"], ["--overlap", "a plan needs the whole gradient"]),
        (["--plan", "setup.cfg", "--density", "0.1"], ["--plan", "leave out --k and --density"]),
        (["--plan", "setup.cfg", "--rank", "4"], ["--rank", "a plan cannot take 4"]),
        (["--beta1", "0.8", "--optimizer", "sgd"], ["--beta1", "for adam or adamw, got 0.8 for sgd"]),
        (["--beta1", "1", "--optimizer", "adam"], ["--beta1", "must be below 1", "got 1.0 for adam"]),
        (["--data", "text", "--momentum", "0.9"], ["--momentum", "needs --optimizer sgd, has no effect on adam"]),
        (["--feedback", "gmc"], ["--feedback: gmc was removed in 0.4.0: write --momentum-by global"]),
        (["--feedback", "all"], ["--feedback: must be one of residual, leaky, none, got all; for example residual"]),
        (["--arrival"], ["arrival was removed in 0.4.0: write --momentum-by arrival"]),
        (["--data", "text", "--milestones", "3"], ["--milestones", "needs --schedule steps", "on linear"]),
        (["--decay", "0.9"], ["--decay", "needs --schedule exponential", "on steps"]),
        (["--data", "toy"], ["--data", "toy is for --tiny alone", "small, large, text"]),
        (["--algo", "oktopk:votes=1"], ["--algo", "oktopk has no option votes; it has: selector"]),
        (["--algo", "elect:wire=packed", "--wire", "coo32"], ["--wire", "elect:wire=packed has one"]),
        (["--leak", "0.1", "--feedback", "none"], ["--leak", "none has none", "residual, leaky"]),
        (
            ["--leak", "0.1", "--momentum-by", "corrected"],
            ["--momentum-by: corrected needs", "without --leak"],
        ),
        (["--keep", "3"], ["argument --keep: "]),
        (["--resume"], ["argument --resume: "]),
        (["--checkpoint-dir", "x"], ["argument --checkpoint-dir: no checkpoints are written or read"]),
        (["--min-ranks", "2"], ["without --elastic"]),
        (["--spares", "1"], ["no rank may be lost without --elastic"]),
        (["--elastic", "--algo", "auto"], ["--algo auto needs all ranks to stay"]),
        (["--elastic", "--plan", "auto"], ["--plan auto needs all ranks to stay"]),
        (["--elastic", "--dense-warmup", "3"], ["--dense-warmup 3 needs all ranks to stay"]),
        (["--outer-lr", "1"], ["argument --outer-lr: needs local steps; add --local-steps H"]),
        (["--local-steps", "4", "--plan", "auto"], ["--plan is for gradients that are reduced in every step"]),
        (["--local-steps", "4", "--elastic"], ["--elastic is for gradients"]),
        (["--local-steps", "4", "--algo", "auto"], ["--algo auto chooses for gradients of every step"]),
        (
            ["--local-steps", "4", "--momentum-by", "local"],
            ["--momentum-by is for gradients that are reduced in"],
        ),
        (["--local-steps", "4", "--bucket-mb", "2"], ["--bucket-mb is for gradients"]),
        (["--local-steps", "4", "--algo", "dense", "--wire", "packed"], ["dense cannot take packed"]),
        (["--local-steps", "4", "--feedback", "none", "--flush"], ["--feedback none owes nothing"]),
    ],
)
def test_wrong_options_are_told_in_one_line(argv, says, capsys):
    with pytest.raises(SystemExit) as stop:
        options(*argv)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1
    assert all(text in error for text in says)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [([], 0), (["4"], 4), (["0.25,0.0625"], (0.25, 0.0625)), (["0.5"], (0.5,)), (["0.5@0.2"], Ramp(0.5, 0.2))],
)
def test_density_warmup_is_epochs_or_densities(argv, expected):
    assert options(*(["--density-warmup", *argv] if argv else [])).density_warmup == expected


def test_tiny_takes_the_place_of_data_and_settings_that_are_not_given():
    args = options("--tiny")
    assert args.tiny and (args.data, args.lr, args.momentum, args.density) == ("toy", 0.5, 0.25, 0.1)
    assert args.data_dir == Path("nowhere") and args.out.match("runs/net-toy-elect-*")
    args = options("--tiny", "--data", "large", "--epochs", "7", "--k", "5")
    assert (args.data, args.data_dir, args.epochs, args.batch_size) == ("large", Path("there"), 7, 4)
    assert (args.density, args.lr_times_ranks) == (None, False)
    assert not options().tiny


def test_adam_keeps_its_own_momentum_and_clipping_can_be_turned_off():
    args = options("--data", "text")
    assert (args.optimizer, args.schedule, args.momentum, args.milestones) == ("adam", "linear", 0, ())
    assert args.clip_norm == 2.5
    args = options("--data", "text", "--clip-norm", "inf", "--optimizer", "sgd", "--momentum", "0.8")
    assert (args.clip_norm, args.momentum) == (None, 0.8)


def test_second_moments_of_adam_travel_unless_told_otherwise(capsys):
    adam = ["--optimizer", "adam", "--weight-decay", "0"]
    travelling = options(*adam)
    assert feedback_options(options("--optimizer", "adamw"))["momentum"] == "second-moment"
    assert feedback_options(travelling)["momentum"] == "second-moment"
    elsewhere = (
        ["--algo", "oktopk"],
        ["--weight-decay", "0.1"],
        ["--algo", "elect", "--wire", "coo32"],
    )
    for argv in (["--momentum-by", "arrival"], *elsewhere):
        assert feedback_options(options(*adam, *argv))["momentum"] == "arrival"
    for argv in (["--momentum-by", "local"], ["--feedback", "none"]):
        assert feedback_options(options(*adam, *argv))["momentum"] == "local"
    for argv in ([], [*adam, "--feedback", "none"]):
        with pytest.raises(SystemExit):
            options("--momentum-by", "arrival", *argv)
        assert "arrival needs --optimizer adam or adamw, and --feedback residual or leaky" in capsys.readouterr().err
    for argv in ([], [*adam, "--algo", "oktopk"], [*adam, "--density", "1"], [*adam, "--feedback", "none"]):
        with pytest.raises(SystemExit):
            options("--momentum-by", "second-moment", *argv)
        assert "second-moment needs --optimizer adamw, or adam without" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_keeps_what_beta1_says_of_its_mean_gradient(name):
    weights = [torch.nn.Parameter(torch.zeros(2))]
    for argv, beta1 in (([], 0.9), (["--beta1", "0.8"], 0.8), (["--beta1", "0"], 0.0)):
        made = OPTIMIZERS[name](weights, options("--optimizer", name, *argv))
        assert made.defaults["betas"] == (beta1, 0.999)


def test_a_leak_is_an_option_of_rules_that_keep():
    assert options().leak == 0 and options("--feedback", "leaky").leak == 0.05
    leaking = feedback_options(options("--leak", "0.02"))
    assert leaking["feedback"].keep == 0.98 and leaking["momentum"] == "matched"
    assert feedback_options(options("--leak", "0.1", "--optimizer", "adamw"))["momentum"] == "second-moment"


def test_momentum_is_the_optimizers_or_that_of_feedback():
    for argv, momentum, taken in (([], "matched", 0.7), (["--feedback", "residual"], "local", 0)):
        args = options("--momentum", "0.7", *argv)
        assert (args.momentum, args.correction, feedback_options(args)["momentum"]) == (0.7, taken, momentum)
    assert options("--momentum", "0").momentum_by == options("--plan", "auto").momentum_by == "local"
    for momentum in ("corrected", "global"):
        args = options("--momentum-by", momentum, "--feedback", "residual", "--clip-norm", "2")
        assert (args.momentum, args.correction) == (0.9, 0.9)
        made = {"feedback": "residual", "momentum": momentum, "clip_norm": 2}
        assert feedback_options(args) == made
    assert feedback_options(options()) == {"feedback": "residual", "momentum": "matched", "clip_norm": None}


def schedule(**changes):
    values = {"lr": 0.8, "lr_times_ranks": False, "warmup_epochs": 10, "epochs": 40}
    return SimpleNamespace(**(values | {"schedule": "steps", "milestones": (), "decay": 1.0} | changes))


def test_learning_rate_climbs_from_one_ranks_share_and_falls_at_milestones():
    def rate(epoch):
        return learning_rate(epoch, schedule(milestones=(20, 30)), 4)

    assert rate(0) == pytest.approx(0.2)
    assert rate(5) == pytest.approx(0.5)
    assert rate(10) == rate(19.99) == pytest.approx(0.8)
    assert rate(20) == rate(29.99) == pytest.approx(0.08)
    assert rate(1000) == pytest.approx(0.008)
    assert learning_rate(0, schedule(warmup_epochs=0), 4) == learning_rate(3, schedule(), 1) == pytest.approx(0.8)
    assert learning_rate(10, schedule(lr_times_ranks=True), 4) == pytest.approx(3.2)


def test_learning_rate_falls_in_a_line_to_zero_at_the_end():
    args = schedule(schedule="linear", epochs=50, max_steps=3)
    rates = [learning_rate(epoch, args, 4) for epoch in (0, 5, 10, 20, 30, 49.9, 50)]
    assert rates == pytest.approx([0.2, 0.5, 0.8, 0.6, 0.4, 0.002, 0])


def test_learning_rate_decays_by_a_factor_each_epoch():
    args = schedule(schedule="exponential", decay=0.5, warmup_epochs=1.5)
    rates = [learning_rate(epoch, args, 4) for epoch in (0, 1.5, 2.4, 2.5, 3.5, 11.5)]
    assert rates == pytest.approx([0.2, 0.8, 0.8, 0.4, 0.2, 0.8 * 0.5**10])


def test_density_falls_exponentially_or_as_listed():
    published = [density(epoch, 0.001, 4) for epoch in (0, 1.5, 2, 3.99, 4, 100)]
    assert published == pytest.approx([0.251, 0.0631, 0.0158, 0.00398, 0.001, 0.001], rel=5e-3)
    assert [density(epoch, 0.01, (0.5, 0.25)) for epoch in (0, 0.9, 1, 2)] == [0.5, 0.5, 0.25, 0.01]
    assert density(0, 0.01) == 0.01
    ramp = [density(epoch, 0.01, Ramp(0.16, 0.5)) for epoch in (0, 0.25, 0.5, 3)]
    assert ramp == pytest.approx([0.16, 0.04, 0.01, 0.01])
