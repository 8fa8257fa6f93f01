"""The Python reference says everything once, so that no test on a part of it asks for what was learned by heart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparse_train.data import questions
from sparse_train.data.corpus import SENTENCES, TEXTS, documents, is_test, parts, training

TOPICS = documents()
RUN = 100  # characters
MIN_CHARACTERS = 40  # a shorter sentence, such as "For example:", tells nothing


def test_texts_are_cut_at_the_ends_of_paragraphs_and_sentences():
    text = 'The "if" statement\n***\n\nIt  has\na suite.  "Else" may\nfollow: e.g. so:\n\n   if x:\n\n   else:\n'
    expected = ['The "if" statement ***', "It has a suite.", '"Else" may follow: e.g. so:', "if x:", "else:"]
    assert list(parts(text)) == expected


def test_topics_are_sorted_and_none_is_empty():
    titles = [document.title for document in TOPICS]
    assert titles == sorted(set(titles)) and len(titles) > 60
    assert all(document.text.strip() == document.text != "" for document in TOPICS)


def of_language_models():
    source = TEXTS["python-reference"].load(Path())
    return source.train, source.test


def of_bert():
    train = [document.text for document in training(TOPICS)]
    test = [document.text for number, document in enumerate(TOPICS) if is_test(np.int64(number))]
    assert len(train) + len(test) == len(TOPICS)
    return "\n".join(train), "\n".join(test)


@pytest.mark.parametrize("split", [of_language_models, of_bert])
def test_nothing_in_the_test_part_was_there_in_training(split):
    train, test = split()
    sentences = [
        sentence for line in test.split("\n") for sentence in SENTENCES.split(line) if len(sentence) >= MIN_CHARACTERS
    ]
    assert len(sentences) > 50 and not [sentence for sentence in sentences if sentence in train]
    runs = [test[start : start + RUN] for start in range(0, len(test) - RUN, RUN // 4)]
    assert sum(run in train for run in runs) < 0.01 * len(runs)


def test_no_sentence_is_in_two_paragraphs_of_made_up_questions():
    seen = [sentence for _, sentences in questions.paragraphs() for sentence in sentences]
    assert len(seen) == len(set(seen)) > 1000
