"""Language modelling: a text as blocks of tokens, of which a model predicts each from the tokens before it.

Perplexities are per token: they compare between models of the same vocabulary only.

The task of LSTMs departs from published code in one point: blocks are shuffled and each begins with a zero state, where
that code reads on and carries the state from block to block. A batch is so a function of epoch and step alone, and a
resumed run goes on to the bit; the first words of every block are harder to predict.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparse_mpi.cli.values import integer
from sparse_mpi.comm import Comm
from sparse_mpi.comm.consistency import tell
from sparse_train.data.corpus import TEXTS, Text
from sparse_train.data.share import fingerprint, share_of, shuffled
from sparse_train.data.vocabulary import BYTES, BytePairs, Bytes, Vocabulary, Words, train_byte_pairs
from sparse_train.models.language import WordLSTM
from sparse_train.options.arguments import Settings
from sparse_train.ranks.job import agreed
from sparse_train.tasks.task import MAX_LOSS, Sums, seeded, sums

TINY_TEXT = 100_000  # characters to train on with --tiny
Batch = tuple[Tensor, Tensor]  # tokens and their successors, (B, block) int64 both
Choose = Callable[[Text, int, Namespace, Comm], Vocabulary]  # makes a vocabulary of at most this number of tokens
Build = Callable[[int], nn.Module]  # builds a model for a vocabulary of this number of tokens
LSTM_BLOCK, LSTM_WORDS = 70, 33_278  # bptt, and the vocabulary of WikiText-2
LSTM_SETTINGS = {
    # Ours
    "python-reference": Settings(epochs=20, batch_size=16, lr=2e-3, warmup_epochs=1, optimizer="adam"),
    "shakespeare": Settings(epochs=10, batch_size=32, lr=2e-3, warmup_epochs=0.2, optimizer="adam"),
    # ADTopk, HPDC 2024; the number of epochs is ours
    "wikitext-2": Settings(epochs=40, batch_size=80, lr=1e-3, lr_times_ranks=True, optimizer="adam", clip_norm=0.1),
}
LSTM_SETTINGS["ptb"] = LSTM_SETTINGS["wikitext-2"]


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    block: int  # tokens
    vocabulary: int  # tokens, at most


class LanguageTask:
    """A `task.Task` with a causal model: logits (B, T, vocabulary) for tokens (B, T) int64 predict the next tokens.

    Args:
        train, test: tokens, (any,) int32, the same on all ranks; the rest after the last whole block is unused.
        block: tokens that the model sees at a time, and predicts from them.
        args: see `program.Program.parse`; of which batch_size, in blocks a step on each rank, and seed.

    Raises ValueError: too few blocks.
    """

    items = "tokens"
    headline = "perplexity"

    def __init__(
        self, model: nn.Module, train: np.ndarray, test: np.ndarray, block: int, args: Namespace, comm: Comm
    ) -> None:
        self.model = model
        self._train, self._test, self._block = train, test, block
        self._batch_size, self.share = args.batch_size, share_of(args, comm)
        for name, tokens, least in (("training", train, 2 * self.share.ranks), ("test", test, 1)):
            if self._blocks(tokens) < least:
                raise ValueError(
                    f"block must leave at least {least} blocks of the {name} text for {self.share.ranks} ranks, but "
                    f"{block} leaves {self._blocks(tokens)} of its {len(tokens)} tokens; take a smaller --block"
                )
        self._epochs = shuffled(self._blocks(train), args.batch_size, self.share, args.seed)
        self.steps, self.fingerprint = self._epochs.steps, fingerprint((), train)

    def train(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for positions in self._epochs.train(epoch, first):
            yield self._take(self._train, positions)

    def test(self) -> Iterator[Batch]:
        for positions in self._epochs.test(self._blocks(self._test), self._batch_size):
            yield self._take(self._test, positions)

    def forward_and_loss(self, batch: Batch) -> tuple[Tensor, Sums]:
        """Return the mean cross entropy of the next tokens, and sums ``(2,)`` of tokens and cross entropy."""
        tokens, following = batch
        loss = cross_entropy(self.model(tokens).flatten(0, 1), following.flatten())
        return loss, sums(loss.device, 1.0, loss.detach().double()) * following.numel()

    def scores(self, sums: Sums) -> dict[str, float]:
        tokens, total = sums.tolist()
        loss = total / tokens
        return {"loss": loss, "perplexity": math.inf if loss > MAX_LOSS else math.exp(loss)}

    def _blocks(self, tokens: np.ndarray) -> int:
        return (len(tokens) - 1) // self._block

    def _take(self, tokens: np.ndarray, positions: np.ndarray) -> Batch:
        places = positions[:, None] * self._block + np.arange(self._block + 1)
        chosen = torch.from_numpy(tokens[places].astype(np.int64))
        return chosen[:, :-1], chosen[:, 1:]


def language_task(args: Namespace, comm: Comm, block: int, most: int, choose: Choose, build: Build) -> LanguageTask:
    """Read the text of ``args``, the beginning of it with --tiny, and make a task of it.

    Raises JobError: on all ranks, when files, values or packages are missing on any.
    """
    text = agreed(comm, lambda: TEXTS[args.data].load(args.data_dir))
    if args.tiny:
        text = Text(text.train[:TINY_TEXT], text.test[: TINY_TEXT // 10])
    vocabulary = choose(text, most, args, comm)
    train, test = vocabulary.encode(text.train), vocabulary.encode(text.test)
    model = seeded(args, lambda: build(vocabulary.size))
    return LanguageTask(model, train, test, block, args, comm)


def check_vocabulary(args: Namespace) -> None:
    if args.tiny and args.vocabulary not in (None, BYTES):
        raise ValueError(
            f"--vocabulary: {args.vocabulary} has no effect with --tiny, whose tokens are the {BYTES} bytes; leave it "
            "out"
        )


def words(text: Text, most: int, args: Namespace, comm: Comm) -> Vocabulary:
    return Bytes() if args.tiny else Words(text.train, most, TEXTS[args.data].words)


def byte_pairs(text: Text, most: int, args: Namespace, comm: Comm) -> Vocabulary:
    """Return at most ``most`` byte pairs of the training text; with 256 it is the bytes.

    Rank 0 finds the pairs and sends them to the others: the tokenizer does not promise that all would find the same.
    """
    if most == BYTES:
        return Bytes()
    found = agreed(comm, lambda: train_byte_pairs(text.train, most) if comm.rank == 0 else "")
    received = tell(comm, found)
    return agreed(comm, lambda: BytePairs(received))


def shape_options(parser: ArgumentParser, shapes: Mapping[str, Shape]) -> None:
    texts = {
        "layers": "layers of the model",
        "width": "width of its layers, a multiple of the heads",
        "heads": "heads of its attention",
        "block": "tokens it sees at a time",
        "vocabulary": "most tokens of the vocabulary",
    }
    group = parser.add_argument_group("model")
    for name, text in texts.items():
        defaults = ", ".join(f"{data} {getattr(shape, name)}" for data, shape in shapes.items())
        group.add_argument(f"--{name}", type=integer(1), metavar="N", help=f"{text} (default: {defaults})")


def shape_of(args: Namespace, shape: Shape) -> Shape:
    """Return ``shape`` with the values that the options of `shape_options` give.

    Raises ValueError: the width cannot be split among the heads.
    """
    shape = shape._replace(**{name: value for name in Shape._fields if (value := getattr(args, name)) is not None})
    if shape.width % shape.heads:
        raise ValueError(
            f"width must be a multiple of the {shape.heads} heads, got {shape.width}; "
            f"{shape.heads * max(1, round(shape.width / shape.heads))} is"
        )
    return shape


def extend_lstm(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("language model").add_argument
    add("--block", type=integer(1), default=LSTM_BLOCK, metavar="N", help=f"words at a time (default: {LSTM_BLOCK})")
    text = f"most words of the vocabulary (default: {LSTM_WORDS:,})"
    add("--vocabulary", type=integer(2), metavar="N", help=text)
    add("--tied", action="store_true", help="use the weights of the embedding for the output too")


def lstm_language_task(args: Namespace, comm: Comm) -> LanguageTask:
    """Make the task of words and an LSTM of 2 layers of 500 as ADTopk has it; with --tiny, of bytes and one of 64.

    Raises JobError: on all ranks, when the text is missing on any; ValueError: the text is too short, or an option has
    no effect.
    """
    width, dropout = (64, 0.0) if args.tiny else (500, 0.5)

    def build(tokens: int) -> WordLSTM:
        return WordLSTM(tokens, width, 2, dropout, args.tied)

    return language_task(args, comm, args.block, args.vocabulary or LSTM_WORDS, words, build)
