"""Questions made up from the Python reference, in the form of SQuAD: a sentence with a term left out asks for it.

The text is real, the questions are not: nobody wrote them. They are there without any download, to try and to test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sparse_train.data.reference import SENTENCES, documents
from sparse_train.data.squad import Answer, Question, Questions

PARAGRAPH = 400  # characters; a paragraph ends with the sentence that reaches them
EVERY = 10  # paragraphs 0, 10, 20 and so on, with their questions, are the test part
BLANK = "what"  # in the place of the term
TERMS = re.compile(r'(?<=")[A-Za-z_][\w.]*(?:\(\))?(?=")')


def load(folder: Path) -> Questions:
    """Make the questions about all paragraphs; ``folder`` is not used.

    Raises:
        ImportError: this Python was installed without its documentation.
    """
    parts = Questions([], [])
    for number, (name, sentences) in enumerate(paragraphs()):
        (parts.train if number % EVERY else parts.test).extend(ask(name, sentences))
    return parts


def ask(name: str, sentences: list[str]) -> Iterator[Question]:
    """Yield a question for each of the ``sentences`` with a quoted term that occurs once in their paragraph.

    The question asks for the longest such term, or the first of equally long ones.
    """
    context = " ".join(sentences)
    once = {term.group(): term.start() for term in TERMS.finditer(context) if context.count(term.group()) == 1}
    for number, sentence in enumerate(sentences):
        if terms := [term for term in TERMS.findall(sentence) if term in once]:
            term = max(terms, key=len)
            answer = Answer(term, once[term])
            yield Question(f"{name}-{number}", sentence.replace(f'"{term}"', BLANK), context, (answer,))


def paragraphs() -> Iterator[tuple[str, list[str]]]:
    """Yield name and sentences of each paragraph of the reference."""
    for title, text in documents():
        sentences: list[str] = []
        for number, sentence in enumerate(SENTENCES.split(text)):
            sentences.append(sentence)
            if sum(map(len, sentences)) >= PARAGRAPH:
                yield f"{title}-{number}", sentences
                sentences = []
        if sentences:
            yield f"{title}-end", sentences
