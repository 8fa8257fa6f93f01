"""Names stand for parts of the library, of installed packages, and of any module; others are refused in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.algorithms import ALGORITHMS, TopkA
from sparse_mpi.optim import DistributedOptimizer
from sparse_mpi.reduction.arguments import algorithm_spelled, make_feedback, spelled, usual_density, words
from sparse_mpi.wire import WIRES

MINE = """
from dataclasses import dataclass
from sparse_mpi.algorithms import TopkA
from sparse_mpi.algorithms.base import Traits
from sparse_mpi.feedback import LeakyFeedback
from sparse_mpi.select import Exact
from sparse_mpi.wire import BFloat16, BitPacked

@dataclass(frozen=True)
class Mine(TopkA):
    share: float = 0.5

    @property
    def traits(self):
        return Traits(usual_density=0.07)

@dataclass(frozen=True)
class Largest(Exact):
    pass

HALF, FADING = BitPacked(BFloat16()), LeakyFeedback(0.25)
NUMBER = 7
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A working directory with a module, whose package is installed too."""
    (tmp_path / "a_plugin.py").write_text(MINE)
    info = tmp_path / "a_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a_plugin\nVersion: 1.0\n")
    points = "[sparse_mpi.algorithms]\nmine = a_plugin:Mine\n[sparse_mpi.wires]\nhalf = a_plugin:HALF\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return __import__("a_plugin")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("oktopk:published=vgg", ["oktopk", "published=vgg"]),
        ("gtopk:published", ["gtopk", "published"]),
        ("topka:wire=packed:selector=exact", ["topka", "wire=packed", "selector=exact"]),
        ("a.b:C", ["a.b:C"]),
        ("a:C:k=1:wire=b:D:selector=c:E:l=2", ["a:C", "k=1", "wire=b:D", "selector=c:E", "l=2"]),
    ],
)
def test_a_name_with_a_module_stays_together(text, found):
    assert words(text) == found


@pytest.mark.parametrize("name", ["a_plugin:Mine", "mine"])
def test_an_algorithm_of_a_module_or_package_is_made_with_its_options(mine, name):
    assert algorithm_spelled(f"{name}:share=0.25:wire=packed") == mine.Mine(share=0.25, wire=WIRES["packed"])
    assert usual_density(name) == 0.07 and name in ALGORITHMS and name not in list(ALGORITHMS)


def test_selectors_formats_and_feedback_rules_too(mine):
    assert algorithm_spelled("topka:selector=a_plugin:Largest") == TopkA(mine.Largest())
    for wire in ("a_plugin:HALF", "half"):
        assert algorithm_spelled(f"topka:wire={wire}:selector=exact").wire == mine.HALF
    assert make_feedback("a_plugin:FADING", None) == mine.FADING


def test_a_module_is_found_in_the_working_directory_alone(mine, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match="a_plugin_elsewhere"):
        spelled("a_plugin_elsewhere:Mine")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nowhere:Mine", "algorithm must be module:Name of a module in .*, got 'nowhere:Mine': No module named"),
        ("a_plugin:Other", "algorithm must be .*'a_plugin:Other': module 'a_plugin' has no attribute 'Other'"),
        ("a_plugin:NUMBER", "algorithm must be a name or an instance, got 7"),
        ("topka:wire=a_plugin:NUMBER", "wire must be a name or an instance"),
        ("a_plugin:Mine:sahre=1", "has no option sahre; it has: .*; did you mean share?"),
        ("topka:wire=hlaf", r"wire must be one of coo32, .*, half, or module:Name, got 'hlaf'; did you mean half\?"),
        (":Mine", "algorithm must be module:Name"),
    ],
)
def test_others_are_refused_in_words(text, error):
    with pytest.raises(ValueError, match=error):
        spelled(text)


def test_an_instance_that_is_given_by_name_takes_no_options(mine):
    mine.MADE = mine.Mine()
    assert algorithm_spelled("a_plugin:MADE") == mine.Mine()
    with pytest.raises(ValueError, match=r"options \['share'\] must be given to the instance"):
        spelled("a_plugin:MADE:share=1")


def test_a_text_in_place_of_a_format_is_told_its_entry():
    with pytest.raises(TypeError, match=r"wire must be an instance of Wire.*; by its name it is WIRES\['packed'\]"):
        TopkA(wire="packed")


@pytest.mark.usefixtures("mine")
def test_ranks_reduce_and_train_by_it(monkeypatch):
    def reduced(comm):
        x = np.arange(100, dtype=np.float32) + comm.rank
        return SparseAllreduce(100, k=5, comm=comm, algorithm="a_plugin:Mine").step(x, check=True).to_dense()

    def trained(comm, algorithm):
        model = torch.nn.Linear(20, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(plain, model.named_parameters(), comm=comm, algorithm=algorithm, density=0.2)
        for _ in range(3):
            optimizer.zero_grad()
            (model.weight * torch.arange(20.0)).sum().backward()
            optimizer.step()
        return model.weight.detach().numpy().copy()

    world = World(2)
    (total, again) = world.run(reduced)
    assert np.array_equal(total, again) and np.count_nonzero(total) == 5
    asked, dense = (world.run(lambda comm, of=of: trained(comm, of))[0] for of in ("a_plugin:Mine", "dense"))
    monkeypatch.setenv("SPARSE_MPI_ALGORITHM", "mine:share=0.5")
    overruled = world.run(lambda comm: trained(comm, "dense"))[0]
    assert np.array_equal(asked, overruled) and not np.array_equal(asked, dense)
