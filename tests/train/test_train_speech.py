"""Clips are dealt out to ranks, their losses added up, characters recognised by an LSTM, and errors counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparse_train.data.share import Share
from sparse_train.data.speech import Clip, Speech, decode, encode, log_spectrogram
from sparse_train.models.language import LOOKAHEAD, SpeechLSTM
from sparse_train.tasks.speech import Errors, SpeechTask, buckets, collate, errors, recognise

from .test_train_speech_data import noise


@pytest.mark.parametrize(("count", "batch", "size"), [(948, 2, 4), (17, 2, 3), (3, 2, 3), (64, 8, 1)])
def test_ranks_see_each_clip_once_and_clips_of_a_length_together(count, batch, size):
    seconds = np.random.default_rng(1).random(count)
    for epoch in range(3):
        shares = list(zip(*buckets(seconds, batch, size, 1, epoch), strict=True))
        assert {len(share) for share in shares} == {max(1, count // (batch * size))}
        steps = [np.concatenate(step) for step in zip(*shares, strict=True)]
        assert sorted(np.concatenate(steps)) == list(range(count))
        assert all(len(part) >= min(batch, count // size) for share in shares for part in share)
        spans = sorted((seconds[step].min(), seconds[step].max()) for step in steps)
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))
        if epoch == 0:
            assert (np.diff(seconds[np.concatenate(steps)]) >= 0).all()


def test_orders_depend_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return np.concatenate([parts[1] for parts in buckets(np.arange(50.0), 2, 2, seed, epoch)]).tolist()

    assert order(1, 1) == order(1, 1) != order(1, 2) != order(2, 2)
    with pytest.raises(ValueError, match="2 training clips are too few for 3 ranks"):
        buckets(np.ones(2), 2, 3, 1, 0)


def some_speech(train=7, test=5):
    rng = np.random.default_rng(5)
    clips = [Clip(noise(i, int(rng.integers(4000, 9000))), 8000, f"A{'B' * i}") for i in range(train + test)]
    return Speech(tuple(clips[:train]), tuple(clips[train:]))


def small_task(rank=0, size=1):
    torch.manual_seed(3)
    model = SpeechLSTM(channels=2, convolutions=1, hidden=8, layers=2)
    return SpeechTask(model, some_speech(), 2, Share(rank, size), seed=1)


def test_batches_are_padded_spectrograms_and_texts_end_to_end():
    clips = some_speech().train[:3]
    batch = collate(clips)
    for place, frames, clip in zip(batch.spectrograms, batch.frames.tolist(), clips, strict=True):
        expected = log_spectrogram(clip.samples, clip.rate)
        assert np.array_equal(place[:, :frames].numpy(), expected) and not place[:, frames:].any()
    assert decode(batch.characters.numpy()) == "AABABB" and batch.lengths.tolist() == [1, 2, 3]


def test_scores_do_not_depend_on_how_clips_are_dealt_out():
    tasks = [small_task(), *(small_task(rank, 7) for rank in range(7))]  # more ranks than clips
    for task in tasks:
        task.model.eval()
    alone, *shared = ([task.forward_and_loss(batch)[1] for batch in task.test()] for task in tasks)
    assert np.allclose(sum(alone), sum(map(sum, shared)), rtol=1e-5) and sum(alone)[0] == 5


def test_training_counts_clips_and_loss_and_evaluation_errors_too():
    task = small_task()
    batch = collate(task._speech.test[:2])
    loss, sums = task.forward_and_loss(batch)
    loss.backward()
    assert sums[0] == 2 and math.isclose(sums[1], 2 * loss.item(), rel_tol=1e-6) and not sums[2:].any()
    scores = task.scores(sums)
    assert list(scores) == ["loss", "wer", "cer"] and math.isnan(scores["wer"]) and math.isnan(scores["cer"])
    task.model.eval()
    _, sums = task.forward_and_loss(batch)
    said = ["A" + "B" * 7, "A" + "B" * 8]
    found = recognise(*task.model(batch.spectrograms, batch.frames))
    assert sums[2:].tolist() == np.sum([errors(*pair) for pair in zip(said, found, strict=True)], 0).tolist()
    assert task.scores(np.array([2.0, 6.0, 1.0, 4.0, 3.0, 10.0])) == {"loss": 3.0, "wer": 0.25, "cer": 0.3}


def test_the_loss_is_the_likelihood_of_all_ways_to_say_the_text():
    """One character in two frames: it comes first, last, or lasts."""
    task = small_task()
    batch = collate([Clip(noise(0, 480), 8000, "A")])
    task.model.eval()
    p = task.model(batch.spectrograms, batch.frames)[0].softmax(2)[0].detach().double()
    assert p.shape == (3, 29)
    frames = ["A__", "_A_", "__A", "AA_", "_AA", "AAA"]
    likelihood = sum(math.prod(float(p[i, c]) for i, c in enumerate(encode(way))) for way in frames)
    assert math.isclose(task.forward_and_loss(batch)[0].item(), -math.log(likelihood), rel_tol=1e-5)


def test_recognised_are_the_likeliest_characters_without_repetitions_and_blanks():
    frames = ["__AAB_B  ", "C_C______"]
    logits = torch.nn.functional.one_hot(torch.from_numpy(np.stack([encode(text) for text in frames])), 29).float()
    assert recognise(logits, torch.tensor([9, 3])) == ["ABB ", "CC"]
    assert recognise(logits, torch.tensor([2, 1])) == ["", "C"]


@pytest.mark.parametrize(
    ("said", "recognised", "expected"),
    [
        ("G L E N N", "G L E N N", Errors(0, 5, 0, 9)),
        ("ENTER SIX", "", Errors(2, 2, 9, 9)),
        ("", "OH", Errors(1, 0, 2, 0)),
        ("ENTER SIX TWO", "ENTER TWO", Errors(1, 3, 4, 13)),  # a word left out
        ("ENTER SIX TWO", "ENTER FIX TWO", Errors(1, 3, 1, 13)),  # one mistaken
        ("ENTER SIX", "EN TER SIX", Errors(2, 2, 1, 9)),  # one taken for two
        ("ONE TWO", "TWO ONE", Errors(2, 2, 6, 7)),
    ],
)
def test_edits_of_words_and_characters_are_counted(said, recognised, expected):
    assert errors(said, recognised) == expected


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


def test_a_frame_hears_the_past_and_a_little_of_the_future():
    model = small().eval()
    clip = torch.randn(1, 161, 200)
    later = clip.clone()
    later[:, :, 160:] = 0  # 80 frames of 20 ms on
    one, other = (model(x, torch.tensor([200]))[0][0] for x in (clip, later))
    reach = LOOKAHEAD + 5 + 3  # what convolutions see ahead, too
    assert torch.allclose(one[: 80 - reach], other[: 80 - reach], atol=1e-5)
    assert not torch.allclose(one[80 - LOOKAHEAD], other[80 - LOOKAHEAD], atol=1e-5)
