"""Documents are read and cut into pieces and runs alike for any number of ranks, and a few characters tell them apart.

Wikipedia as WikiExtractor writes it, and the Python reference, which says everything once: no test on a part of it asks
for what was learned by heart.
"""

from __future__ import annotations

import bz2
from argparse import Namespace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sparse_mpi import World
from sparse_mpi.comm import NullComm
from sparse_train.data import vocabulary
from sparse_train.data.corpus import SENTENCES, Document, documents, encoded, gathered, is_test, parts, training
from sparse_train.data.corpus import TEXTS as LANGUAGE
from sparse_train.data.corpus import wikipedia as read
from sparse_train.data.questions import Answer, Question
from sparse_train.data.share import Share, fingerprint
from sparse_train.data.speech import Clip, Speech
from sparse_train.data.vocabulary import SPECIAL, WordPiece, read_pieces, train_pieces
from sparse_train.tasks.language import LanguageTask
from sparse_train.tasks.masked import Examples, Pretraining
from sparse_train.tasks.speech import SpeechTask
from sparse_train.tasks.squad import Answering, Windows

from ..launch import ROOT, launch

TEXTS = documents()


@cache
def special():
    """Return what cuts texts into pieces of a vocabulary that is trained on all of them."""
    return WordPiece(train_pieces([text for _, text in TEXTS], 600))


CATS = ["the cat sat on the mat", "a cat and a rat sat", "that rat ran at the cat", "cats, rats and mats!"]


def test_a_vocabulary_has_special_tokens_characters_and_frequent_pieces():
    pieces = train_pieces(CATS, 60)
    assert pieces[:5] == list(SPECIAL) and len(pieces) == len(set(pieces)) <= 60
    assert {"cat", "the", "rat", "!", "##s"} <= set(pieces)
    assert "mats" not in pieces  # which is there but once


PRINTED = """from sparse_train.data import corpus, vocabulary
print(vocabulary.train_pieces([document.text for document in corpus.documents()[:30]], 4000))"""


@pytest.mark.full("starts a process for each of several hash seeds")
def test_a_vocabulary_is_the_same_in_every_process():
    """Hash tables of the trainer, seeded anew in each, must not decide which of equally frequent pieces come in."""
    runs = [launch(None, "-c", PRINTED, PYTHONPATH=f"{ROOT}:{ROOT}/train") for _ in range(3)]
    assert runs[0].stdout and not runs[0].returncode
    assert len({run.stdout for run in runs}) == 1


def test_rare_characters_have_no_piece(monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_ALPHABET", 4)
    pieces = set(train_pieces(["aaa bbb cc"] * 3 + ["aab x"], 60))
    assert {"a", "b", "c"} <= pieces and "x" not in pieces


def test_a_vocabulary_needs_room_for_the_characters():
    with pytest.raises(ValueError, match=r"all \d+ characters .* got 8"):
        train_pieces(CATS, 8)


def test_pieces_are_where_they_say_in_the_text():
    few = WordPiece(train_pieces([*CATS, "Café, naïve"], 80))
    text = "The café's  Rats!"
    found, empty = few.encode([text, ""])
    assert found.ids.dtype == found.spans.dtype == np.int32
    cut = [text[start:end] for start, end in found.spans]
    assert "".join(cut) == "".join(text.split()) and cut[0] == "The" and cut[-1] == "!"
    pieces = [few.vocabulary[number].removeprefix("##") for number in found.ids]
    known = [(piece, part) for piece, part in zip(pieces, cut, strict=True) if piece != "[UNK]"]
    assert ("the", "The") in known and all(len(piece) == len(part) for piece, part in known)
    assert empty.ids.shape == (0,) and empty.spans.shape == (0, 2)


def test_a_vocabulary_file_gives_every_piece_its_line(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[MASK]\ncat\n[UNK]\n[CLS]\n[SEP]\n##s\n", encoding="utf-8")
    few = WordPiece(read_pieces(path))
    assert (few.pad, few.mask, few.unknown, few.cls, few.sep) == (0, 1, 3, 4, 5)
    assert few.encode(["Cats dog"])[0].ids.tolist() == [2, 6, 3]


ARTICLES = [
    ("Anarchism", "Anarchism\n\nAnarchism is a political philosophy.\nIt is &lt;old&gt;.\n"),
    ('Rock &amp; "roll"', 'Rock &amp; "roll"\n\nA genre  of music.\n\nWith paragraphs.\n'),
    ("Empty", "Empty\n\n"),
]
EXPECTED = [
    Document("Anarchism", "Anarchism is a political philosophy. It is <old>."),
    Document('Rock & "roll"', "A genre of music. With paragraphs."),
]


def tagged():
    return "".join(
        f'<doc id="{number}" url="https://en.wikipedia.org/wiki?curid={number}" title="{title}">\n{text}\n</doc>\n'
        for number, (title, text) in enumerate(ARTICLES)
    )


@pytest.mark.parametrize("packed", [False, True])
def test_what_wikiextractor_writes_is_read(tmp_path, packed):
    content = tagged()
    for part in ("AA", "AB"):
        (tmp_path / part).mkdir()
        path = tmp_path / part / ("wiki_00" + ".bz2" * packed)
        path.write_bytes(bz2.compress(content.encode()) if packed else content.encode())
    assert list(read(tmp_path)) == EXPECTED * 2


def corpus(comm, texts=TEXTS, longest=45):
    return gathered(*encoded(texts, special(), comm), longest, comm)


@pytest.mark.ranks(1, 3)
def test_runs_are_the_documents_whoever_cut_them(ranks):
    whole = special().encode([text for _, text in TEXTS])
    for found in ranks.run(corpus):
        assert found.pieces.dtype == np.uint16 and (np.diff(found.document) >= 0).all()
        lengths = found.ends - found.begins
        assert lengths.min() >= 8 and lengths.max() <= 45
        for number in set(found.document):
            runs = np.flatnonzero(found.document == number)
            assert np.array_equal(np.concatenate([found.run(run) for run in runs]), whole[number].ids)
            assert np.ptp(lengths[runs]) <= 1 and len(runs) == -(-len(whole[number].ids) // 45)


@pytest.mark.ranks(1, 3)
def test_short_documents_are_left_out_and_too_few_refused(ranks):
    texts = [TEXTS[0], Document("short", "a b"), *TEXTS[2:21]]
    assert set(ranks.run(lambda comm: corpus(comm, texts))[0].document) == set(range(21)) - {1}
    with pytest.raises(ValueError, match="19 documents .* are too few: at least 2"):
        ranks.run(lambda comm: corpus(comm, texts[:20]))


def test_every_twentieth_document_is_for_the_test():
    assert np.flatnonzero(is_test(np.arange(45))).tolist() == [0, 20, 40]
    kept = list(training(TEXTS))
    assert len(kept) == len(TEXTS) - len(TEXTS[::20]) and not set(TEXTS[::20]) & set(kept)


RUN = 100  # characters
MIN_CHARACTERS = 40  # a shorter sentence, such as "For example:", tells nothing


def test_texts_are_cut_at_the_ends_of_paragraphs_and_sentences():
    text = 'The "if" statement\n***\n\nIt  has\na suite.  "Else" may\nfollow: e.g. so:\n\n   if x:\n\n   else:\n'
    expected = ['The "if" statement ***', "It has a suite.", '"Else" may follow: e.g. so:', "if x:", "else:"]
    assert list(parts(text)) == expected


def of_language_models():
    source = LANGUAGE["python-reference"].load(Path())
    return source.train, source.test


def of_bert():
    train = [document.text for document in training(TEXTS)]
    test = [document.text for number, document in enumerate(TEXTS) if is_test(np.int64(number))]
    assert len(train) + len(test) == len(TEXTS)
    return "\n".join(train), "\n".join(test)


@pytest.mark.parametrize("split", [of_language_models, of_bert])
def test_nothing_in_the_test_part_was_there_in_training(split):
    train, test = split()
    sentences = [
        sentence for line in test.split("\n") for sentence in SENTENCES.split(line) if len(sentence) >= MIN_CHARACTERS
    ]
    assert len(sentences) > 50 and not [sentence for sentence in sentences if sentence in train]
    runs = [test[start : start + RUN] for start in range(0, len(test) - RUN, RUN // 4)]
    assert sum(run in train for run in runs) < 0.01 * len(runs)


ARGS = Namespace(batch_size=2, seed=1, spares=0)
MODEL = nn.Identity()
FEW = TEXTS[:45]


def test_texts_and_numbers_count_and_where_a_text_ends():
    numbers = np.arange(5)
    one = fingerprint(["ab", "c"], numbers)
    assert one == fingerprint(iter(["ab", "c"]), numbers.repeat(2)[::2]) and len(one) == 16
    others = [fingerprint(texts, numbers) for texts in (["a", "bc"], ["abc"], ["c", "ab"], ["ab", "č"], [])]
    assert len({one, *others, fingerprint(["ab", "c"], numbers[:4]), fingerprint(["ab", "c"], -numbers)}) == 8


TOKENS = np.arange(99, dtype=np.int32)


def language(tokens=TOKENS, block=4):
    return LanguageTask(MODEL, tokens, tokens, block, ARGS, NullComm()).fingerprint


def pretraining(pieces=list, texts=FEW, longest=61, size=1):
    def one(comm):
        wordpiece = WordPiece(pieces(special().vocabulary))
        found = gathered(*encoded(texts, wordpiece, comm), longest, comm)
        return Pretraining(MODEL, Examples(found, wordpiece, longest + 3), ARGS, comm).fingerprint

    (found,) = set(World(size).run(one))
    return found


def answering(pieces=list, context="The what of a thing is a number of things.", text="Which what?"):
    questions = [Question(f"q{n}", f"{text} {n}", context, (Answer("number", 24),)) for n in range(4)]
    read = Windows(questions, WordPiece(pieces(special().vocabulary)), 64, 8, 24)
    return Answering(MODEL, read, read, ARGS, NullComm()).fingerprint


def speech(count=3, length=800, text="AB", rank=0):
    clip = Clip(np.zeros(length, np.int16), 8000, text)
    return SpeechTask(MODEL, Speech((clip,) * count, (clip,)), 2, Share(rank, 2), seed=1).fingerprint


def swapped(pieces):
    return [*pieces[:-2], pieces[-1], pieces[-2]]


@pytest.mark.parametrize(
    ("one", "same", "others"),
    [
        (language, [{"block": 8}], [{"tokens": TOKENS[:98]}, {"tokens": TOKENS[::-1]}]),  # a longer block goes on there
        (pretraining, [{"size": 3}, {"longest": 29}], [{"pieces": swapped}, {"texts": FEW[:-1]}]),
        (answering, [{}], [{"pieces": lambda all: all[:-1]}, {"context": "The what of a number."}, {"text": "What?"}]),
        (speech, [{"rank": 1}], [{"count": 4}, {"length": 801}, {"text": "AC"}]),
    ],
)
def test_what_is_trained_on_counts_and_nothing_else(one, same, others):
    assert {one(**options) for options in same} == {one()}
    assert len({one(), *(one(**options) for options in others)}) == 1 + len(others)
