"""Settings of published programs: what they are, how a command line names them, and what they send."""

from __future__ import annotations

import pytest

from sparse_mpi.algorithms.adtopk import ADTopk
from sparse_mpi.algorithms.gtopk import GTopk
from sparse_mpi.algorithms.oktopk import OkTopk
from sparse_mpi.algorithms.published import published
from sparse_mpi.algorithms.spardl import SparDL
from sparse_mpi.comm.base import rounds
from sparse_mpi.reduction.arguments import make_algorithm, spelled
from sparse_mpi.wire import WIRES
from sparse_mpi_bench.analysis import gradients, volume

RANKS, N, K = 8, 20_000, 200
LOWEST = K * (RANKS - 1) / RANKS  # k(P-1)/P


def test_oktopk_has_the_settings_of_each_workload():
    """Thresholds are exact every 32 steps, BERT's every 128; regions are redrawn every 64, or at 4 times the mean."""
    vgg, lstm, bert = (published(OkTopk, workload) for workload in ("vgg", "lstm", "bert"))
    assert [(a.selector.period, a.threshold_period, a.period) for a in (vgg, bert)] == [(32, 32, 64), (128, 128, 64)]
    assert (vgg.selector.nudge, bert.selector.nudge, vgg.trigger) == (1.012, 1.025, 4) and lstm == vgg


def test_residual_rules_that_lose_mass_say_so():
    assert not published(GTopk).traits.conserves and not published(SparDL).traits.conserves
    assert published(OkTopk, "vgg").traits.conserves and published(ADTopk).traits.conserves
    assert published(ADTopk).selector.rows == "axis1"


def test_a_command_line_names_them_and_changes_them():
    assert make_algorithm(*spelled("oktopk:published=bert")) == published(OkTopk, "bert")
    assert make_algorithm(*spelled("gtopk:published")) == published(GTopk)
    changed = make_algorithm(*spelled("oktopk:published=vgg:wire=packed:period=8"))
    assert (changed.wire, changed.period, changed.threshold_period) == (WIRES["packed"], 8, 32)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("oktopk:published", "published settings of OkTopk must be one of vgg, lstm, bert, got ''"),
        ("oktopk:published=resnet", "must be one of vgg, lstm, bert, got 'resnet'"),
        ("gtopk:published=vgg", "published settings of GTopk are the same for all workloads, got 'vgg'"),
        ("topka:published", "published settings of TopkA are not known"),
        ("oktopk:published=vgg:slack=2", "oktopk has no option slack"),
    ],
)
def test_what_is_not_known_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        spelled(text)


# Words of a rank and step in units of k(P-1)/P by the papers' formulas, the mean over ranks and those of the busiest.
# gTopk: everybody but the root sends 2k words up, and everybody but the leaves 2k words a child down, the root most.
# ADTopk: 2P for pairs of which an index has a word; here a column of its row has half a word.
PAPERS = {
    "gtopk:published": (4.0, 2 * rounds(RANKS) * RANKS / (RANKS - 1)),
    "spardl:published": (4.0, 4.0),
    "adtopk:published": (1.5 * RANKS, 1.5 * RANKS),
}


@pytest.mark.parametrize("text", PAPERS)
def test_volumes_are_those_of_the_papers(text):
    made = make_algorithm(*spelled(text))
    found = volume.count(made, text, gradients.make("independent", N), RANKS, K, 3, 1)
    mean, busiest = PAPERS[text]
    assert found.within and found.words / LOWEST == pytest.approx(mean, rel=0.05)
    assert found.most_words / LOWEST == pytest.approx(busiest, rel=0.05)
    assert found.selected == pytest.approx(1)
