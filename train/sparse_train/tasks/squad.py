"""Answering questions by a span of a text, judged as SQuAD v1.1 is: by exact matches and F1 of words.

Rajpurkar and others, SQuAD, EMNLP 2016.
"""

from __future__ import annotations

import math
import re
import string
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparse_mpi.comm import Comm
from sparse_train.data.batches import shard
from sparse_train.data.share import Parts, share_of
from sparse_train.tasks.task import Sums, sums
from sparse_train.tasks.windows import Read, Window, Windows

TEST_BATCH = 32  # windows evaluated at once, or a few more: bounds memory only
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class Answering:
    """The task of answering questions.

    Args:
        model: a ``BertForQuestionAnswering``.
        train, test: all windows, the same on all ranks.
        args: see `arguments.parse`.
        comm: between the ranks.

    Raises:
        ValueError: fewer than 2 training windows a rank.
    """

    items = "windows"
    headline = "f1"

    def __init__(self, model: Any, train: Windows, test: Windows, args: Namespace, comm: Comm) -> None:
        self.model: nn.Module = model
        self._train, self._test, self._args, self.share = train, test, args, share_of(args, comm)
        self.steps, self.fingerprint = len(self._shard(0)), train.fingerprint

    def _shard(self, epoch: int) -> list[Parts]:
        return shard(len(self._train.all), self._args.batch_size, self.share.ranks, self._args.seed, epoch)

    def train(self, epoch: int, first: int = 0) -> Iterator[Read]:
        """Yield training batches of windows, see `task.Task`."""
        for positions in self.share.take(self._shard(epoch), epoch, first):
            yield self._train.batch([self._train.all[position] for position in positions])

    def test(self) -> Iterator[Read]:
        """Yield test batches; all windows of a question are in one batch."""
        batch: list[Window] = []
        for number, windows in groupby(self._test.all, lambda window: window.question):
            if number % self.share.places == self.share.place:
                batch += windows
            if len(batch) >= TEST_BATCH:
                yield self._test.batch(batch)
                batch = []
        if batch:
            yield self._test.batch(batch)

    def judge(self, batch: Read) -> tuple[Tensor, Sums]:
        """Return the mean loss of the spans, and the sums for `scores`.

        Answers are judged only in evaluation: a training batch has single windows of questions.
        """
        found = self.model(batch.tokens, attention_mask=batch.attended, token_type_ids=batch.parts)
        starts, ends = found.start_logits, found.end_logits
        loss = (cross_entropy(starts, batch.starts) + cross_entropy(ends, batch.ends)) / 2
        count = len(batch.windows)
        judged = (0.0, 0.0, 0.0)
        if not self.model.training:
            judged = self._answers(batch, *(scores.detach().float().cpu().numpy() for scores in (starts, ends)))
        return loss, sums(loss.device, count, loss.detach().double() * count, *judged)

    def _answers(self, batch: Read, starts: np.ndarray, ends: np.ndarray) -> tuple[float, float, float]:
        """Return the number of questions, and the sums of their F1 and of their exact matches."""
        spans = [self._test.best(*found) for found in zip(batch.windows, starts, ends, strict=True)]
        answers: dict[int, tuple[float, str]] = {}
        for window, span in zip(batch.windows, spans, strict=True):
            answers[window.question] = max(span, answers.get(window.question, span), key=lambda one: one[0])
        overlap = matches = 0.0
        for question, (_, text) in answers.items():
            given = [answer.text for answer in self._test.questions[question].answers]
            overlap += best_of(f1, text, given)
            matches += best_of(exact, text, given)
        return len(answers), overlap, matches

    def scores(self, sums: Sums) -> dict[str, float]:
        """Return the loss of the windows, and F1 and exact matches of the questions, in [0, 1] and NaN in training."""
        windows, loss, questions, overlap, matches = sums.tolist()
        each = 1 / questions if questions else math.nan
        return {"loss": loss / windows, "f1": overlap * each, "exact": matches * each}


def best_of(measure: Callable[[str, str], float], answer: str, given: list[str]) -> float:
    """Return the greatest ``measure`` of ``answer`` against any of the answers that people have given."""
    return max(measure(answer, one) for one in given)


def words(text: str) -> list[str]:
    """Return the words by which answers are compared: in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def exact(answer: str, given: str) -> float:
    """Return 1 if the words are the same, 0 otherwise."""
    return float(words(answer) == words(given))


def f1(answer: str, given: str) -> float:
    """Return the harmonic mean of precision and recall of the words, 0 if they have none in common."""
    mine, theirs = words(answer), words(given)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs)) if common else 0.0
