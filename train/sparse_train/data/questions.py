"""Questions whose answers are spans of a paragraph: SQuAD v1.1's, and some made up from the Python reference.

Rajpurkar and others, SQuAD, EMNLP 2016; its two JSON files are on https://rajpurkar.github.io/SQuAD-explorer/. The
other questions have the same form: a sentence with a term left out asks for it. Their text is real, the questions are
not: they need no download, and serve trials and tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sparse_train.data.corpus import SENTENCES, documents

TRAIN, TEST = "train-v1.1.json", "dev-v1.1.json"
SLACK = 3  # characters by which an answer may begin earlier than its file says
PARAGRAPH = 400  # characters; a paragraph ends with the sentence that reaches them
EVERY = 10  # paragraphs 0, 10, 20 and so on, with their questions, are the test part
BLANK = "what"  # word in the place of the term
TERMS = re.compile(r'(?<=")[A-Za-z_][\w.]*(?:\(\))?(?=")')


class Answer(NamedTuple):
    text: str
    start: int  # position in characters: context[start : start + len(text)] == text


class Question(NamedTuple):
    """A question about a context, and people's answers: at least one span of it."""

    name: str
    text: str
    context: str
    answers: tuple[Answer, ...]


class Questions(NamedTuple):
    train: list[Question]
    test: list[Question]


def load_squad(folder: Path) -> Questions:
    """Read the questions of ``train-v1.1.json`` and ``dev-v1.1.json`` in ``folder``.

    Raises FileNotFoundError: a file is missing; ValueError: a file is damaged, or of another version.
    """
    return Questions(read_squad(folder / TRAIN), read_squad(folder / TEST))


def read_squad(path: Path) -> list[Question]:
    try:
        questions = list(_questions(json.loads(path.read_text(encoding="utf-8")), path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no {path.name} in {path.parent}; get {TRAIN} and {TEST} from "
            "https://rajpurkar.github.io/SQuAD-explorer/ and name the folder that holds them with --data-dir, "
            "or take --data python-cloze, which is always there"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from None
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no file of SQuAD v1.1 ({error!r}); expected data > paragraphs > context and qas > id, "
            "question and answers > text and answer_start"
        ) from None
    if not questions:
        raise ValueError(f"{path} has no questions; fetch it again")
    return questions


def _questions(content: Any, path: Path) -> Iterator[Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for asked in paragraph["qas"]:
                answers = tuple(_answer(given, context, asked["id"], path) for given in asked["answers"])
                if not answers:
                    raise ValueError(
                        f"{path}: question {asked['id']} has no answer; expected SQuAD v1.1, where all questions have "
                        "one, not v2.0"
                    )
                yield Question(asked["id"], asked["question"], context, answers)


def _answer(given: dict[str, Any], context: str, name: str, path: Path) -> Answer:
    text, start = given["text"], given["answer_start"]
    place = context.find(text, max(0, start - SLACK)) if text else -1
    if place < 0:
        raise ValueError(
            f"{path}: the answer {text!r} to question {name} is not at character {start} of its context; fetch it again"
        )
    return Answer(text, place)


def load_cloze(folder: Path) -> Questions:
    """Make the questions about all paragraphs; ``folder`` is not used.

    Raises ImportError: this Python was installed without its documentation.
    """
    parts = Questions([], [])
    for number, (name, sentences) in enumerate(paragraphs()):
        (parts.train if number % EVERY else parts.test).extend(ask(name, sentences))
    return parts


def ask(name: str, sentences: list[str]) -> Iterator[Question]:
    """Yield a question for each of the ``sentences`` with a quoted term that occurs once in their paragraph.

    The question asks for the longest of these terms, or the first of equally long ones.
    """
    context = " ".join(sentences)
    once = {term.group(): term.start() for term in TERMS.finditer(context) if context.count(term.group()) == 1}
    for number, sentence in enumerate(sentences):
        if terms := [term for term in TERMS.findall(sentence) if term in once]:
            term = max(terms, key=len)
            answer = Answer(term, once[term])
            yield Question(f"{name}-{number}", sentence.replace(f'"{term}"', BLANK), context, (answer,))


def paragraphs() -> Iterator[tuple[str, list[str]]]:
    for title, text in documents():
        sentences: list[str] = []
        for number, sentence in enumerate(SENTENCES.split(text)):
            sentences.append(sentence)
            if sum(map(len, sentences)) >= PARAGRAPH:
                yield f"{title}-{number}", sentences
                sentences = []
        if sentences:
            yield f"{title}-end", sentences
