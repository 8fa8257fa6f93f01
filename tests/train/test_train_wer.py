"""Error rates count the fewest edits."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_train.tasks.speech import Errors, distance, errors


def naive(first, second):
    """Return the distance by definition, a recursion over the last elements."""

    @cache
    def between(i, j):
        if not i or not j:
            return i + j
        change = between(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(change, between(i - 1, j) + 1, between(i, j - 1) + 1)

    return between(len(first), len(second))


@pytest.mark.parametrize(
    ("said", "recognised", "expected"),
    [
        ("G L E N N", "G L E N N", Errors(0, 5, 0, 9)),
        ("ENTER SIX", "", Errors(2, 2, 9, 9)),
        ("", "OH", Errors(1, 0, 2, 0)),
        ("ENTER SIX TWO", "ENTER TWO", Errors(1, 3, 4, 13)),  # a word left out
        ("ENTER SIX TWO", "ENTER FIX TWO", Errors(1, 3, 1, 13)),  # one mistaken
        ("ENTER SIX", "EN TER SIX", Errors(2, 2, 1, 9)),  # one taken for two
        ("ONE TWO", "TWO ONE", Errors(2, 2, 6, 7)),
    ],
)
def test_edits_of_words_and_characters_are_counted(said, recognised, expected):
    assert errors(said, recognised) == expected


def test_spaces_at_the_ends_or_between_make_no_words():
    assert errors("YES", "  YES ")[:2] == (0, 1)


texts = st.text("ABC ", max_size=9)


@given(texts, texts, texts)
def test_distance_is_the_least_number_of_edits_and_a_metric(first, second, third):
    assert distance(first, second) == naive(first, second) == distance(second, first)
    assert distance(first.split(), second.split()) == naive(tuple(first.split()), tuple(second.split()))
    assert (distance(first, second) == 0) == (first == second)
    assert distance(first, third) <= distance(first, second) + distance(second, third)
