"""Vocabularies are trained alike every time or read from a file, and pieces tell where they are in a text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparse_train.data import vocabulary
from sparse_train.data.vocabulary import SPECIAL, WordPiece, read_pieces, train_pieces

TEXTS = ["the cat sat on the mat", "a cat and a rat sat", "that rat ran at the cat", "cats, rats and mats!"]


def test_a_vocabulary_has_special_tokens_characters_and_frequent_pieces():
    pieces = train_pieces(TEXTS, 60)
    assert pieces[:5] == list(SPECIAL) and len(pieces) == len(set(pieces)) <= 60
    assert {"cat", "the", "rat", "!", "##s"} <= set(pieces)
    assert "mats" not in pieces  # which is there but once


PRINTED = "import sys; from data.reference import documents; from data.wordpiece import train_pieces; \
print(train_pieces([d.text for d in documents()[:30]], 4000))"


@pytest.mark.full("starts a process for each of several hash seeds")
def test_a_vocabulary_is_the_same_in_every_process():
    """Hash tables of the trainer, seeded anew in each, must not decide which of equally frequent pieces come in."""
    runs = [
        subprocess.run([sys.executable, "-c", PRINTED], cwd=Path(vocabulary.__file__).parents[1], capture_output=True)
        for _ in range(3)
    ]
    assert runs[0].stdout and not runs[0].returncode
    assert len({run.stdout for run in runs}) == 1


def test_rare_characters_have_no_piece(monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_ALPHABET", 4)
    pieces = set(train_pieces(["aaa bbb cc"] * 3 + ["aab x"], 60))
    assert {"a", "b", "c"} <= pieces and "x" not in pieces


def test_a_vocabulary_needs_room_for_the_characters():
    with pytest.raises(ValueError, match=r"all \d+ characters .* got 8"):
        train_pieces(TEXTS, 8)


def test_pieces_are_where_they_say_in_the_text():
    special = WordPiece(train_pieces([*TEXTS, "Café, naïve"], 80))
    text = "The café's  Rats!"
    found, empty = special.encode([text, ""])
    assert found.ids.dtype == found.spans.dtype == np.int32
    cut = [text[start:end] for start, end in found.spans]
    assert "".join(cut) == "".join(text.split()) and cut[0] == "The" and cut[-1] == "!"
    pieces = [special.vocabulary[number].removeprefix("##") for number in found.ids]
    known = [(piece, part) for piece, part in zip(pieces, cut, strict=True) if piece != "[UNK]"]
    assert ("the", "The") in known and all(len(piece) == len(part) for piece, part in known)
    assert empty.ids.shape == (0,) and empty.spans.shape == (0, 2)


def test_a_vocabulary_file_gives_every_piece_its_line(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[MASK]\ncat\n[UNK]\n[CLS]\n[SEP]\n##s\n", encoding="utf-8")
    special = WordPiece(read_pieces(path))
    assert (special.pad, special.mask, special.unknown, special.cls, special.sep) == (0, 1, 3, 4, 5)
    assert special.encode(["Cats dog"])[0].ids.tolist() == [2, 6, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[PAD]\n[UNK]\n", r"lacks \[CLS\], \[MASK\], \[SEP\]"),
        ("\n".join([*SPECIAL, "a", "a"]).encode(), "'a' more than once"),
        (b"\xff\xfe", "no text in UTF-8"),
    ],
)
def test_damaged_vocabulary_files_are_refused(tmp_path, content, says):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        read_pieces(path)
    assert str(path) in str(error.value)


def test_a_missing_vocabulary_file_is_named_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.txt.*leaves in its --out"):
        read_pieces(tmp_path / "absent.txt")
