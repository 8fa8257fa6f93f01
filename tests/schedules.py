"""The seeds of the schedules under which a test tries its law: those that have failed before, then those of the tier.

A *schedule* draws from its seed what may come in any order: the turns of ranks, messages, work on streams. The seed of
one under which the law does not hold is in the assertion. It is also kept in pytest's cache directory, and so is a seed
that was under way when the process ended, as by the time limit of a test that hangs. Later runs of the test try it
first, also in a tier that would not come to it, and go on to do so when it passes again: until its file is removed, as
by ``--cache-clear``. With ``-p no:cacheprovider`` no seed is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

SEEDS = {"fast": 6, "wide": 60, "all": 1000}  # of each law
MOST_KEPT = 20  # of a test: the newest


class Schedules:
    """The seeds of one test.

    Args:
        seeds: to try after those that were kept.
        folder: where they are kept, each in a file of its own, so that several processes may write; None: nowhere.
        test: its node id.
    """

    def __init__(self, seeds: Iterable[int], folder: Path | None = None, test: str = "") -> None:
        self.seeds, self.folder, self.test = seeds, folder, test

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> Schedules:
        """Return those of the requesting test, in the tier that is run."""
        cache = getattr(request.config, "cache", None)
        folder = None if cache is None else cache.mkdir("schedules")
        return cls(range(SEEDS[request.config.getoption("--tier")]), folder, request.node.nodeid)

    @property
    def few(self) -> Schedules:
        """Return a fourth of them, for what takes long."""
        return Schedules([*self.seeds][::4], self.folder, self.test)

    @property
    def kept(self) -> list[int]:
        """Return the seeds that were kept of this test, the oldest first."""
        found = []
        for file in [] if self.folder is None else self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process has just found that its law holds
                test, _, seed = file.read_text().rpartition(" ")
                if test == self.test:
                    found.append((file.stat().st_mtime_ns, int(seed)))
        return list(dict.fromkeys(seed for _, seed in sorted(found)))[-MOST_KEPT:]

    def hold(self, law: Callable[[int], object], replay: Callable[[int], str]) -> None:
        """Try a law under every seed, the kept ones first.

        Args:
            law: raises if it does not hold under the schedule of this seed.
            replay: returns the code that makes the schedule of this seed again.

        Raises:
            AssertionError: it does not hold; names the first such seed, which is kept, and how to replay it.
        """
        kept, note = self.kept, None if self.folder is None else self.folder / uuid4().hex
        for seed in dict.fromkeys([*kept, *self.seeds]):
            if note is not None and seed not in kept:
                note.write_text(f"{self.test} {seed}")  # stays there, unless the next seed is tried
            try:
                law(seed)
            except Exception as error:
                raise AssertionError(f"schedule {seed} ends in {error!r}; replay: {replay(seed)}") from error
        if note is not None:
            note.unlink(missing_ok=True)
