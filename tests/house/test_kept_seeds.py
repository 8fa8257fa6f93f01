"""A seed under which a law does not hold is named and kept, and later runs of the test try it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..schedules import Schedules

ROOT = Path(__file__).parents[2]


def tried(schedules: Schedules, *bad: int) -> list[int]:
    """The seeds that are tried of a law that does not hold under some."""
    seen = []

    def law(seed):
        seen.append(seed)
        if seed in bad:
            raise ValueError("planted")

    if set(bad).isdisjoint([*schedules.kept, *schedules.seeds]):
        schedules.hold(law, str)
    else:
        with pytest.raises(AssertionError, match=r"^schedule (\d+) ends in ValueError\('planted'\); replay: \1$"):
            schedules.hold(law, str)
    return seen


def test_a_failing_seed_is_kept_and_tried_first_by_its_test_alone(tmp_path):
    own, other = Schedules(range(5), tmp_path, "test[a b]"), Schedules(range(5), tmp_path, "test[b]")
    assert tried(own, 3) == [0, 1, 2, 3] and own.kept == [3]
    assert tried(own, 3, 4) == [3] and tried(own, 4) == [3, 0, 1, 2, 4]
    # mended: they are still tried, each once, and nothing else was left behind
    assert tried(own) == [3, 4, 0, 1, 2] and len(list(tmp_path.iterdir())) == 2
    assert tried(Schedules([], tmp_path, "test[a b]")) == [3, 4]
    assert tried(other) == [*range(5)] == tried(Schedules(range(5)))
