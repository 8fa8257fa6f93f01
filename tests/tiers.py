"""Which items of the suite are run: of three tiers, each has all items of the one before.

A test is a function; its items are the combinations of its parameters. Items are chosen by these rules alone: never at
random, and whatever the order in which they were collected. `make test` and `.ci/run` run the tier ``fast``, `make test
TIER=wide` the tier ``wide``, and `make test-all` all items.

In one process, with the ranks of a `World`, the fast tier keeps of a test

- without ``ranks`` every value of each parameter once: all items, where there is but one `parametrize`;
- with ``ranks`` every value of its other parameters on 3 ranks (if it does not run on 3, on the most it runs on), and
  every number of ranks once;
- with ``@pytest.mark.thin(strength, **core)`` all items whose parameters are among ``core`` (none, if there is none),
  and further ones until each combination of values of ``strength`` parameters occurs;
- with ``@pytest.mark.against_world``, which compares MPI with World, none: it runs under MPI only, in every tier.

The wide tier adds every pair of values, with ``ranks`` on 3 of them, and every value on 8; of a test with ``thin``
items until each combination of values of one parameter more occurs, on 3 and on 8 ranks.

On the ranks of MPI (`mpiexec -n N ... --with-mpi`) or of torchrun, the fast tier keeps

- of ``@pytest.mark.under_mpi(3)`` all items on 3 ranks, and none on other numbers of them;
- of other tests of the transport, in tests/comm, on every number of ranks what ``thin`` says, or all items;
- of ``against_world`` all items on 3 ranks, and on 4 as many as it takes for each parameter value to occur;
- of every other test one item, on 3 ranks if it runs on 3; none, if its file has a test ``against_world``: MPI's bytes
  are shown to be those of the World that the test runs in.

The wide tier adds items until each parameter value occurs on every number of ranks but 1: of what World has shown,
nothing but the transport is another there. It has all items of ``against_world`` on 4. Files of which a number of ranks
runs nothing are not read.

``@pytest.mark.full(reason)`` leaves a test, or one parameter set of it, to the wide tier, which takes of these items
what the fast one takes of others, and what has two such marks, as one of the test and one of a parameter, to the tier
of all. An item that is named on the command line, as in
``pytest "tests/reduction/test_laws.py::test_name[P3-topka]"``, is run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from itertools import combinations

import pytest

TIERS = ("fast", "wide", "all")
CORE, LARGE = 3, 8  # ranks: a number that is no power of two; one whose algorithms take several rounds
COMPARED = (3, 4)  # ranks on which MPI is compared with World
TRANSPORT = "tests/comm/"
THINNED = "thinned: make test-all runs it"
NEEDS_MPI = "compares World with MPI: make test-mpi runs it"


def cover(
    rows: Sequence[Sequence[Hashable]], strength: int, chosen: Iterable[int] = (), among: Iterable[int] | None = None
) -> list[int]:
    """Return positions of ``rows``, ascending, that cover all combinations of ``strength`` columns.

    A combination is covered when the values that some row has in these columns also stand in a row that is chosen:
    with strength 1 every value of every column occurs, with strength 2 every pair (a pairwise array). The rows at
    ``chosen`` are taken in any case. Then the row that covers most of what is left is added, the first of equals,
    until nothing is left: of the combinations of the rows ``among``, if given, and by these alone. Strength 0 takes one
    row if none is chosen.
    """
    width = len(rows[0]) if rows else 0
    columns = list(combinations(range(width), min(strength, width)))

    def combinations_of(position: int) -> set[Hashable]:
        return {(places, tuple(rows[position][place] for place in places)) for places in columns}

    taken = set(chosen)
    covered = set().union(*map(combinations_of, taken))
    left = [position for position in (range(len(rows)) if among is None else among) if position not in taken]
    for most in range(len(columns), 0, -1):  # what a row adds only shrinks: none adds more than this any more
        gains = {}
        for position in left:
            added = combinations_of(position) - covered
            if len(added) == most:
                taken.add(position)
                covered |= added
            elif added:
                gains[position] = len(added)
        left = list(gains)
    return sorted(taken)


def keep(items: Iterable[pytest.Item], size: int | None = None, wide: bool = False) -> set[str]:
    """Return the node ids of the fast tier or, if ``wide``, of the wide one; ``size`` is that of MPI, None without."""
    tests, items = defaultdict(list), list(items)
    kept: set[str] = set()
    for item in items:
        full = marks(item)["full"]
        if full <= wide:
            tests[test_of(item), "gpu" in marks(item), full].append(item)
    compared = {file_of(item) for item in items if "against_world" in marks(item)}
    for (*_, full), group in tests.items():  # items that need a GPU cover nothing where there is none
        group.sort(key=lambda item: (parameters(item).get("ranks") != CORE, ids(item)))  # of equals those on 3 ranks
        more = wide and not full
        chosen = in_process(group, more) if size is None else on_ranks(group, size, more, compared)
        kept |= {group[position].nodeid for position in chosen}
    return kept


def in_process(items: list[pytest.Item], wide: bool) -> list[int]:
    """Return the positions of those items of one test that one process runs."""
    mark, rows, given = items[0].get_closest_marker("thin"), [*map(ids, items)], [*map(parameters, items)]
    if mark is not None:
        core = {name: list(values) for name, values in mark.kwargs.items()}
        always = [i for i, own in enumerate(given) if core and all(own[n] in core[n] for n in core)]
        chosen = cover(rows, mark.args[0], always)
        among = [i for i, own in enumerate(given) if own.get("ranks", CORE) in (CORE, LARGE)]
        return cover(rows, mark.args[0] + 1, chosen, among or None) if wide else chosen
    sizes = [own.get("ranks", 0) for own in given]
    if not any(sizes):
        once = cover(rows, 1)
        return cover(rows, 2, once) if wide else once
    on = {size: [i for i, own in enumerate(sizes) if own == size] for size in sorted(set(sizes))}
    most = on[CORE if CORE in sizes else max(sizes)]
    others = [own[n * len(own) // len(on)] for n, own in enumerate(on.values())]  # each with other values
    chosen = cover(rows, 1, [*cover(rows, 1, among=most), *others])
    return cover(rows, 1, cover(rows, 2, chosen, most), on.get(LARGE, [])) if wide else chosen


def on_ranks(items: list[pytest.Item], size: int, wide: bool, compared: set[str]) -> list[int]:
    """Return those for ``size`` ranks of MPI; ``compared`` are the files with a test against World."""
    first, everything, rows = items[0], list(range(len(items))), [*map(ids, items)]
    wanted = {ranks for mark in first.iter_markers("under_mpi") for ranks in mark.args}
    if not wanted and first.nodeid.startswith(TRANSPORT):
        chosen = in_process(items, False) if first.get_closest_marker("thin") else everything
    elif wanted:
        chosen = everything if size in wanted else []
    elif first.get_closest_marker("against_world") and size in COMPARED:
        chosen = everything if wide or size == CORE else cover(rows, 1)
    else:
        chosen = everything[: size == CORE and file_of(first) not in compared]
    return cover(rows, 1, chosen) if wide and size != 1 else chosen


def test_of(item: pytest.Item) -> str:
    """Return the node id of the test that ``item`` belongs to: its own, without parameters."""
    return item.nodeid.partition("[")[0]


test_of.__test__ = False  # type: ignore[attr-defined]


@cache
def marks(item: pytest.Item) -> Counter[str]:
    """Return how many marks of each name ``item`` has."""
    return Counter(mark.name for mark in item.iter_markers())


def file_of(item: pytest.Item) -> str:
    """Return the file of ``item``, as node ids begin."""
    return item.nodeid.partition("::")[0]


def parameters(item: pytest.Item) -> dict[str, object]:
    """Return the values of the parameters of ``item``."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def ids(item: pytest.Item) -> tuple[str, ...]:
    """Return the names of the parameter values of ``item``, one for each `parametrize`."""
    return tuple(item.callspec._idlist) if hasattr(item, "callspec") else ()


class Tiers:
    """The plugin that leaves the items of the other tier out, and says how many and why."""

    def __init__(self, config: pytest.Config) -> None:
        self.tier = config.getoption("--tier")
        self.size: int | None = None
        self.collected: list[pytest.Item] = []
        self.kept: set[str] = set()
        self.left_out: Counter[str] = Counter()

    def reason_against(self, item: pytest.Item) -> str | None:
        """Return why ``item`` is not run, None if it is."""
        if self.size is None and "against_world" in marks(item):
            return NEEDS_MPI
        return None if self.tier == "all" or item.nodeid in self.kept else THINNED

    def select(self, config: pytest.Config, items: list[pytest.Item], size: int | None) -> None:
        """Leave in ``items`` those of the tier on ``size`` ranks of MPI, on a `World` if None."""
        self.size = size
        self.collected = [item for item in items if size is not None or "against_world" not in marks(item)]
        self.kept = keep(self.collected, size, self.tier == "wide")
        reasons = {item: self.reason_against(item) for item in items}
        self.left_out.update(reason for reason in reasons.values() if reason)
        config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
        items[:] = [item for item in items if not reasons[item]]

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that started this one, a worker of pytest-xdist, what was left out."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = dict(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take over what a worker left out; all workers leave out the same."""
        self.left_out = Counter(getattr(node, "workeroutput", {}).get("left_out", self.left_out))

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the reasons with their numbers of items."""
        for reason, number in sorted(self.left_out.items()):
            terminalreporter.write_line(f"deselected {number:,} items, {reason}")
