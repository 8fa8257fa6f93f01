"""Questions with their contexts as windows that a model can read at once, and the answers that are found in them.

The form is BERT's: ``[CLS] question [SEP] part of the context [SEP]``. A window that does not hold the whole answer is
labelled with ``[CLS]``, its first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparse_train.data.fingerprint import fingerprint
from sparse_train.data.squad import Question
from sparse_train.data.wordpiece import Pieces, WordPiece

FRAME = 3  # special tokens of a window
MAX_ANSWER_TOKENS = 30


class Window(NamedTuple):
    """A question and the part of its context that begins with piece ``first``."""

    question: int
    first: int


class Read(NamedTuple):
    """A batch of B windows, S tokens each with padding."""

    tokens: Tensor  # (B, S) int64
    parts: Tensor  # (B, S) int64: 0 up to the first [SEP], 1 after it
    attended: Tensor  # (B, S) int64: 1 where there is a token
    starts: Tensor  # (B,) int64: the token with which the answer begins, 0 where there is none
    ends: Tensor  # (B,) int64: the one with which it ends
    windows: list[Window]


class Windows:
    """All windows of some questions, in the order of these.

    Args:
        questions: at least one.
        wordpiece: what cuts them into pieces.
        length: of a window, in tokens.
        stride: pieces from the beginning of a window to that of the next.
        asked: pieces of a question at most; a longer one is cut off.

    Raises:
        ValueError: ``length`` and ``asked`` leave no room for ``stride`` pieces of a context.
    """

    def __init__(
        self, questions: Sequence[Question], wordpiece: WordPiece, length: int, stride: int, asked: int
    ) -> None:
        if length - FRAME - asked < stride:
            raise ValueError(
                f"--stride must be at most {length - FRAME - asked}, which is what {length} tokens of --sequence have "
                f"left beside a question, got {stride}; contexts would have gaps"
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
        """Return how many pieces of the context a window has room for."""
        return self._length - FRAME - len(self._asked[question])

    def batch(self, windows: Sequence[Window]) -> Read:
        """Return a batch of ``windows`` for a model to read."""
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
        """Return the tokens with which the first of the given answers begins and ends; 0, 0 if the window lacks it."""
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

        Spans of more than `MAX_ANSWER_TOKENS` tokens are left out.

        Args:
            window: what was read.
            starts: ``(S,)`` scores of its tokens as the first of the answer.
            ends: ``(S,)`` scores of its tokens as the last.
        """
        spans, before = self._part(window).spans, len(self._asked[window.question]) + 2
        if not len(spans):
            return -np.inf, ""
        inside = slice(before, before + len(spans))
        sums = starts[inside, None] + ends[None, inside]
        length = np.arange(len(spans)) - np.arange(len(spans))[:, None]  # of a span, less one
        start, end = divmod(
            int(np.where((length >= 0) & (length < MAX_ANSWER_TOKENS), sums, -np.inf).argmax()), len(spans)
        )
        text = self.questions[window.question].context[spans[start, 0] : spans[end, 1]]
        return float(sums[start, end]), text
