"""--flush: what ranks still owe after the last step is applied once, counted, and not a second time when resumed."""

from __future__ import annotations

import pytest

from .small_program import records, train

pytestmark = pytest.mark.usefixtures("no_signals")
OPTIONS = {
    "oktopk": [],
    "copied": ["--no-zero-copy"],
    "buckets": ["--bucket-mb", "0.0002"],
    "dgc": ["--feedback", "dgc"],
    "gmc": ["--feedback", "gmc"],
    "adam": ["--optimizer", "adam", "--lr", "0.01"],
    "checked": ["--check-every", "1"],
    "warming up": ["--dense-warmup", "6"],
}


def epochs(folder):
    """Return the megabytes of each epoch: those of a mean step, times its steps."""
    return [epoch["mb_sent"] * 4 for epoch in records(folder, "epoch")]


@pytest.mark.thin(0, what=("buckets", "dgc", "adam", "warming up"))  # four training runs each
@pytest.mark.parametrize("what", OPTIONS)
def test_a_flush_is_recorded_counted_and_resumed(what, tmp_path):
    """4 steps an epoch on 2 ranks; it goes on from the middle of the last epoch, and from the end."""
    options = [*OPTIONS[what], "--checkpoint-every", "10"]
    plain = train(2, tmp_path / "plain", *options)
    straight = train(2, tmp_path / "straight", *options, "--flush")
    assert plain.digest != straight.digest and straight.identical and straight.steps == plain.steps == 12
    (flush,) = records(tmp_path / "straight", "flush")
    assert not records(tmp_path / "plain", "flush") and flush["step"] == 12 and flush["mb_sent"] > 0
    *same, without = epochs(tmp_path / "plain")
    *also, flushed = epochs(tmp_path / "straight")
    assert also == same and flushed == pytest.approx(without + flush["mb_sent"], rel=1e-6)
    for step in ("step-00000010", "step-00000012"):
        checkpoint = tmp_path / "straight" / "checkpoints" / step
        resumed = train(2, tmp_path / step, *options, "--flush", "--resume", str(checkpoint))
        assert (resumed.digest, resumed.score) == (straight.digest, straight.score)
    assert not records(tmp_path / "step-00000012", "flush")


def test_a_run_that_ends_in_an_epoch_is_flushed_before_its_checkpoint(tmp_path):
    options = ["--flush", "--max-steps", "6", "--checkpoint-every", "3"]
    straight = train(2, tmp_path / "straight", *options)
    for size in (2, 3):
        resumed = train(size, tmp_path / str(size), *options, "--resume", str(tmp_path / "straight"))
        assert resumed.identical and (size == 3 or resumed.digest == straight.digest)
    assert not records(tmp_path / "2", "flush")


def test_a_flushed_run_goes_on_for_longer(tmp_path):
    short = train(2, tmp_path, "--flush", "--max-steps", "6", "--checkpoint-every", "3")
    longer = train(2, tmp_path, "--flush", "--checkpoint-every", "3", "--resume")
    assert short.identical and longer.identical and longer.steps == 12
    assert [record["step"] for record in records(tmp_path, "flush")] == [6, 12]
