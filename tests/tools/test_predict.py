"""``predict``: scaling of counted traffic, networks, and fits to what was measured."""

from __future__ import annotations

import json

import pytest

from sparse_mpi.comm import Traffic
from sparse_mpi.comm.world import World
from sparse_mpi.network import model as network_fit
from sparse_mpi.network import networks
from sparse_mpi.network.model import Network
from sparse_mpi.reduction.arguments import make_algorithm
from sparse_mpi.tools.analysis import gradients, volume
from sparse_mpi.tools.cli import main, predict_advise


def counted(name, n, ranks, density=0.05):
    made = gradients.make("independent", n)
    return volume.count(make_algorithm(name, {}), name, made, ranks, round(density * n), steps=2, warmup=1)


@pytest.mark.parametrize("name", ["dense", "topka", "topkdsa", "gtopk", "oktopk", "adtopk"])
def test_traffic_of_a_short_gradient_scales_to_a_long_one(name):
    """What is counted with 1/8 of the elements, times 8, is what is counted with all of them."""
    ranks, n = 8, 1 << 20
    short, long = counted(name, n // 8, ranks), counted(name, n, ranks)
    told = volume.scaled(short, n)
    assert told.sent == pytest.approx(long.slowest.sent, rel=0.05)
    assert told.received == pytest.approx(long.slowest.received, rel=0.05)
    assert told.messages <= long.formula_messages and told.messages == pytest.approx(long.slowest.messages, abs=12)
    assert Network.of(10, 1).seconds(told) == pytest.approx(Network.of(10, 1).seconds(long.slowest), rel=0.06)


def test_a_short_gradient_leaves_every_pair_of_ranks_something_to_say():
    assert volume.short_length(14_728_266, 0.02, 2) == 204_800
    assert volume.short_length(14_728_266, 0.02, 1024) == 16 * 1024 / 0.02
    assert volume.short_length(1000, 0.02, 64) == 1000
    assert volume.short_length(10**7, 0.5, 2) == 1 << 17


def test_the_formula_stands_in():
    told = volume.allowed(make_algorithm("topka", {}), 10_000, 100, 4)
    assert told == Traffic(8 * 100 * 3, 8 * 100 * 3, messages=8, control=24 + 12)


def test_networks_by_name_numbers_and_file(tmp_path):
    daint, of = networks.named("piz-daint")
    assert daint.alpha == pytest.approx(1.09e-6) and 9e9 < 1 / daint.beta < 10e9 and "Aries" in of
    assert networks.named("25/5")[0] == Network.of(25, 5)
    (tmp_path / "fit.json").write_text(json.dumps({"alpha": 1e-5, "beta": 1e-9, "points": []}))
    assert networks.named(str(tmp_path / "fit.json")) == (Network(1e-5, 1e-9), "fitted, fit.json")
    for wrong in ("fast", "0/5", str(tmp_path)):
        with pytest.raises(ValueError, match="network"):
            networks.named(wrong)


def test_fit_writes_what_network_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(network_fit, "measure", lambda comm, sizes: [1e-5 + 1e-9 * size for size in sizes])
    file = str(tmp_path / "n.json")
    World(1).run(lambda comm: monkeypatch.setattr(predict_advise, "comm_of_job", lambda: comm))
    assert main(["predict", "--fit", file]) == 0
    assert "10 us a message, 1 GB/s" in capsys.readouterr().out
    assert networks.named(file)[0].alpha == pytest.approx(1e-5)


def test_table_record_and_figure(tmp_path, capsys):
    file, plot = tmp_path / "p.json", tmp_path / "p.svg"
    pytest.importorskip("matplotlib")
    options = ["--network", "10gbe", "80/1", "--algorithms", "dense", "topka", "--ranks", "2", "8", "--n", "200000"]
    options += ["--most-pairs", "100000", "--json", str(file), "--plot", str(plot)]
    assert main(["predict", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.count("P = 8") == 2 and printed.count("*\n") == 2 and "by the algorithm's formula" in printed
    cases = {(case["algorithm"], case["ranks"]): case for case in json.loads(file.read_text())["cases"]}
    assert cases["dense", 8]["bytes"] == 2 * 4 * 200_000 * 7 / 8 and cases["dense", 8]["counted"]
    assert cases["topka", 8]["bytes"] == 8 * 4000 * 7 and not cases["topka", 8]["counted"]
    told = Network.of(80, 1).seconds(Traffic(8 * 4000 * 7, 8 * 4000 * 7, 12, 28 + 28))
    assert cases["topka", 8]["seconds"]["80/1"] == pytest.approx(told, rel=1e-6)
    assert plot.stat().st_size > 1000
