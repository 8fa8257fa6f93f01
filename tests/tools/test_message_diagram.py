"""The strip of a step: every message of a real one, and entries that are those of its result."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi_bench.analysis import gradients
from sparse_mpi_bench.analysis.message_diagram import BARE, watch
from sparse_mpi_bench.figures.draw_message_diagram import figure
from sparse_mpi_bench.figures.style import drawn

RANKS, N, DENSITY = 4, 12, 0.25


def strip(name, ranks=RANKS, step=1):
    return watch(name, gradients.make("independent", N, 0), ranks, DENSITY, step)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("name", BARE)
def test_what_ranks_have_last_is_the_result(name, ranks):
    watched = strip(name, ranks)
    last = next(each for each in reversed(watched.exchanges) if each.messages)
    for rank in range(ranks):
        came = [index for message in last.messages if message.dest == rank for index in message.entries]
        assert sorted(set(came)) == np.flatnonzero(watched.result).tolist()


@pytest.mark.parametrize("name", BARE)
def test_ranks_send_entries_of_the_first_gradient(name):
    watched = strip(name)
    first = next(each for each in watched.exchanges if each.messages)
    k = round(DENSITY * N)
    for message in first.messages:
        largest = np.argsort(-np.abs(watched.gradients[message.source]))[:k]
        assert set(message.entries) <= set(largest.tolist()) and message.bytes == 8 * len(message.entries)


def test_gtopk_climbs_a_tree_and_comes_down():
    found = [
        [(message.source, message.dest) for message in each.messages if message.source != message.dest]
        for each in strip("gtopk").exchanges
    ]
    assert found == [[], [(1, 0), (3, 2)], [(2, 0)], [(0, 1), (0, 2), (0, 3)]]


@pytest.mark.thin(0, name=("elect", "dense", "gtopk"))
@pytest.mark.parametrize("name", ["elect", "spardl", "topkdsa", "adtopk", "dense", "oktopk", "gtopk"])
def test_every_algorithm_has_a_strip_in_colours_of_ranks(name):
    pytest.importorskip("matplotlib")
    watched = strip(name, step=2)
    texts = [text.get_text() for text in drawn(lambda: figure(watched, name)).axes[0].texts]
    assert {"rank 0", "rank 3", "gradient", "result"} <= set(texts)
    if name not in BARE:
        assert all(message.entries is None for each in watched.exchanges for message in each.messages)


def test_a_strip_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    options = ["--algorithms", "gtopk", "--ranks", "4", "--n", "12", "--density", "0.25", "--step", "1"]
    assert main(["trace", *options, "--strip", str(tmp_path / "s.svg")]) == 0
    assert (tmp_path / "s.svg").stat().st_size > 5000
