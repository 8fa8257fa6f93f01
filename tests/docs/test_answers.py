"""*Which algorithm?*, *Rivals* and `predict` give the same answers to 31 questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import answers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "table"), [("docs/guides/which-one.md", answers.which_one), ("docs/explanation/rivals.md", answers.rivals)]
)
def test_a_page_says_what_predict_answers(page, table):
    text = (ROOT / page).read_text()
    missing = [line for line in table() if line not in text]
    assert not missing, f"{page} must have what python -m tests.docs.answers prints:\n" + "\n".join(missing)
