"""SQuAD v1.1: questions whose answers are spans of a paragraph, from its two JSON files.

Rajpurkar and others, SQuAD, EMNLP 2016. The files are on https://rajpurkar.github.io/SQuAD-explorer/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TRAIN, TEST = "train-v1.1.json", "dev-v1.1.json"
SLACK = 3  # characters by which an answer may begin earlier than its file says


class Answer(NamedTuple):
    """A span of a context."""

    text: str
    start: int  # in characters: context[start : start + len(text)] == text


class Question(NamedTuple):
    """A question about a context, and what people answered: at least one span of it."""

    name: str
    text: str
    context: str
    answers: tuple[Answer, ...]


class Questions(NamedTuple):
    """A data set of questions, the same on all ranks."""

    train: list[Question]
    test: list[Question]


def load(folder: Path) -> Questions:
    """Read the questions of ``train-v1.1.json`` and ``dev-v1.1.json`` in ``folder``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or of another version.
    """
    return Questions(read(folder / TRAIN), read(folder / TEST))


def read(path: Path) -> list[Question]:
    """Read the questions in a file of SQuAD v1.1; raises what `load` raises."""
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
