"""BERT's pre-training: predict masked words, and whether the second half of a text follows the first.

Devlin and others, BERT, NAACL 2019.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparse_mpi.comm import Comm
from sparse_train.data.corpus import Corpus, is_test
from sparse_train.data.share import fingerprint, share_of, shuffled
from sparse_train.data.vocabulary import WordPiece
from sparse_train.tasks.task import MAX_LOSS, Sums, sums

CHOSEN = 0.15  # share of the pieces of a text that are to be predicted; at least one
MASKED, REPLACED = 0.8, 0.1  # shares of these that are masked, and replaced by any piece; the rest stay as they are
FRAME = 3  # special tokens around and between the two halves
TEST_BATCH = 32  # sequences evaluated at once; bounds memory only
TEST = 2**32 - 1  # stands in place of a seed where test texts are masked


class Example(NamedTuple):
    tokens: np.ndarray  # (T,) int64
    halves: np.ndarray  # (T,) int64: 0 up to the first [SEP], 1 after it
    targets: np.ndarray  # (T,) int64: the original token where it is to be predicted, -1 elsewhere
    other: bool  # True: the second half is from another document


class Masked(NamedTuple):
    tokens: Tensor  # (B, S) int64
    halves: Tensor  # (B, S) int64
    attended: Tensor  # (B, S) int64: 1 where there is a token
    places: Tensor  # (M,) int64, in ascending order: where tokens are to be predicted, among the B x S
    targets: Tensor  # (M,) int64: the original ones
    other: Tensor  # (B,) int64


class Examples:
    """The examples from the runs of a corpus.

    Args:
        corpus: runs of at most ``length`` less `FRAME` pieces.
        wordpiece: numbers their pieces.
        length: tokens in a batch's sequence.
    """

    def __init__(self, corpus: Corpus, wordpiece: WordPiece, length: int) -> None:
        self._corpus, self._wordpiece, self._length = corpus, wordpiece, length
        test = is_test(corpus.document)
        self.train, self.test = np.flatnonzero(~test), np.flatnonzero(test)  # the numbers of their runs
        # The order of the pieces depends on the number of ranks, and the runs on the length: both may change in a run
        self.fingerprint = fingerprint(wordpiece.vocabulary, np.array(len(corpus.pieces)))

    def example(self, run: int, rng: np.random.Generator) -> Example:
        """Make an example of a run; ``rng`` cuts and masks it, and replaces its second half half of the time."""
        special = self._wordpiece
        pieces = self._corpus.run(run).astype(np.int64)
        quarter = len(pieces) // 4
        cut = int(rng.integers(quarter, len(pieces) - quarter))
        first, second = pieces[:cut], pieces[cut:]
        other = bool(rng.random() < 0.5)
        if other:
            second = self._elsewhere(run, rng)[-len(second) :].astype(np.int64)
        tokens = np.concatenate([[special.cls], first, [special.sep], second, [special.sep]])
        targets = np.full(len(tokens), -1)
        inner = np.delete(np.arange(1, len(tokens) - 1), len(first))
        chosen = rng.choice(inner, max(1, round(CHOSEN * len(inner))), replace=False)
        targets[chosen] = tokens[chosen]
        fate = rng.random(len(chosen))
        tokens[chosen[fate < MASKED]] = special.mask
        replaced = chosen[(fate >= MASKED) & (fate < MASKED + REPLACED)]
        tokens[replaced] = rng.integers(0, len(special.vocabulary), len(replaced))
        return Example(tokens, np.repeat([0, 1], [len(first) + 2, len(second) + 1]), targets, other)

    def _elsewhere(self, run: int, rng: np.random.Generator) -> np.ndarray:
        document = self._corpus.document
        part = self.test if is_test(document[run]) else self.train
        while document[found := part[rng.integers(len(part))]] == document[run]:
            pass
        return self._corpus.run(found)

    def batch(self, examples: list[Example]) -> Masked:
        tokens, halves, targets = (
            np.full((len(examples), self._length), fill) for fill in (self._wordpiece.pad, 0, -1)
        )
        attended = np.zeros_like(tokens)
        for row, example in enumerate(examples):
            here = row, slice(len(example.tokens))
            tokens[here], halves[here], targets[here], attended[here] = *example[:3], 1
        other = np.array([example.other for example in examples], np.int64)
        places = np.flatnonzero(targets >= 0)
        arrays = tokens, halves, attended, places, targets.reshape(-1)[places], other
        return Masked(*map(torch.from_numpy, arrays))


class Pretraining:
    """The task of BERT's pre-training.

    Args:
        model: a ``BertForPreTraining``.
        examples: examples of the whole corpus, the same on all ranks.

    Raises ValueError: fewer than 2 sequences a rank.
    """

    items = "sequences"
    headline = "perplexity"

    def __init__(self, model: Any, examples: Examples, args: Namespace, comm: Comm) -> None:
        self.model: nn.Module = model
        self._bert, self._examples, self._args, self.share = model, examples, args, share_of(args, comm)
        self._epochs = shuffled(len(examples.train), args.batch_size, self.share, args.seed)
        self.steps, self.fingerprint = self._epochs.steps, examples.fingerprint

    def train(self, epoch: int, first: int = 0) -> Iterator[Masked]:
        make = self._examples
        for step, positions in enumerate(self._epochs.train(epoch, first), first):
            # 0, 0 would be the shards' stream
            rng = np.random.default_rng((self._args.seed, epoch, step, self.share.rank + 1))
            yield make.batch([make.example(run, rng) for run in make.train[positions]])

    def test(self) -> Iterator[Masked]:
        make = self._examples
        for positions in self._epochs.test(len(make.test), TEST_BATCH):
            runs = make.test[positions]
            yield make.batch([make.example(run, np.random.default_rng((TEST, run))) for run in runs])

    def forward_and_loss(self, batch: Masked) -> tuple[Tensor, Sums]:
        """Return the sum of two mean losses, of masked pieces and of second halves, and the sums for `scores`."""
        bert, head = self._bert.bert, self._bert.cls
        found = bert(batch.tokens, attention_mask=batch.attended, token_type_ids=batch.halves)
        targets = batch.targets
        predicted = head.predictions(found.last_hidden_state.flatten(0, 1)[batch.places])
        follows = head.seq_relationship(found.pooler_output)
        losses = cross_entropy(predicted, targets), cross_entropy(follows, batch.other)
        count, tokens = len(batch.other), len(targets)
        measured = sums(
            targets.device,
            count,
            tokens,
            losses[0].detach().double() * tokens,
            (predicted.argmax(1) == targets).sum(),
            losses[1].detach().double() * count,
            (follows.argmax(1) == batch.other).sum(),
        )
        return losses[0] + losses[1], measured

    def scores(self, sums: Sums) -> dict[str, float]:
        count, tokens, masked, right, following, right_order = sums.tolist()
        return {
            "loss": masked / tokens + following / count,
            "perplexity": math.exp(min(masked / tokens, MAX_LOSS)),
            "accuracy": right / tokens,
            "order_accuracy": right_order / count,
        }
