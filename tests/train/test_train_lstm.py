"""The LSTM that recognises speech, and its training program as a user starts it."""

from __future__ import annotations

import json

import pytest
import torch

from lstm import PROGRAM
from sparse_mpi.comm.world import World
from sparse_train.models.language import LOOKAHEAD, SpeechLSTM

from ..launch import launch, needs_mpi


def small(**shape):
    torch.manual_seed(1)
    return SpeechLSTM(**{"channels": 4, "hidden": 8, "layers": 2} | shape)


@pytest.mark.parametrize("convolutions", [1, 2])
def test_padding_has_no_influence(convolutions):
    model = small(convolutions=convolutions).eval()
    for norm in (module for module in model.modules() if hasattr(module, "running_mean")):
        norm.running_mean.uniform_(-1, 1)  # so that zeros do not stay zeros
    clips = [torch.randn(161, frames) for frames in (30, 7, 1)]
    batch = torch.zeros(3, 161, 30)
    for place, clip in zip(batch, clips, strict=True):
        place[:, : clip.shape[1]] = clip
    together, lengths = model(batch, torch.tensor([30, 7, 1]))
    assert together.shape == (3, 15, 29) and lengths.tolist() == [15, 4, 1]
    for logits, clip, length in zip(together, clips, lengths.tolist(), strict=True):
        alone, _ = model(clip[None], torch.tensor([clip.shape[1]]))
        assert torch.allclose(logits[:length], alone[0], atol=1e-5) and not logits[length:].any()


def test_padding_has_no_influence_on_what_is_learned():
    model = small()
    for norm in model.convolutions.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.eval()  # the one kind of layer that counts padding, as in DeepSpeech
    gradients = []
    for length in (30, 60):
        model.zero_grad()
        padded = torch.zeros(2, 161, length)
        padded[:, :, :30] = torch.randn(2, 161, 30, generator=torch.Generator().manual_seed(1))
        model(padded, torch.tensor([30, 20]))[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*gradients, strict=True))
    assert all(gradient.any() for gradient in gradients[0])


def test_a_frame_hears_the_past_and_a_little_of_the_future():
    model = small().eval()
    clip = torch.randn(1, 161, 200)
    later = clip.clone()
    later[:, :, 160:] = 0  # 80 frames of 20 ms on
    one, other = (model(x, torch.tensor([200]))[0][0] for x in (clip, later))
    reach = LOOKAHEAD + 5 + 3  # what convolutions see ahead, too
    assert torch.allclose(one[: 80 - reach], other[: 80 - reach], atol=1e-5)
    assert not torch.allclose(one[80 - LOOKAHEAD], other[80 - LOOKAHEAD], atol=1e-5)


@pytest.mark.parametrize(("task", "headline"), [("speech", "wer"), ("text", "perplexity")])
def test_a_tiny_model_is_trained(tmp_path, task, headline):
    if task == "speech":
        pytest.importorskip("espeakng_loader")
    options = "--tiny --max-steps 3 --batch-size 2 --log-every 1 --check-every 2 --no-progress --threads 1"
    args = PROGRAM.parse([*options.split(), "--task", task, "--out", str(tmp_path)])
    (outcome,) = World(1).run(lambda comm: PROGRAM.train(args, comm))
    assert outcome.identical and outcome.steps == 3 and outcome.headline == headline
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["event"] for record in records] == ["config", *["step"] * 3, "epoch", "final"]
    assert records[0]["task"] == task


@pytest.mark.full("a whole job; what it does is tested in process, and one job of each program in test_train_programs")
@needs_mpi
def test_two_ranks_learn_from_synthetic_speech(tmp_path):
    pytest.importorskip("espeakng_loader")
    done = launch(2, "train/lstm.py", "--tiny", "--epochs", "3", "--no-progress", "--out", str(tmp_path), seconds=300)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (record["loss"] for record in records if record["event"] == "epoch")
    assert last < first / 2 and records[-1]["identical"] is True and "final: test wer" in done.stdout
