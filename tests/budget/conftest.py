"""Steps that take as long as a script says, different on every rank, whatever they took."""

from __future__ import annotations

import numpy as np
import pytest

from sparse_mpi.budget import BudgetTracker


@pytest.fixture
def scripted(monkeypatch):
    """Make every rank measure times of its own: computing for 0.1 s and sending 0.1 MB a second, give or take."""

    def measured(keeper, waited, exchange, sent, square):
        step = keeper.steps = getattr(keeper, "steps", 0) + 1
        keeper._sent += sent
        share = 1 + 0.1 * np.sin(step + keeper.rank)
        exposed = round(1e9 * share * sent / 1e5)
        words = [round(1e8 * (2 - share)), -exposed, -exposed - keeper.rank, keeper._sent]
        return np.array([*words, np.float64(1.0 + square).view(np.int64)], np.int64)

    monkeypatch.setattr(BudgetTracker, "measured", measured)
    monkeypatch.setattr(BudgetTracker, "rank", 0, raising=False)

    def script(keeper, rank):
        keeper.rank = rank

    return script
