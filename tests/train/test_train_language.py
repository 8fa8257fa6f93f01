"""Language models learn from blocks of tokens, each seen by one rank, and are told by their perplexity."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparse_mpi.comm import NullComm
from sparse_train.data.corpus import TEXTS, Text
from sparse_train.tasks.language import (
    LSTM_SETTINGS,
    LanguageTask,
    Shape,
    byte_pairs,
    extend_lstm,
    lstm_language_task,
    shape_of,
    shape_options,
    words,
)

from .small_program import refusals

BLOCK = 4


def options(**more):
    return Namespace(
        **{"data": "python-reference", "data_dir": Path(), "seed": 3, "batch_size": 2, "tiny": True, "spares": 0} | more
    )


def counting(length, comm, batch_size=2, model=None):
    """Make a task whose tokens are 0, 1, 2 and so on; for testing, as many again."""
    tokens = np.arange(length, dtype=np.int32)
    return LanguageTask(model or nn.Identity(), tokens, tokens, BLOCK, options(batch_size=batch_size), comm)


def lstm_options(*given, **more):
    parser = ArgumentParser()
    extend_lstm(parser)
    return Namespace(**vars(parser.parse_args(given)), **vars(options(**more)))


@pytest.mark.ranks(1, 3, 5)
@pytest.mark.parametrize("epoch", [0, 1])
def test_ranks_share_the_blocks_of_an_epoch(ranks, epoch):
    def first_tokens(comm):
        task = counting(4 * 31 + 3, comm)
        batches = list(task.train(epoch))
        assert len(batches) == task.steps
        for tokens, following in batches:
            assert tokens.dtype == following.dtype == torch.int64 and tokens.shape[1] == BLOCK
            assert (following == tokens + 1).all()
        return [int(n) for tokens, _ in batches for n in tokens[:, 0]], task.steps

    firsts, steps = zip(*ranks.run(first_tokens), strict=True)
    seen = [n for mine in firsts for n in mine]
    assert sorted(seen) == list(range(0, 4 * 31, BLOCK)) and seen != sorted(seen)
    assert len(set(steps)) == 1


@pytest.mark.ranks(1, 3, 5)
def test_ranks_share_the_test_blocks_where_there_are_fewer_than_ranks_too(ranks):
    def firsts(comm):
        task = LanguageTask(nn.Identity(), np.arange(90), np.arange(17), BLOCK, options(), comm)
        return [int(n) for tokens, _ in task.test() for n in tokens[:, 0]]

    assert sorted(n for mine in ranks.run(firsts) for n in mine) == [0, 4, 8, 12]


def test_an_even_guess_has_the_vocabulary_for_perplexity():
    class Even(nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 50)

    task = counting(41, NullComm(1), model=Even())
    results = [task.forward_and_loss(batch) for batch in task.test()]
    assert all(loss.item() == pytest.approx(math.log(50)) for loss, _ in results)
    sums = np.sum([sums for _, sums in results], axis=0)
    assert sums.dtype == np.float64 and sums[0] == 40
    assert task.scores(sums) == pytest.approx({"loss": math.log(50), "perplexity": 50})
    assert next(iter(task.scores(sums))) == "loss" and task.headline in task.scores(sums)


@pytest.mark.parametrize(("loss", "perplexity"), [(1e4, math.inf), (math.nan, math.nan)])
def test_a_perplexity_beyond_all_numbers_is_no_error(loss, perplexity):
    scores = counting(41, NullComm(1)).scores(np.array([1.0, loss]))
    assert scores["perplexity"] == pytest.approx(perplexity, nan_ok=True)


@pytest.mark.parametrize(("train", "test", "complaint"), [(4 * 6, 9, "6 blocks of the training"), (25, 4, "1 block")])
def test_a_block_too_long_for_the_text_is_refused(train, test, complaint):
    with pytest.raises(ValueError, match=rf"at least {complaint}.*for 3 ranks.*--block"):
        LanguageTask(nn.Identity(), np.zeros(train), np.zeros(test), BLOCK, options(), NullComm(3))


@pytest.mark.ranks(1, 3)
def test_all_ranks_have_the_byte_pairs_that_rank_0_found(ranks):
    def text(rank):
        return f"words like those of rank {'abcdef'[rank] * 20}\n" * 9

    found = ranks.run(lambda comm: byte_pairs(Text(text(comm.rank), "words"), 290, options(), comm))
    assert len({v.size for v in found}) == 1
    assert all(len(v.encode(text(0))) < len(v.encode(text(1))) for v in found)


@pytest.mark.ranks(3)
def test_all_ranks_refuse_byte_pairs_that_rank_0_cannot_find(ranks):
    first, *others = refusals(ranks, lambda comm: byte_pairs(Text("words", "words"), 10, options(), comm))
    assert "vocabulary must be at least 256" in first and all("because of rank 0" in text for text in others)


def test_256_byte_pairs_are_bytes_and_so_are_tiny_words():
    text = Text("words", "words")
    assert byte_pairs(text, 256, options(), NullComm()).size == 256
    assert words(text, 10, options(), NullComm()).size == 256
    assert words(text, 10, options(tiny=False), NullComm()).size == 2


def test_options_change_a_shape():
    shape, parser = Shape(2, 64, 4, 32, 256), ArgumentParser()
    shape_options(parser, {"digits": shape})
    assert shape_of(parser.parse_args([]), shape) == shape
    assert shape_of(parser.parse_args(["--width", "96", "--block", "8"]), shape) == (2, 96, 4, 8, 256)
    with pytest.raises(ValueError, match="width must be a multiple of the 4 heads, got 66; 64 is"):
        shape_of(parser.parse_args(["--width", "66"]), shape)


@pytest.mark.parametrize(("given", "tokens"), [([], 4), (["--vocabulary", "3"], 3)])
def test_the_vocabulary_of_an_lstm_is_as_large_as_asked_for(tmp_path, given, tokens):
    for part in ("train", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text("yes no yes no yes \n" * 40)
    assert set(LSTM_SETTINGS) <= set(TEXTS) and lstm_options().block == 70 and lstm_options("--tied").tied
    args = lstm_options("--block", "4", *given, data="ptb", data_dir=tmp_path, tiny=False)
    assert lstm_language_task(args, NullComm()).model(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, tokens)


@pytest.mark.ranks(2)
@pytest.mark.under_mpi(3)
def test_a_text_that_is_missing_is_refused_by_all_ranks(ranks, tmp_path):
    args = lstm_options(data="ptb", data_dir=tmp_path)
    assert all("ptb.train.txt" in text for text in refusals(ranks, lambda comm: lstm_language_task(args, comm)))
