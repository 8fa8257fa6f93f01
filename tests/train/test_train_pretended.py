"""Whole training programs on a device that torch and CuPy are made to believe in; they compute on the CPU.

So the weights must be those of a run on the CPU, to the bit. Autocast and what happens beneath Python's view of torch
are not pretended; see `fakes.fake_torch`.
"""

from __future__ import annotations

import pytest

from ..fakes import fake_torch
from .program_jobs import PROGRAMS, program_of
from .small_program import outcomes, train

RANKS = 2
# What torch makes the host wait for in a step: sequences are packed by their lengths, and transformers looks at masks.
# Adam by arrival waits once to learn how many entries of each parameter have arrived.
WAITS = {"lstm speech": 3, "bert pretrain": 1, "bert squad": 1, "gpt2": 1}
ADAPTIVE = {"lstm text", "transformer", "bert pretrain", "bert squad", "gpt2", "vit"}


@pytest.fixture
def gpu(device, monkeypatch):
    fake_torch.install_torch(monkeypatch)
    return device


@pytest.mark.thin(0, name=("vgg",))
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_in_the_bits_of_the_cpu_and_goes_on_from_a_checkpoint_of_either(gpu, tmp_path, name):
    program, options = program_of(name)

    def run(device, folder, *more):
        return outcomes(program, RANKS, tmp_path / folder, *options, "--max-steps", 4, "--device", device, *more)[0]

    there, here = (run(device, device, "--checkpoint-every", 2) for device in ("cuda", "cpu"))
    assert there.steps == here.steps == 4 and there.identical
    assert there.digest == here.digest and there.score == pytest.approx(here.score, rel=1e-6)
    for device, other in (("cuda", "cpu"), ("cpu", "cuda")):
        checkpoint = tmp_path / other / "checkpoints" / "step-00000002"
        assert run(device, f"{device} from {other}", "--resume", checkpoint).digest == here.digest
    assert gpu.log is not None and fake_torch.ASKED


@pytest.mark.thin(0, name=("vgg", "transformer"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_makes_torch_wait_no_more_than_it_must(gpu, tmp_path, name):
    """Metrics are fetched every ``--log-every`` steps."""
    program, options = program_of(name)

    def asked(steps):
        fake_torch.ASKED.clear()
        chosen = [*options, "--max-steps", steps, "--log-every", 100, "--device", "cuda"]
        outcomes(program, RANKS, tmp_path / f"{steps}", *chosen)
        return len(fake_torch.ASKED)

    assert asked(2) - asked(1) == RANKS * (WAITS.get(name, 0) + (name in ADAPTIVE))


WAYS = {
    "elect": ["--algo", "elect", "--check-every", "3"],
    "residual": ["--feedback", "residual", "--watch-every", "2"],
    "corrected": ["--momentum-by", "corrected", "--dense-warmup", "2"],
    "coarse, in buckets": ["--wire", "packed+int8", "--bucket-mb", "0.001", "--flush"],
    "clipped adam": ["--optimizer", "adam", "--clip-norm", "0.5"],
}


@pytest.mark.parametrize("how", WAYS)
def test_ways_to_train_have_the_bits_of_the_cpu(gpu, tmp_path, how):
    there, here = (
        train(RANKS, tmp_path / device, "--max-steps", "6", "--device", device, *WAYS[how])
        for device in ("cuda", "cpu")
    )
    assert there.digest == here.digest and there.identical
