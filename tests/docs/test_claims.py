"""No text says that sparse training is as accurate as dense without a model and an optimizer, or a link to accuracy.md.

Texts are pages, docstrings and other strings of the code, and the answers of ``predict``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from sparse_mpi.predict import advise
from sparse_mpi.predict.models import MODELS
from sparse_mpi.predict.shown import IMAGES, LANGUAGE, LOCAL, OPTIMIZERS, WORDS

from .pages import ROOT, pages

CLAIM = re.compile(
    r"\bas accurate as\b|\bas (?:good|well) as dense\b|\b(?:level|on a par|equal) with dense\b"
    r"|\bthe accuracy of dense\b"
    r"|\b(?:same|equal) accuracy\b|\b(?:no|without|without any) loss (?:of|in) accuracy\b|\bloses? no accuracy\b"
    r"|\b(?:equals|matches) dense\b",
    re.IGNORECASE,
)
MODEL = re.compile(r"\b(?:VGG|ResNet|GPT-2|LSTM|ViT|BERT|transformer)")
OPTIMIZER = re.compile(r"\b(?:SGD|Adam|AdamW)\b")
LINK = "accuracy.md"
# A sentence ends at a full stop and a blank, an empty line, a heading, an item of a list, or a row of a table
ENDS = re.compile(r"(?<=[.!?])\s|\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) ?)")
CODE = [
    file for folder in ("sparse_mpi", "bench", "train", "examples") for file in sorted((ROOT / folder).rglob("*.py"))
]


def unconditional(text: str) -> list[str]:
    sentences = [" ".join(sentence.split()) for sentence in ENDS.split(text)]
    return [
        sentence
        for sentence in sentences
        if CLAIM.search(sentence)
        and LINK not in sentence
        and not (MODEL.search(sentence) and OPTIMIZER.search(sentence))
    ]


def strings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_pages_claim_under_conditions():
    texts = {name: (ROOT / name).read_text() for name in pages() if not name.endswith(LINK)}
    assert "README.md" in texts and len(texts) > 20
    found = {name: wrong for name, text in texts.items() if (wrong := unconditional(text))}
    assert not found, f"each must name a model and an optimizer, or link {LINK}: {found}"


def test_code_claims_under_conditions():
    texts = {str(file.relative_to(ROOT)): "\n\n".join(strings(file.read_text())) for file in CODE}
    found = {name: wrong for name, text in texts.items() if (wrong := unconditional(text))}
    assert not found, f"each must name a model and an optimizer, or link {LINK}: {found}"


@pytest.mark.parametrize("model", [*MODELS, 10_000_000])
def test_predict_claims_under_conditions(model):
    for optimizer in (None, *OPTIMIZERS):
        for rate in ("10mbit", "1gbit"):
            answer = advise(model, rate, optimizer=optimizer, on="cpu", batch_seconds=0.3)
            assert not unconditional(answer.shown + ".\n\n" + answer.local_shown) and not unconditional(str(answer))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`elect` is as accurate\nas dense. With SGD a VGG was.", 1),
        ("A VGG with SGD is as accurate as dense.", 0),
        ("It is level with dense with SGD.", 1),
        ("It is level with dense ([what was shown](docs/explanation/accuracy.md)).", 0),
        ("- SGD, VGG\n- the same accuracy\n- more", 1),
        ("# As good as dense\n\nGPT-2 with AdamW was not.", 1),
        ("Its first sum is as good as any.", 0),
        ("No loss of accuracy, they say: loses no accuracy", 1),
    ],
)
def test_a_claim_is_found(text, wrong):
    assert len(unconditional(text)) == wrong


@pytest.mark.parametrize("key", WORDS, ids="-".join)
def test_figures_that_predict_quotes_stand_on_the_page(key):
    page = (ROOT / "docs/explanation" / LINK).read_text()
    quoted = re.findall(r"[-+]?\d+\.\d+", WORDS[key])
    missing = [number for number in quoted if number.lstrip("+-") not in page]
    assert key[0] in (IMAGES, LANGUAGE) and quoted and not missing and "networks.md" in LOCAL
