"""Rules of feedback that are written for release 0.2 go on working, and so do the names of their members."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sparse_mpi import EF21, FEEDBACKS, ErrorFeedback, GlobalMomentum, LeakyFeedback, SparseAllreduce, World
from sparse_mpi.feedback import Feedback, FeedbackTraits, MomentumCorrection
from sparse_mpi.feedback.base import whole_state
from sparse_mpi.sparse import Layout, SparseVector

from .feedback_steps import joined, picked

N = 120


@dataclass(eq=False)
class Halving(Feedback):
    """Half of the residual fades, each rank's share of the last total comes back; results are dense."""

    share: float = 0.25
    _ranks: int = field(default=0, init=False, repr=False)
    _residual: np.ndarray | None = field(default=None, init=False, repr=False)
    _last: np.ndarray | None = field(default=None, init=False, repr=False)

    @property
    def traits(self):
        return FeedbackTraits(momentum=self.share, leak=0.5, works_in_place=True, shardable=False)

    @property
    def residual(self):
        return self._residual

    def start(self, layout, in_place, ranks):
        fresh = replace(self)
        fresh._ranks = ranks
        fresh._residual, fresh._last = (np.zeros(Layout.of(layout).size, np.float32) for _ in range(2))
        return fresh

    def accumulate(self, gradient):
        return self._residual, gradient

    def pending(self):
        return self._residual

    def consume(self, sent, total, ranks=0):
        self._ranks = ranks or self._ranks
        self._residual -= sent.to_dense() if isinstance(sent, SparseVector) else sent
        self._last = total.to_dense() if isinstance(total, SparseVector) else total.copy()
        self._residual *= np.float32(0.5)
        self._residual += np.float32(self.share / self._ranks) * self._last
        return 2 * self._last

    def contribution(self, acc, sent):
        return acc - 2 * (self._residual - np.float32(self.share / self._ranks) * self._last)

    def bind_buffer(self, buffer):
        buffer[...] = self._residual
        self._residual = buffer

    def state(self, replicated=False):
        return {"last": self._last} if replicated else {"residual": self._residual}

    def load(self, state, ranks=0):
        self._ranks = ranks or self._ranks
        self._residual, self._last = state["residual"].copy(), state["last"].copy()


def former_halving():
    """The same rule, with all members that release 0.2 knew."""

    @dataclass(eq=False)
    class Former(Feedback):
        share: float = 0.25
        _ranks: int = field(default=0, init=False, repr=False)
        _residual: np.ndarray | None = field(default=None, init=False, repr=False)
        _last: np.ndarray | None = field(default=None, init=False, repr=False)

        momentum = property(lambda self: self.share)
        leak, owes, needs_conservation, previews, divisible = 0.5, True, False, False, False

        @property
        def works_in_place(self):
            return True

        residual, start, accumulate = Halving.residual, Halving.start, Halving.accumulate
        owed, given, adopt = Halving.pending, Halving.contribution, Halving.bind_buffer

        def share_among(self, ranks):
            self._ranks = ranks

        def check_gradient(self, gradient):
            pass

        def consume(self, sent, total):
            Halving.consume(self, sent, total)

        def outcome(self, total):
            return 2 * self._last

        def state(self):
            return {"residual": self._residual}

        def common(self):
            return {"last": self._last}

        def check_state(self, state):
            pass

        def load(self, state):
            Halving.load(self, state)

    return Former


def trained(rule):
    """The results of four steps and a flush on three ranks, and what is remembered then and after it was loaded."""

    def body(comm):
        reducer = SparseAllreduce(N, k=12, comm=comm, algorithm="oktopk", feedback=rule)
        random = np.random.default_rng(comm.rank)
        results = [reducer.step(random.standard_normal(N, np.float32), check=step % 2 == 0) for step in range(4)]
        results.append(reducer.flush())
        saved = reducer.state_dict()
        reducer.load_state_dict(saved)
        arrays = [*results, saved["residual"], saved["last"], *whole_state(reducer.feedback).values()]
        return [array.tobytes() for array in arrays]

    return World(3).run(body)


def test_a_complete_rule_of_release_0_2_gives_the_bits_of_the_same_rule_in_the_form_of_today():
    with pytest.warns(
        DeprecationWarning, match="Former.state must take replicated; .*owed is deprecated: write pend"
    ) as told:
        Former = former_halving()
    assert len(told) == 1 and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # none but the one
        assert Former().traits == Halving().traits
        assert trained(Former()) == trained(Halving())
    buffer = np.ones(N, np.float32)
    started = Former().start(Layout.of(N), True, 3)
    started.bind_buffer(buffer)
    assert started.pending() is buffer and not buffer.any()


@pytest.mark.parametrize("base", [ErrorFeedback, LeakyFeedback, MomentumCorrection, GlobalMomentum, EF21])
def test_a_class_of_release_0_2_that_extends_a_rule_finds_former_members_by_super(base):
    """It counts its calls, and gives the bits of the rule that it extends, with fewer ranks too."""
    with pytest.warns(DeprecationWarning, match="Counting.consume must take ranks"):

        class Counting(base):
            calls = 0

            def consume(self, sent, total):
                self.calls += 1
                super().consume(sent, total)

            def given(self, acc, sent):
                self.calls += 1
                return super().given(acc, sent)

            def state(self):
                return super().state()

            def common(self):
                return super().common()

            def load(self, state):
                self.calls += 1
                super().load(state)

    def steps(rule):
        rule = rule.start(Layout.of(4), False, 4)
        for ranks in (4, 3):
            acc = joined(rule, np.arange(4, dtype=np.float32))
            before, sent = acc.copy(), picked(acc, {1, 3})
            results = [rule.consume(sent, sent, ranks), rule.contribution(before, sent)]
            rule.load({name: array.copy() for name, array in whole_state(rule).items()}, 2)
            rule.withhold([slice(0, 2)])
        results += [*whole_state(rule).values(), joined(rule, np.ones(4, np.float32))]
        return [array.tobytes() for array in results if not isinstance(array, SparseVector)], rule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of super()
        (expected, _), (found, counting) = steps(base()), steps(Counting())
    assert found == expected and counting.calls == 6


@pytest.mark.parametrize("kind", FEEDBACKS)
def test_former_names_are_read_with_a_warning(kind):
    rule = FEEDBACKS[kind]().start(Layout.of(3), False, 2)
    sent = picked(joined(rule, np.ones(3, np.float32)), {1})

    def read(name, today):
        with pytest.warns(DeprecationWarning, match=f"^{name} is deprecated: write {today}") as told:
            value = getattr(rule, name)
        assert told[0].filename == __file__
        return value

    renamed = {"owes": "defers", "divisible": "shardable", "works_in_place": "works_in_place", "leak": "leak"}
    if "momentum" not in vars(rule):  # a hyperparameter
        renamed["momentum"] = "momentum"
    for name, trait in renamed.items():
        assert read(name, f"traits.{trait}") == getattr(rule.traits, trait)
    assert read("owed", "pending") == rule.pending and read("adopt", "bind_buffer") == rule.bind_buffer
    assert read("common", "state")().keys() == rule.state(replicated=True).keys()
    result = rule.consume(sent, sent)
    outcome = read("outcome", "what consume returns")(sent)
    assert outcome is result or outcome.tolist() == result.tolist()
    assert read("given", "contribution") == rule.contribution
    read("share_among", "consume")(3)
    with pytest.raises(AttributeError, match="has no attribute 'keeps'"):
        _ = rule.keeps
