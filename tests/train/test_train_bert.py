"""BERT's sizes, its pre-training examples, and its two tasks from the command line to falling losses."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import bert
from sparse_mpi.comm import NullComm
from sparse_train.data.corpus import encoded, gathered
from sparse_train.models.language import Shape, for_answering, for_pretraining, load_encoder
from sparse_train.tasks.masked import Examples, Pretraining

from .small_program import refusals
from .test_train_corpus import TEXTS, special


@cache
def examples():
    return Examples(gathered(*encoded(TEXTS, special(), NullComm()), 61, NullComm()), special(), 64)


def test_heads_must_share_the_width():
    with pytest.raises(ValueError, match="--width must be a multiple of --heads, got 64 and 3"):
        for_answering(Shape(1, 64, 3), 100)


def original(example):
    return np.where(example.targets >= 0, example.targets, example.tokens)


def test_an_example_is_two_halves_between_special_tokens():
    rng = np.random.default_rng(1)
    others = []
    for run in examples().train[:200]:
        example = examples().example(run, rng)
        tokens, seps = original(example), np.flatnonzero(example.tokens == special().sep)
        assert tokens[0] == special().cls and len(tokens) <= 64 and seps[-1] == len(tokens) - 1
        (border,) = np.flatnonzero(np.diff(example.halves))
        assert tokens[border] == special().sep
        halves, source = np.concatenate([tokens[1:border], tokens[border + 1 : -1]]), examples()._corpus.run(run)
        assert np.array_equal(halves[: border - 1], source[: border - 1])
        assert example.other != np.array_equal(halves, source)
        others.append(example.other)
    assert 70 < sum(others) < 130


def test_fifteen_in_a_hundred_pieces_are_to_be_told_in_the_published_ways():
    rng = np.random.default_rng(2)
    made = [examples().example(run, rng) for run in np.tile(examples().train, 2)[:1500]]
    pieces, told, masked, same = 0, 0, 0, 0
    for example in made:
        chosen = example.targets >= 0
        assert not set(original(example)[chosen]) & {special().cls, special().sep} and chosen.any()
        pieces, told = pieces + len(chosen) - 3, told + chosen.sum()
        masked += (example.tokens[chosen] == special().mask).sum()
        same += (example.tokens[chosen] == example.targets[chosen]).sum()
    assert told / pieces == pytest.approx(0.15, abs=0.005)
    assert masked / told == pytest.approx(0.8, abs=0.02)
    assert same / told == pytest.approx(0.1, abs=0.015)


def task(rank=0, size=1, seed=1):
    args = bert.PROGRAM.parse(["--tiny", "--batch-size", "8", "--seed", str(seed)])
    return Pretraining(torch.nn.Identity(), examples(), args, NullComm(size, rank))


def tokens(batches):
    return [batch.tokens.tolist() for batch in batches]


def test_no_two_things_are_drawn_from_the_same_random_numbers(monkeypatch):
    drawn, make = [], np.random.default_rng

    def noted(seed):
        drawn.append(make(seed).random())
        return make(seed)

    made = [task(rank, 2) for rank in range(2)]
    monkeypatch.setattr(np.random, "default_rng", noted)
    for one in made:
        _ = [batch for _, batch in zip(range(3), one.train(0), strict=False)]
    assert len(drawn) == 2 * (1 + 3) and len(set(drawn)) == 1 + 2 * 3  # the order of the shards is for all ranks


def test_the_test_is_the_same_whoever_evaluates_it():
    def rows(size):
        return sorted(row for rank in range(size) for batch in tokens(task(rank, size).test()) for row in batch)

    assert rows(1) == rows(3) and len(rows(1)) == len(examples().test)


def test_judged_sums_and_scores():
    made = task()
    torch.manual_seed(0)
    made._bert = made.model = for_pretraining(bert.SMALL, 600).eval()
    batch = next(made.train(0))
    with torch.no_grad():
        loss, sums = made.forward_and_loss(batch)
        whole = made.model(batch.tokens, attention_mask=batch.attended, token_type_ids=batch.halves)
    logits = whole.prediction_logits.flatten(0, 1)[batch.places]
    masked = torch.nn.functional.cross_entropy(logits, batch.targets)
    order = torch.nn.functional.cross_entropy(whole.seq_relationship_logits, batch.other)
    assert float(loss) == pytest.approx(float(masked + order), rel=1e-5)
    scores = made.scores(sums + sums)
    assert list(scores)[:2] == ["loss", made.headline] and scores["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert scores["perplexity"] == pytest.approx(float(masked.exp()), rel=1e-4)
    assert scores["accuracy"] == pytest.approx(float((logits.argmax(1) == batch.targets).float().mean()))


def test_questions_begin_with_the_encoder_of_pretraining_and_no_other(tmp_path):
    torch.manual_seed(0)
    before, after = for_pretraining(Shape(1, 16, 2), 50), for_answering(Shape(1, 16, 2), 50)
    for content in (before.state_dict(), {"model": before.state_dict(), "step": 3}):
        torch.save(content, tmp_path / "model.pt")
        load_encoder(after, tmp_path / "model.pt")
        assert all(torch.equal(w, before.state_dict()[n]) for n, w in after.bert.state_dict(prefix="bert.").items())
    for other in (Shape(2, 16, 2), Shape(1, 32, 2)):
        with pytest.raises(ValueError, match=r"model\.pt does not fit: bert\.\S+ is .* in this model; take the same"):
            load_encoder(for_answering(other, 50), tmp_path / "model.pt")


@pytest.mark.parametrize("content", [b"junk", b"", {"a": 1}, [1], print])
def test_other_files_are_no_models(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=r"model\.pt is no state dict"):
        load_encoder(for_answering(Shape(1, 16, 2), 50), path)
    with pytest.raises(FileNotFoundError, match="--model-from"):
        load_encoder(for_answering(Shape(1, 16, 2), 50), tmp_path / "absent")


@pytest.mark.ranks(1, 2)
@pytest.mark.under_mpi(3)
def test_a_vocabulary_that_is_gone_is_refused_on_all_ranks(ranks, tmp_path):
    args = bert.PROGRAM.parse(["--tiny", "--out", str(tmp_path)])
    args.vocab_file = tmp_path / "absent"
    first, *others = refusals(ranks, lambda comm: bert.PROGRAM.programs["pretrain"].make(args, comm))
    assert "no vocabulary" in first and all("because of rank 0" in text for text in others)
