"""The hook of DistributedDataParallel in the ways that training loops have: `ddp_habits_job` trains, under torchrun.

A model in bfloat16, static graphs that use a layer twice, and views of buckets are in `test_ddp`.
"""

from __future__ import annotations

import pytest

from ..launch import launch
from ..prefork import torchrun

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.jobs

WAYS = ("compiled", "accumulated", "clipped", "autocast", "static")
DENSE = 4 * (20 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4)  # bytes of a gradient


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What both ranks saw, by way and by how gradients were added up."""
    folder = tmp_path_factory.mktemp("habits")
    program = ("tests/training/ddp_habits_job.py", str(folder), *WAYS)
    done = launch(None, *torchrun(2, *program), seconds=240, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-5000:]

    def of(way: str, how: str) -> list[dict]:
        return [torch.load(folder / f"{way}-{how}-{rank}.pt", weights_only=False) for rank in range(2)]

    return of


@pytest.mark.parametrize("way", WAYS)
def test_what_sends_everything_trains_as_ddp_does(saved, way):
    for plain, ours in zip(saved(way, "plain"), saved(way, "all"), strict=True):
        torch.testing.assert_close(ours["parameters"], plain["parameters"], rtol=1e-4, atol=1e-5)
        assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_twentieth_of_the_entries_trains_too(saved, way):
    """Once for every step of the optimizer, however many passes it takes."""
    first, second = saved(way, "sparse")
    assert torch.equal(first["parameters"], second["parameters"])
    assert not torch.allclose(first["parameters"], saved(way, "plain")[0]["parameters"])
    for rank in (first, second):
        assert sum(rank["losses"][-5:]) < 0.8 * sum(rank["losses"][:5])
        assert rank["steps"] == len(rank["sent"]) == 30 and rank["sent"][:2] == [DENSE, DENSE]
        assert 0 < min(rank["sent"][2:]) and max(rank["sent"][2:]) < DENSE / 20


def test_gradients_are_clipped_and_graphs_compiled(saved):
    clipped, compiled = saved("clipped", "sparse")[0], saved("compiled", "sparse")[0]
    assert min(clipped["norms"]) > 0.1 and len(clipped["norms"]) == 30
    assert compiled["graphs"] > 0 and saved("static", "sparse")[0]["graphs"] == 0
