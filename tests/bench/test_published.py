"""Published headlines: of algorithms that exist, with sizes that follow from the models, and sources that are told."""

from __future__ import annotations

import json
from math import prod

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi.algorithms import ALGORITHMS
from sparse_mpi.predict import models
from sparse_mpi_bench.analysis.reported import HEADLINES, Headline


def size(tensors):
    return sum(prod(shape) for _, shape in tensors)


def bert(hidden: int, layers: int, tied: bool) -> int:
    """Return the elements of BERT with pretraining's heads; tied: the decoder's matrix is that of the embedding."""
    square, norm, words = hidden * (hidden + 1), 2 * hidden, 30522
    embeddings = (words + 512 + 2) * hidden + norm
    layer = 4 * square + 4 * square + hidden * (4 * hidden + 1) + 2 * norm  # attention, both linear maps behind it
    heads = 2 * square + norm + words + 2 * (hidden + 1)  # pooler, transform, decoder's bias, next sentence
    return embeddings + layers * layer + heads + (0 if tied else words * hidden)


SIZES = {
    "VGG-16, CIFAR-10": size(models.vgg16()),
    "VGG-16, CIFAR-100": size(models.vgg16(classes=100)),
    "ResNet-50": size(models.resnet50()),
    "BERT, Wikipedia": bert(768, 12, tied=False),
    "BERT-base, pretraining": bert(768, 12, tied=True),
    "BERT-large, pretraining": bert(1024, 24, tied=True),
    "ResNet-152": 60_192_808,  # torchvision's
}


def name(headline: Headline) -> str:
    return f"{headline.algorithm}-{headline.against[0]}-{headline.ranks}"


@pytest.mark.parametrize("headline", HEADLINES, ids=name)
def test_a_headline_names_algorithms_a_cluster_a_source_and_what_is_missing(headline):
    assert headline.algorithm not in headline.against
    assert {headline.algorithm, *headline.against} <= set(ALGORITHMS)
    assert 1 < headline.ratios[0] <= headline.ratios[1] < 20
    assert (headline.ratios[0] == headline.ratios[1]) == (len(headline.against) == 1)
    assert headline.ranks > 1 and headline.ranks % headline.ranks_per_node == 0
    assert len(headline.source) > 20 and len(headline.untold) > 20
    assert headline.network is not None or "link" in headline.untold
    assert headline.gpu or "GPU" in headline.untold


@pytest.mark.parametrize("headline", HEADLINES, ids=name)
def test_models_have_the_elements_that_follow_from_their_tensors(headline):
    for work in headline.workloads:
        assert work.n == SIZES[work.model]
        assert (work.density is None) != (work.factors is None) and work.batch > 0
        assert work.compute is None or headline.seconds is None or work.compute < headline.seconds


def test_the_logs_of_adtopk_are_those_that_the_issue_names():
    """4,634 s of dense training, 1,319 of ADTopk and 1,786 of Ok-Topk, but for the first of 80 epochs."""
    logs = {(each.algorithm, each.against[0]): each for each in HEADLINES if each.network is None}
    assert logs["adtopk", "dense"].ratios[0] == pytest.approx(4634 / 1319, rel=0.01)
    assert logs["oktopk", "dense"].ratios[0] == pytest.approx(4634 / 1786, rel=0.01)
    assert logs["adtopk", "oktopk"].ratios[0] == pytest.approx(1786 / 1319, rel=0.01)
    assert logs["adtopk", "dense"].seconds == pytest.approx(1319 / 80 / 195, rel=0.01)


def test_a_ring_on_gtopks_own_link_would_be_a_tenth_of_what_its_dense_step_took():
    """What its entry says does not fit together."""
    (headline,) = (each for each in HEADLINES if each.algorithm == "gtopk")
    (work,) = headline.workloads
    assert headline.network is not None and headline.seconds is not None and work.compute is not None
    ring = 2 * 31 * headline.network.alpha + 2 * 31 / 32 * 4 * work.n * headline.network.beta
    dense = headline.seconds * headline.ratios[1]
    assert ring == pytest.approx(1.1, abs=0.05) and dense == pytest.approx(10.2, abs=0.05)
    assert ring < (dense - work.compute) / 9


def test_the_model_is_held_to_them(tmp_path, capsys):
    """On 256 ranks of Piz Daint the farthest of five algorithms is as far from Ok-Topk as reported, within 30 %."""
    file = tmp_path / "p.json"
    assert main(["bench", "published", "--json", str(file)]) == 0
    told = capsys.readouterr().out
    cases = json.loads(file.read_text())["cases"]
    assert len(cases) == len(HEADLINES) and told.count("not told") >= 3 and "PPoPP'22" in told
    daint = next(of for of in cases if of["ranks"] == 256)
    assert daint["published"][1] == pytest.approx(daint["reported"][1], rel=0.3)
    assert all(low > 1 for of in cases for low, _ in [of["ours"] or (2, 2)])
