"""Speech recognition as a `Task`: clips to characters by connectionist temporal classification, and error rates."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss, log_softmax

from sparse_mpi.comm import Comm
from sparse_train.data import speech
from sparse_train.data.share import Epochs, Parts, Share, fingerprint, share_of
from sparse_train.data.speech import BINS, Clip, Speech, decode, encode, log_spectrogram
from sparse_train.models.language import SpeechLSTM
from sparse_train.options.arguments import Settings, Tiny
from sparse_train.tasks.task import Sums, seeded, sums

TEST_BATCH = 16  # clips evaluated at once; bounds memory only
LOADERS: dict[str, Callable[[Path], Speech]] = {
    "espeak": speech.load,
    "an4": speech.load_an4,
    "espeak-tiny": speech.load_few,
}
SYNTHETIC = "(synthetic, made by eSpeak NG)"
FOLDERS = {"espeak": SYNTHETIC, "an4": "data", "espeak-tiny": SYNTHETIC}
# Li and Hoefler, Ok-Topk, PPoPP 2022: 32 ranks; their program clips the mean, and has no Nesterov momentum
PUBLISHED = Settings(
    density=0.02,
    epochs=161,
    batch_size=2,
    lr=1e-3,
    weight_decay=1e-4,
    schedule="exponential",
    decay=1 / 1.01,
    clip_norm=400,
)
SETTINGS = {name: PUBLISHED for name in ("espeak", "an4")}
TINY = Tiny("espeak-tiny", Settings(density=0.02, epochs=6, batch_size=2, lr=1e-3, clip_norm=400))


class Errors(NamedTuple):
    wrong_words: int
    words: int  # said
    wrong_characters: int
    characters: int  # said, with the spaces between words


def errors(said: str, recognised: str) -> Errors:
    """Count the errors in ``recognised``; both texts have single spaces between words."""
    words = said.split()
    return Errors(distance(words, recognised.split()), len(words), distance(said, recognised), len(said))


def distance(first: Sequence[str], second: Sequence[str]) -> int:
    row = list(range(len(second) + 1))  # distances from the first i of one to the first j of the other
    for i, mine in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (mine != other))
    return row[-1]


class Batch(NamedTuple):
    spectrograms: Tensor  # (B, BINS, T) float32, zeros after the end of a clip
    frames: Tensor  # (B,) int64, of each clip
    characters: Tensor  # (sum of lengths,) int64, the codes of all texts one after the other
    lengths: Tensor  # (B,) int64, of the texts

    @property
    def on_host(self) -> tuple[str, ...]:
        return "frames", "lengths"


class SpeechTask:
    """A recogniser and this rank's share of the clips; see `task.Task`.

    Args:
        model: see `SpeechLSTM`.
        speech: the whole data set, the same on all ranks.
        seed: seed of the order; the same on all ranks.
    """

    items = "clips"
    headline = "wer"

    def __init__(self, model: nn.Module, speech: Speech, batch_size: int, share: Share, seed: int) -> None:
        self.model, self._speech, self.share = model, speech, share
        seconds = np.array([len(clip.samples) / clip.rate for clip in speech.train])
        ranks = share.ranks
        self._epochs = Epochs(lambda epoch: buckets(seconds, batch_size, ranks, seed, epoch), share)
        self.steps = self._epochs.steps
        lengths = np.array([len(clip.samples) for clip in speech.train])
        self.fingerprint = fingerprint((clip.text for clip in speech.train), lengths)

    def train(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for positions in self._epochs.train(epoch, first):
            yield collate([self._speech.train[i] for i in positions])

    def test(self) -> Iterator[Batch]:
        by_length = sorted(self._speech.test, key=lambda clip: len(clip.samples) / clip.rate)
        for positions in self._epochs.test(len(by_length), TEST_BATCH):
            yield collate([by_length[i] for i in positions])

    def forward_and_loss(self, batch: Batch) -> tuple[Tensor, Sums]:
        """Return the mean over clips of the negative log likelihood of their texts, and the sums for `scores`.

        The sums are of clips, loss, wrong words, words, wrong characters, characters; training leaves the last four 0.
        """
        logits, frames = self.model(batch.spectrograms, batch.frames)
        likelihoods = log_softmax(logits.float(), 2).transpose(0, 1)
        total = ctc_loss(likelihoods, batch.characters, frames, batch.lengths, reduction="sum", zero_infinity=True)
        wrong = np.zeros(4)
        if not self.model.training:
            said = map(decode, np.split(batch.characters.cpu().numpy(), batch.lengths.cumsum(0)[:-1]))
            wrong = np.sum([errors(*texts) for texts in zip(said, recognise(logits, frames), strict=True)], axis=0)
        return total / len(frames), sums(total.device, len(frames), total, *wrong.tolist())

    def scores(self, sums: Sums) -> dict[str, float]:
        clips, loss, wrong_words, words, wrong_characters, characters = sums.tolist()
        return {
            "loss": loss / clips,
            "wer": wrong_words / words if words else math.nan,
            "cer": wrong_characters / characters if characters else math.nan,
        }


def speech_task(args: Namespace, comm: Comm) -> SpeechTask:
    speech = LOADERS[args.data](args.data_dir)
    shape = {"channels": 8, "convolutions": 1, "hidden": 64, "layers": 2} if args.tiny else {}
    model = seeded(args, lambda: SpeechLSTM(**shape))
    return SpeechTask(model, speech, args.batch_size, share_of(args, comm), args.seed)


def buckets(seconds: np.ndarray, batch_size: int, size: int, seed: int, epoch: int) -> list[Parts]:
    """Return the positions of the clips that each of ``size`` ranks trains on in each step of an epoch.

    A step has clips of similar length, so that little is padding and no rank waits for another: clips are sorted and
    cut into equal steps. The first epoch goes from short to long (SortaGrad of DeepSpeech 2); later ones shuffle the
    steps, and the clips within each. All ranks draw the same and see each clip once, in the same number of steps. A
    batch has ``batch_size`` clips, or a few more where their number is no multiple. Raises ValueError: fewer clips than
    ranks.
    """
    if len(seconds) < size:
        raise ValueError(f"{len(seconds)} training clips are too few for {size} ranks: each needs at least 1")
    steps = np.array_split(np.argsort(seconds, kind="stable"), max(1, len(seconds) // (batch_size * size)))
    if epoch:
        rng = np.random.default_rng((seed, epoch))
        steps = [rng.permutation(steps[i]) for i in rng.permutation(len(steps))]
    return [np.array_split(step, size) for step in steps]


def collate(clips: Sequence[Clip]) -> Batch:
    """Return the spectrograms of ``clips``, padded to the longest, and their texts, as a batch."""
    spectrograms = [log_spectrogram(clip.samples, clip.rate) for clip in clips]
    frames = [spectrogram.shape[1] for spectrogram in spectrograms]
    padded = np.zeros((len(clips), BINS, max(frames)), np.float32)
    for place, spectrogram in zip(padded, spectrograms, strict=True):
        place[:, : spectrogram.shape[1]] = spectrogram
    characters = np.concatenate([encode(clip.text) for clip in clips])
    lengths = [len(clip.text) for clip in clips]
    return Batch(*map(torch.from_numpy, (padded, np.array(frames), characters, np.array(lengths))))


def recognise(logits: Tensor, frames: Tensor) -> list[str]:
    """Return texts of logits ``(B, T, characters)``: the likeliest of every frame, without repetitions and blanks."""
    best = logits.argmax(2).cpu().numpy()
    texts = []
    for codes, length in zip(best, frames.tolist(), strict=True):
        codes = codes[:length]
        starts = np.diff(codes, prepend=-1) != 0
        texts.append(decode(codes[starts & (codes != 0)]))
    return texts
