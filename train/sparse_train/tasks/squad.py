"""Answering questions with BERT, measured as SQuAD v1.1 is: by exact matches and F1 of words.

A model reads a window, a question and a part of its context: ``[CLS] question [SEP] part of the context [SEP]``. One
that does not hold the whole answer is labelled with ``[CLS]``, its first token. Rajpurkar and others, EMNLP 2016.
"""

from __future__ import annotations

import math
import re
import string
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparse_mpi.comm import Comm
from sparse_train.data.questions import Question
from sparse_train.data.share import fingerprint, share_of, shuffled
from sparse_train.data.vocabulary import Pieces, WordPiece
from sparse_train.tasks.task import Sums, sums

FRAME = 3  # special tokens of a window
MAX_ANSWER_TOKENS = 30
TEST_BATCH = 32  # windows evaluated at once, or a few more: bounds memory only
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class Window(NamedTuple):
    question: int
    first: int


class Read(NamedTuple):
    tokens: Tensor  # (B, S) int64
    parts: Tensor  # (B, S) int64: 0 up to the first [SEP], 1 after it
    attended: Tensor  # (B, S) int64: 1 where there is a token
    starts: Tensor  # (B,) int64: the token with which the answer begins, 0 where there is none
    ends: Tensor  # (B,) int64: the one with which it ends
    windows: list[Window]


class Windows:
    """All windows of some questions, in the order of these.

    Args:
        questions: one question at least.
        wordpiece: cuts them into pieces.
        length: tokens in a window.
        stride: pieces from the beginning of a window to the next one's.
        asked: pieces of a question at most; a longer one is cut off.

    Raises ValueError: ``length`` and ``asked`` leave no room for ``stride`` pieces of a context.
    """

    def __init__(
        self, questions: Sequence[Question], wordpiece: WordPiece, length: int, stride: int, asked: int
    ) -> None:
        if length - FRAME - asked < stride:
            raise ValueError(
                f"--stride must be at most {length - FRAME - asked}, the rest of {length} tokens of --sequence "
                f"beside a question, got {stride}; contexts would have gaps"
            )
        self.questions, self._wordpiece, self._length = questions, wordpiece, length
        self._asked = [pieces.ids[:asked] for pieces in wordpiece.encode([q.text for q in questions])]
        contexts = list(dict.fromkeys(question.context for question in questions))
        read = dict(zip(contexts, wordpiece.encode(contexts), strict=True))
        self._contexts = [read[question.context] for question in questions]
        lengths = np.array([len(context.ids) for context in self._contexts])
        self.fingerprint = fingerprint([*wordpiece.vocabulary, *(question.text for question in questions)], lengths)
        self.all = [
            Window(number, first)
            for number, context in enumerate(self._contexts)
            for first in range(0, max(1, len(context.ids) - self._room(number) + stride), stride)
        ]

    def _room(self, question: int) -> int:
        return self._length - FRAME - len(self._asked[question])

    def batch(self, windows: Sequence[Window]) -> Read:
        tokens = np.full((len(windows), self._length), self._wordpiece.pad, np.int64)
        parts, attended = np.zeros_like(tokens), np.zeros_like(tokens)
        labels = np.zeros((2, len(windows)), np.int64)
        special = self._wordpiece
        for row, window in enumerate(windows):
            asked, context = self._asked[window.question], self._part(window)
            shown = np.concatenate([[special.cls], asked, [special.sep], context.ids, [special.sep]])
            tokens[row, : len(shown)], attended[row, : len(shown)] = shown, 1
            parts[row, len(asked) + 2 : len(shown)] = 1
            labels[:, row] = self._label(window)
        tensor = torch.from_numpy
        return Read(
            tensor(tokens), tensor(parts), tensor(attended), tensor(labels[0]), tensor(labels[1]), list(windows)
        )

    def _part(self, window: Window) -> Pieces:
        context, until = self._contexts[window.question], window.first + self._room(window.question)
        return Pieces(context.ids[window.first : until], context.spans[window.first : until])

    def _label(self, window: Window) -> tuple[int, int]:
        answer = self.questions[window.question].answers[0]
        spans = self._contexts[window.question].spans
        start = int(np.searchsorted(spans[:, 1], answer.start, side="right")) - window.first
        end = int(np.searchsorted(spans[:, 0], answer.start + len(answer.text))) - 1 - window.first
        if not 0 <= start <= end < len(self._part(window).ids):
            return 0, 0
        before = len(self._asked[window.question]) + 2
        return start + before, end + before

    def best(self, window: Window, starts: np.ndarray, ends: np.ndarray) -> tuple[float, str]:
        """Return the greatest sum of a start and an end score, and the text of that span of the context.

        Scores ``(S,)`` are of the window's tokens. Spans of more than `MAX_ANSWER_TOKENS` tokens are left out.
        """
        spans, before = self._part(window).spans, len(self._asked[window.question]) + 2
        if not len(spans):
            return -np.inf, ""
        inside = slice(before, before + len(spans))
        sums = starts[inside, None] + ends[None, inside]
        length = np.arange(len(spans)) - np.arange(len(spans))[:, None]  # length of a span, less one
        start, end = divmod(
            int(np.where((length >= 0) & (length < MAX_ANSWER_TOKENS), sums, -np.inf).argmax()), len(spans)
        )
        text = self.questions[window.question].context[spans[start, 0] : spans[end, 1]]
        return float(sums[start, end]), text


class Answering:
    """The task of answering questions.

    Args:
        model: a ``BertForQuestionAnswering``.
        train, test: all windows, the same on all ranks.

    Raises ValueError: fewer than 2 training windows a rank.
    """

    items = "windows"
    headline = "f1"

    def __init__(self, model: Any, train: Windows, test: Windows, args: Namespace, comm: Comm) -> None:
        self.model: nn.Module = model
        self._train, self._test, self.share = train, test, share_of(args, comm)
        self._epochs = shuffled(len(train.all), args.batch_size, self.share, args.seed)
        self.steps, self.fingerprint = self._epochs.steps, train.fingerprint

    def train(self, epoch: int, first: int = 0) -> Iterator[Read]:
        for positions in self._epochs.train(epoch, first):
            yield self._train.batch([self._train.all[position] for position in positions])

    def test(self) -> Iterator[Read]:
        batch: list[Window] = []
        for number, windows in groupby(self._test.all, lambda window: window.question):
            if number % self.share.places == self.share.place:
                batch += windows
            if len(batch) >= TEST_BATCH:
                yield self._test.batch(batch)
                batch = []
        if batch:
            yield self._test.batch(batch)

    def forward_and_loss(self, batch: Read) -> tuple[Tensor, Sums]:
        """Return the mean loss of the spans, and the sums for `scores`.

        Answers are judged only in evaluation: a training batch has single windows of questions.
        """
        found = self.model(batch.tokens, attention_mask=batch.attended, token_type_ids=batch.parts)
        starts, ends = found.start_logits, found.end_logits
        loss = (cross_entropy(starts, batch.starts) + cross_entropy(ends, batch.ends)) / 2
        count = len(batch.windows)
        answers = (0.0, 0.0, 0.0)
        if not self.model.training:
            answers = self._answers(batch, *(scores.detach().float().cpu().numpy() for scores in (starts, ends)))
        return loss, sums(loss.device, count, loss.detach().double() * count, *answers)

    def _answers(self, batch: Read, starts: np.ndarray, ends: np.ndarray) -> tuple[float, float, float]:
        spans = [self._test.best(*found) for found in zip(batch.windows, starts, ends, strict=True)]
        answers: dict[int, tuple[float, str]] = {}
        for window, span in zip(batch.windows, spans, strict=True):
            answers[window.question] = max(span, answers.get(window.question, span), key=lambda one: one[0])
        overlap = matches = 0.0
        for question, (_, text) in answers.items():
            given = [answer.text for answer in self._test.questions[question].answers]
            overlap += max(f1(text, one) for one in given)
            matches += max(exact(text, one) for one in given)
        return len(answers), overlap, matches

    def scores(self, sums: Sums) -> dict[str, float]:
        windows, loss, questions, overlap, matches = sums.tolist()
        each = 1 / questions if questions else math.nan
        return {"loss": loss / windows, "f1": overlap * each, "exact": matches * each}


def words(text: str) -> list[str]:
    """Return the words by which answers are compared: in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def exact(answer: str, given: str) -> float:
    return float(words(answer) == words(given))


def f1(answer: str, given: str) -> float:
    mine, theirs = words(answer), words(given)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs)) if common else 0.0
