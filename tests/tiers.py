"""The tiers of the suite: which items of each test `make test` runs, and which only `make test-all`.

    python -m pytest                      the fast tier, which `make test` runs
    python -m pytest --tier all           everything
    python -m pytest --tier rest          what the fast tier leaves out

A test is a function; its items are the combinations of its parameters. The fast tier keeps of every test some items,
chosen by these rules alone: never at random, and whatever the order in which they were collected.

In one process, with the ranks of a `World`:

- a test without ``ranks`` keeps all its items;
- a test with ``ranks`` keeps all combinations of its other parameters on 3 ranks (if it does not run on 3, on the most
  it runs on), every parameter value on 8 ranks, and every number of ranks once;
- ``@pytest.mark.thin(strength, **core)`` replaces this by: all items whose parameters are among ``core`` (none, if no
  core is given), and further ones until each combination of values of ``strength`` parameters occurs;
- ``@pytest.mark.full(reason)`` leaves a test, or one parameter set of it, to `make test-all`;
- ``@pytest.mark.against_world`` compares MPI with World: it runs under MPI only, in every tier.

On the ranks of MPI (`mpiexec -n N ... --with-mpi`) or of torchrun:

- ``@pytest.mark.under_mpi(3)`` keeps all items of a test on 3 ranks, and none on other numbers of them;
- other tests of the transport, in tests/comm, keep on every number of ranks what ``thin`` says, or all items;
- a test marked ``against_world`` keeps all its items on 3 and 4 ranks;
- every other test keeps one item, on 3 ranks if it runs on 3.

On other numbers of ranks than 3 only files of the transport are read, and on 4 those that compare with World.

An item that is named on the command line, as in ``pytest "tests/reduction/test_laws.py::test_name[P3-topka]"``, is run.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

import pytest

TIERS = ("fast", "rest", "all")
CORE, LARGE = 3, 8  # ranks: a number that is no power of two; one whose algorithms take several rounds
COMPARED = (3, 4)  # ranks on which MPI is compared with World
TRANSPORT = "tests/comm/"
THINNED = "thinned: make test-all runs it"
NEEDS_MPI = "compares World with MPI: make test-mpi runs it"


def cover(rows: Sequence[Sequence[Hashable]], strength: int, chosen: Iterable[int] = ()) -> list[int]:
    """Return positions of ``rows``, ascending, that cover all combinations of ``strength`` columns.

    A combination is covered when the values that some row has in these columns also stand in a row that is chosen:
    with strength 1 every value of every column occurs, with strength 2 every pair (a pairwise array). The rows at
    ``chosen`` are taken in any case. Then the row that covers most of what is left is added, the first of equals,
    until nothing is left. Strength 0 takes one row if none is chosen.
    """
    width = len(rows[0]) if rows else 0
    columns = list(combinations(range(width), min(strength, width)))

    def combinations_of(row: Sequence[Hashable]) -> set[Hashable]:
        return {(places, tuple(row[place] for place in places)) for places in columns}

    taken = set(chosen)
    covered = set().union(*(combinations_of(rows[position]) for position in taken))
    # What a row adds only shrinks, so a stale gain is an upper bound and is renewed when it comes to the top.
    heap = [(-len(columns), position) for position in range(len(rows)) if position not in taken]
    heapq.heapify(heap)
    while heap:
        bound, position = heapq.heappop(heap)
        gain = len(combinations_of(rows[position]) - covered)
        if gain == -bound:
            taken.add(position)
            covered |= combinations_of(rows[position])
        elif gain:
            heapq.heappush(heap, (-gain, position))
    return sorted(taken)


def fast(items: Iterable[pytest.Item], size: int | None = None) -> set[str]:
    """Return the node ids of the fast tier; ``size`` is the number of ranks under MPI, None in one process."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is None:
            tests[test_of(item), item.get_closest_marker("gpu") is None].append(item)  # no GPU, no cover by its items
    choose = in_process if size is None else on_ranks
    kept: set[str] = set()
    for group in tests.values():
        group.sort(key=ids)
        kept |= {item.nodeid for item in choose(group, size)}
    return kept


def in_process(items: list[pytest.Item], size: None = None) -> list[pytest.Item]:
    """Return the items of one test that the fast tier runs in one process."""
    mark, sizes = items[0].get_closest_marker("thin"), [parameters(item).get("ranks") for item in items]
    if mark is not None:
        return thinned(items, mark)
    if sizes[0] is None:
        return items
    rows = [ids(item) for item in items]
    chosen = [i for i, ranks in enumerate(sizes) if ranks == home(sizes)]
    large = [i for i, ranks in enumerate(sizes) if ranks == LARGE]
    chosen += [large[i] for i in cover([rows[i] for i in large], 1)]
    return [items[i] for i in cover(rows, 1, chosen)]


def thinned(items: list[pytest.Item], mark: pytest.Mark) -> list[pytest.Item]:
    """Return the items of one test that its mark ``thin`` keeps."""
    core = {name: list(values) for name, values in mark.kwargs.items()}
    inside = [all(parameters(item)[name] in core[name] for name in core) and bool(core) for item in items]
    chosen = cover([ids(item) for item in items], mark.args[0], [i for i, core in enumerate(inside) if core])
    return [items[i] for i in chosen]


def on_ranks(items: list[pytest.Item], size: int) -> list[pytest.Item]:
    """Return the items of one test that the fast tier runs on ``size`` ranks of MPI."""
    first = items[0]
    wanted = {ranks for mark in first.iter_markers("under_mpi") for ranks in mark.args}
    if wanted:
        return items if size in wanted else []
    if first.nodeid.startswith(TRANSPORT):
        mark = first.get_closest_marker("thin")
        return thinned(items, mark) if mark else items
    if first.get_closest_marker("against_world"):
        return items if size in COMPARED else []
    return items[:1] if size == CORE else []


def home(sizes: Sequence[int]) -> int:
    """Return the number of ranks on which a test is run with all its parameters."""
    return CORE if CORE in sizes else max(sizes)


def test_of(item: pytest.Item) -> str:
    """Return the node id of the test that ``item`` belongs to: its own, without parameters."""
    return item.nodeid.partition("[")[0]


test_of.__test__ = False  # type: ignore[attr-defined]


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
        if self.size is None and item.get_closest_marker("against_world"):
            return NEEDS_MPI
        if self.tier == "fast" and item.nodeid not in self.kept:
            return THINNED
        return "fast tier: make test runs it" if self.tier == "rest" and item.nodeid in self.kept else None

    def select(self, config: pytest.Config, items: list[pytest.Item], size: int | None) -> None:
        """Leave in ``items`` those of the tier on ``size`` ranks of MPI, on a `World` if None."""
        self.size = size
        self.collected = [item for item in items if size is not None or not item.get_closest_marker("against_world")]
        self.kept = fast(self.collected, self.size)
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
