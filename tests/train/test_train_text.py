"""Texts are read from their standard files, and tokens stand for them."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from sparse_train.data.corpus import TEXTS, running_words
from sparse_train.data.vocabulary import BytePairs, Bytes, Words, train_byte_pairs

ARTICLE = " \n = Valkyria = \n \n A game @-@ like <unk> game , 2 @.@ 5 hours of a game . \n"
SPELLED = "Zoë runs, ☃ — and\truns\r\n\nand runs again\u2028to run"


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8", newline="")


@pytest.mark.parametrize("name", ["wikitext-2", "wikitext-103"])
@pytest.mark.parametrize(("inside", "kind"), [("", "tokens"), ("{}", "tokens"), ("", "raw"), ("{}-raw", "raw")])
def test_wikitext_is_found_in_its_folder_and_beside_it(tmp_path, name, inside, kind):
    folder = tmp_path / inside.format(name)
    files = {"train": ARTICLE, "valid": "never read", "test": "a game \n"}
    write(folder, **{f"wiki__{part}__{kind}": text for part, text in files.items()})
    assert TEXTS[name].load(tmp_path) == (ARTICLE, "a game \n")


def test_ptb_is_read(tmp_path):
    write(tmp_path, ptb__train__txt=" no it was n't \n", ptb__test__txt=" it was \n")
    assert TEXTS["ptb"].load(tmp_path) == (" no it was n't \n", " it was \n")


def test_one_play_in_ten_is_tested_on_and_folios_are_left_out(tmp_path):
    write(tmp_path, metadata__txt="[a]", **{f"{n:02}_gut__txt": f"play {n}" for n in range(12)})
    write(tmp_path, **{"00_gut_f__txt": "the same play"})
    train, test = TEXTS["shakespeare"].load(tmp_path)
    assert test.split("\n") == ["play 0", "play 10"]
    assert train.split("\n") == [f"play {n}" for n in range(12) if n % 10]


def test_the_python_reference_is_always_there(tmp_path):
    train, test = TEXTS["python-reference"].load(tmp_path)
    assert 300_000 < len(train) < 600_000 and 0.02 < len(test) / len(train) < 0.2
    assert (train, test) == TEXTS["python-reference"].load(tmp_path / "anywhere")


def test_bytes_are_those_of_the_text():
    tokens = Bytes().encode(SPELLED)
    assert tokens.dtype == np.int32 and bytes(tokens.tolist()) == SPELLED.encode()


def test_words_are_those_of_wikitext_with_an_end_at_every_line():
    words = Words(ARTICLE * 2, 1000)
    tokens = words.encode(ARTICLE)
    spelled = [word for line in ARTICLE.splitlines() for word in (*line.split(), "<eos>")]
    assert tokens.dtype == np.int32 and len(tokens) == len(spelled)
    assert words.size == len(set(spelled)) == len(set(zip(spelled, tokens.tolist(), strict=True)))


def test_unknown_words_are_the_rare_ones_and_ties_go_by_the_alphabet():
    words = Words("c c b b a a a rare", 4)
    assert words.size == 4 and words.encode("a b c rare new").tolist() == [2, 3, 0, 0, 0, 1]
    assert Words("twice twice once", 100).encode("once twice").tolist() == [0, 2, 1]  # which occur once are unknown


def test_running_text_has_punctuation_apart():
    assert running_words("Who's there? -- Nay,") == ["Who", "'", "s", "there", "?", "-", "-", "Nay", ","]


@pytest.mark.parametrize("size", [256, 300])
def test_byte_pairs_come_back_as_any_text(size):
    description = train_byte_pairs("and runs again and runs\n" * 20 + "Zoë runs\n", size)
    vocabulary = BytePairs(description)
    tokens = vocabulary.encode(SPELLED)
    assert vocabulary.size <= size and tokens.dtype == np.int32 and tokens.max() < vocabulary.size
    assert tokenizers.Tokenizer.from_str(description).decode(tokens.tolist()) == SPELLED
    assert len(tokens) == len(SPELLED.encode()) if size == 256 else len(tokens) < len(SPELLED.encode())


def test_byte_pairs_of_nothing_are_none():
    assert BytePairs(train_byte_pairs("words", 256)).encode("").shape == (0,)


def test_byte_pairs_need_room_for_the_bytes():
    with pytest.raises(ValueError, match="vocabulary must be at least 256, the bytes there are, got 255"):
        train_byte_pairs("words", 255)
