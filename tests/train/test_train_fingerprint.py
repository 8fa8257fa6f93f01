"""A run is told from one on other data by a few characters, whatever number of ranks it has."""

from __future__ import annotations

from argparse import Namespace
from functools import cache

import numpy as np
import pytest
from torch import nn

from sparse_mpi import World
from sparse_mpi.comm import NullComm
from sparse_train.data.corpus import documents, encoded, gathered
from sparse_train.data.questions import Answer, Question
from sparse_train.data.share import Share, fingerprint
from sparse_train.data.speech import Clip, Speech
from sparse_train.data.vocabulary import WordPiece, train_pieces
from sparse_train.tasks.language import LanguageTask
from sparse_train.tasks.masked import Examples, Pretraining
from sparse_train.tasks.speech import SpeechTask
from sparse_train.tasks.squad import Answering, Windows

TEXTS = documents()[:45]
ARGS = Namespace(batch_size=2, seed=1, spares=0)
MODEL = nn.Identity()


@cache
def vocabulary():
    return train_pieces([text for _, text in TEXTS], 300)


def test_texts_and_numbers_count_and_where_a_text_ends():
    numbers = np.arange(5)
    one = fingerprint(["ab", "c"], numbers)
    assert one == fingerprint(iter(["ab", "c"]), numbers.repeat(2)[::2]) and len(one) == 16
    others = [fingerprint(texts, numbers) for texts in (["a", "bc"], ["abc"], ["c", "ab"], ["ab", "č"], [])]
    assert len({one, *others, fingerprint(["ab", "c"], numbers[:4]), fingerprint(["ab", "c"], -numbers)}) == 8


def language(tokens, block=4):
    return LanguageTask(MODEL, tokens, tokens, block, ARGS, NullComm()).fingerprint


def test_the_tokens_of_a_text_count():
    tokens = np.arange(99, dtype=np.int32)
    assert language(tokens) == language(tokens.copy(), block=8)  # a longer block goes on where a shorter stopped
    assert len({language(tokens), language(tokens[:98]), language(tokens[::-1])}) == 3


def pretraining(pieces=None, texts=TEXTS, longest=61, size=1):
    def one(comm):
        special = WordPiece(pieces or vocabulary())
        corpus = gathered(*encoded(texts, special, comm), longest, comm)
        return Pretraining(MODEL, Examples(corpus, special, longest + 3), ARGS, comm).fingerprint

    (found,) = set(World(size).run(one))
    return found


@pytest.mark.parametrize("change", [{"size": 3}, {"longest": 29}])
def test_a_corpus_is_the_same_for_other_ranks_and_lengths(change):
    assert pretraining(**change) == pretraining()


def test_the_vocabulary_and_the_pieces_of_a_corpus_count():
    *first, last_but_one, last = vocabulary()
    changed = [{"pieces": [*first, last, last_but_one]}, {"texts": TEXTS[:-1]}]
    assert len({pretraining(), *(pretraining(**change) for change in changed)}) == 3


def answering(pieces=None, context="The what of a thing is a number of things.", text="Which what?"):
    questions = [Question(f"q{n}", f"{text} {n}", context, (Answer("number", 24),)) for n in range(4)]
    read = Windows(questions, WordPiece(pieces or vocabulary()), 64, 8, 24)
    return Answering(MODEL, read, read, ARGS, NullComm()).fingerprint


def test_vocabulary_questions_and_contexts_count():
    changed = [{"pieces": vocabulary()[:-1]}, {"context": "The what of a number."}, {"text": "What?"}]
    assert answering() == answering()
    assert len({answering(), *(answering(**change) for change in changed)}) == 4


def speech(count=3, length=800, text="AB", rank=0):
    clip = Clip(np.zeros(length, np.int16), 8000, text)
    return SpeechTask(MODEL, Speech((clip,) * count, (clip,)), 2, Share(rank, 2), seed=1).fingerprint


def test_clips_and_what_is_said_in_them_count():
    changed = [{"count": 4}, {"length": 801}, {"text": "AC"}]
    assert speech() == speech(rank=1)
    assert len({speech(), *(speech(**change) for change in changed)}) == 4
