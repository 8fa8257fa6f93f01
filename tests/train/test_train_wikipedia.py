"""Wikipedia is read as WikiExtractor writes it, and cut into runs alike for any number of ranks."""

from __future__ import annotations

import bz2
import json
from functools import cache

import numpy as np
import pytest

from sparse_train.data.corpus import Document, documents, encoded, gathered, is_test, training
from sparse_train.data.corpus import wikipedia as read
from sparse_train.data.vocabulary import WordPiece, train_pieces

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


def as_json():
    lines = (
        {"id": str(number), "revid": "1", "url": "u", "title": title, "text": text.split("\n\n", 1)[1]}
        for number, (title, text) in enumerate(ARTICLES)
    )
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.parametrize("content", [tagged(), as_json()], ids=["tags", "json"])
@pytest.mark.parametrize("packed", [False, True])
def test_what_wikiextractor_writes_is_read(tmp_path, content, packed):
    for part in ("AA", "AB"):
        (tmp_path / part).mkdir()
        path = tmp_path / part / ("wiki_00" + ".bz2" * packed)
        path.write_bytes(bz2.compress(content.encode()) if packed else content.encode())
    assert list(read(tmp_path)) == EXPECTED * 2


def test_plain_text_has_blank_lines_between_documents(tmp_path):
    (tmp_path / "b.txt").write_text("\n\nlast\n")
    (tmp_path / "a.txt").write_text("one\ngoes on\n\n \ntwo {}")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "README.md").write_text("not this")
    assert list(read(tmp_path)) == [Document("a", "one goes on"), Document("a", "two {}"), Document("b", "last")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("wiki_00", tagged()[:-10].encode(), "ends within the document 'Empty'"),
        ("wiki_00", b"<html>", "expected <doc id="),
        ("wiki_00", b'{"title": "A", "text": ""}\n{"title": "B"}\n', "a line, got"),
        ("wiki_00", b'{"title": "A"', "a line, got"),
        ("wiki_00.bz2", b"junk", "damaged"),
        ("wiki_00.bz2", bz2.compress(tagged().encode())[:-9], "damaged"),
        ("x.txt", b"\xff\xfe", "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{says}.*extract it again"):
        list(read(tmp_path))


def test_missing_files_are_named_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent.*WikiExtractor.*--data-dir.*python-reference"):
        list(read(tmp_path / "absent"))


TEXTS = documents()


@cache
def special():
    return WordPiece(train_pieces([text for _, text in TEXTS], 500))


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
