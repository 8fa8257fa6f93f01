"""No paragraph of the pages is hard to read, by Flesch and Kincaid."""

from __future__ import annotations

from .reading import FEWEST, MOST, measure, paragraphs, prose


def test_no_paragraph_is_hard_to_read():
    hard = [paragraph for paragraph in paragraphs() if paragraph.grade > MOST]
    assert not hard, "\n\n".join(f"grade {p.grade}, {p.page}\n{p.text}" for p in hard)


def test_long_sentences_and_long_words_are_hard():
    short = "The sum is the same on all ranks. Each sends what it has. " * 3
    joined = short.replace(". Each", ", and each").replace(". The", "; and the")
    longer = short.replace("same", "indistinguishable")
    assert measure(short)[0] < min(measure(joined)[0], measure(longer)[0])
    assert measure(short)[1] < measure(joined)[1]
    assert measure("word " * (FEWEST - 1)) is None


def test_prose_is_neither_code_nor_tables():
    page = "# Title\n\nText `code`.\n\n    code\n\n```python\ncode\n\nmore\n```\n\n| a |\n| - |\n\n- one\n- two\n"
    assert list(prose(page)) == ["Text `code`.", "- one", "- two"]
