"""The tiers of the suite: what `make test` runs is chosen by rules, leaves no test out, and is the same every time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import combinations, product

import pytest

from sparse_mpi import ALGORITHMS

from ..algorithms.test_algorithms import CASES, VARIANTS
from ..tiers import COMPARED, CORE, LARGE, Tiers, cover, file_of, ids, keep, parameters, test_of

LAWS = "tests/algorithms/test_algorithms.py::test_all_laws"


@pytest.fixture(scope="session")
def collected(request) -> list[pytest.Item]:
    """All items that pytest found in this run, those of other tiers too."""
    tiers: Tiers = request.config.pluginmanager.getplugin("tiers")
    return tiers.collected


@pytest.fixture(scope="session")
def kept(collected) -> Callable[..., set[str]]:
    """What `keep` leaves of these, on so many ranks of MPI and in the wide tier or not."""
    return cache(lambda size=None, wide=False: keep(collected, size, wide))


def test_every_test_is_run_unless_it_is_marked_full_with_a_reason(collected, kept):
    run = {test.partition("[")[0] for test in kept()}
    for item in collected:
        mark = item.get_closest_marker("full")
        assert test_of(item) in run or (mark and len(mark.args) == 1 and len(mark.args[0]) > 10), item.nodeid


def test_the_choice_depends_on_nothing_but_the_tests(collected, kept):
    for size in (None, CORE):
        assert kept(size) <= kept(size, True)
    files = sorted({*map(file_of, collected)})[::8]
    some = [item for item in collected if file_of(item) in files]
    shuffled = random.Random(0).sample(some, len(some))
    for size, wide in product((None, CORE), (False, True)):
        assert keep(shuffled, size, wide) == {item.nodeid for item in some} & kept(size, wide)


def test_every_algorithm_meets_every_case_of_the_laws_and_every_number_of_ranks(collected):
    laws = [item for item in collected if test_of(item) == LAWS]
    if len(laws) < len(VARIANTS) * len(CASES) * 16:
        pytest.skip("needs a run that collects all of test_algorithms.py")
    chosen, wide = keep(laws), keep(laws, wide=True)
    kept = [item for item in laws if item.nodeid in chosen]
    met = [[parameters(item)[name] for name in ("variant", "case", "ranks")] for item in kept]
    assert {(variant, case) for variant, case, _ in met} >= set(product(ALGORITHMS, CASES))
    assert {ranks for *_, ranks in met} == {*range(1, 9)} and met_by(kept, 1) == met_by(laws, 1)
    on_few = [item for item in laws if parameters(item)["ranks"] in (CORE, LARGE)]
    assert met_by(on_few, 2) <= met_by([item for item in laws if item.nodeid in wide], 2)
    assert len(kept) < len(laws) / 5 and len(wide) < len(laws) / 3


def met_by(items, strength) -> set[tuple]:
    """The combinations of so many values that these items of one test have."""
    rows = [ids(item) for item in items]
    return {
        (places, *(row[place] for place in places))
        for row in rows
        for places in combinations(range(len(row)), min(strength, len(row)))
    }


def test_a_test_with_ranks_meets_all_values_on_3_of_them_and_every_number_once(collected, kept):
    tests, chosen, wide = defaultdict(list), kept(), kept(None, True)
    for item in collected:
        if parameters(item).get("ranks") and not {mark.name for mark in item.iter_markers()} & {"thin", "full", "gpu"}:
            tests[test_of(item)].append(item)
    for test, items in tests.items():
        on = defaultdict(list)
        for item in items:
            on[parameters(item)["ranks"]].append(item)
        run = [item for item in items if item.nodeid in chosen]
        assert {parameters(item)["ranks"] for item in run} == set(on), test
        assert met_by(on[CORE], 1) <= met_by(run, 1), test
        run = [item for item in items if item.nodeid in wide]
        assert met_by(on[CORE], 2) | met_by(on[LARGE], 1) <= met_by(run, 2) | met_by(run, 1), test


def test_every_marker_names_parameters_that_its_test_has(collected):
    for item in collected:
        for mark in item.iter_markers("thin"):
            assert len(mark.args) == 1 and set(mark.kwargs) <= set(parameters(item)), item.nodeid
        for mark in item.iter_markers("under_mpi"):
            assert set(mark.args) == {CORE} and "ranks" in item.fixturenames, item.nodeid


def test_under_mpi_every_test_with_ranks_is_run_on_3_of_them_and_those_that_compare_on_4_too(collected, kept):
    sizes = defaultdict(set)
    for item in collected:
        if "ranks" in item.fixturenames and item.get_closest_marker("full") is None:
            sizes[test_of(item)].add(parameters(item).get("ranks"))
    run, wide = ({item.partition("[")[0] for item in kept(CORE, more)} for more in (False, True))
    compared = [item for item in collected if item.get_closest_marker("against_world")]
    names, files = {item.nodeid for item in compared}, {*map(file_of, compared)}
    on_core = {test for test, found in sizes.items() if CORE in found}
    assert {test for test in on_core if test.partition("::")[0] not in files} <= run
    assert on_core <= wide
    assert names <= kept(CORE)
    for size in COMPARED:
        assert names <= kept(size, wide=True)
        for test in {test_of(item) for item in compared}:
            items = [item for item in compared if test_of(item) == test]
            assert met_by([item for item in items if item.nodeid in kept(size)], 1) == met_by(items, 1), test


@pytest.mark.parametrize("strength", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (8, 11, 7, 2), (5, 4, 3, 2, 2)], ids=str)
def test_a_cover_has_every_combination_and_is_small(shape, strength):
    rows = list(product(*map(range, shape)))
    chosen = cover(rows, strength, range(0, len(rows), 97))
    assert chosen == sorted(set(chosen)) and {*range(0, len(rows), 97)} <= set(chosen)
    for places in combinations(range(len(shape)), min(strength, len(shape))):
        assert {tuple(rows[i][place] for place in places) for i in chosen} == set(
            product(*(range(shape[place]) for place in places))
        )
    least = max(
        (len(set(product(*map(range, few)))) for few in combinations(shape, min(strength, len(shape)))), default=1
    )
    assert len(cover(rows, strength)) <= 2 * least


def test_a_cover_takes_only_rows_that_there_are():
    """Where parameters exclude each other, only combinations that occur are asked for."""
    rows = [("a", 1), ("a", 2), ("b", 2)]
    assert cover(rows, 1) == [0, 2] and cover(rows, 2) == [0, 1, 2] and cover(rows, 0) == [0]
    assert cover([], 2) == [] and cover(rows, 1, chosen=[1]) == [0, 1, 2]
