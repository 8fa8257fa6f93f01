"""Links that change: what options and traces say, as a function of time, wherever the tests run."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_mpi.predict.rates import LEAST, MOST, parse, show
from sparse_mpi_bench.emulation.schedule import DOWN, describe, trace, turns

GBIT, SLOW = 10**9, 50_000_000
BITS = st.one_of(st.none(), st.integers(LEAST, MOST))
TIMES = st.fractions(0, 10_000, max_denominator=1000)


@given(BITS)
def test_a_rate_is_shown_as_it_is_written(bits):
    assert parse(show(bits)) == bits


def test_rates_of_hosts_are_described_by_what_most_of_them_have():
    assert describe((GBIT,) * 3) == "1gbit" and describe((None,) * 2) == "no limit"
    assert describe((GBIT, DOWN, GBIT, SLOW)) == "1gbit (host 2 down, host 4 50mbit)"


@given(st.lists(st.tuples(BITS, st.integers(100, 99_999)), min_size=2, max_size=6), TIMES)
def test_turns_repeat_and_change_when_they_are_due(phases, second):
    schedule = turns(",".join(show(bits) for bits, _ in phases), ",".join(f"{ms}ms" for _, ms in phases), 1)
    period = Fraction(sum(ms for _, ms in phases), 1000)
    assert schedule.at(second) == schedule.at(second + 7 * period)
    due = schedule.after(second)
    assert 0 < due - second <= Fraction(max(ms for _, ms in phases), 1000)
    # All the time until then nothing changes, and then it is the next one's turn
    assert schedule.at(second + (due - second) * Fraction(999, 1000)) == schedule.at(second)
    within, turn = second % period, 0
    while within >= Fraction(phases[turn][1], 1000):
        within -= Fraction(phases[turn][1], 1000)
        turn += 1
    assert schedule.at(second) == (phases[turn][0],)
    assert schedule.at(due) == (phases[(turn + 1) % len(phases)][0],)


@given(
    st.dictionaries(st.integers(0, 10**7), st.tuples(BITS, st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=8),
    st.sampled_from([" ", ",", "\t", ", "]),
    st.booleans(),
    TIMES,
)
def test_a_trace_is_what_its_lines_say(tmp_path_factory, by_ms, separator, heading, second):
    lines = [(Fraction(ms, 1000), *by_ms[ms]) for ms in sorted(by_ms)]
    file = tmp_path_factory.getbasetemp() / "trace"
    rows = [[f"{float(when):.3f}", show(bits), *([str(host)] if host else [])] for when, bits, host in lines]
    file.write_text("\n".join(separator.join(row) for row in [*[["seconds", "rate", "host"]] * heading, *rows]))
    schedule, expected = trace(file, "7mbit", 3), [7_000_000] * 3
    for when, bits, host in lines:
        if when <= second:
            expected = [bits if host in (None, other) else before for other, before in enumerate(expected, 1)]
    assert schedule.at(second) == tuple(expected)
    assert schedule.after(second) == min((when for when, *_ in lines if when > second), default=None)


def test_a_trace_may_name_all_hosts_and_then_some_at_one_time(tmp_path):
    (tmp_path / "t").write_text("# slow host\n\n0 1gbit\n0 50mbit 2 # this one\n3.5,down,1\n")
    schedule = trace(tmp_path / "t", "none", 2)
    assert schedule.rates == ((GBIT, SLOW), (DOWN, SLOW)) and schedule.starts == (0, Fraction(7, 2))


WRONG_TURNS = [
    ("1gbit,50mbit", "30", "every must be a number with one of the units ms, s, min, got '30'"),
    ("1gbit,50mbit", "0s", "every must be at least 0.1s, got 0s"),
    ("1gbit,50mbit", "1s,2s,3s", "every must be one length of time or 2"),
    ("1gbit,", "1s", "rate must be a number with a unit"),
    ("1gbit,50", "1s", "rate must be a number with a unit such as 1gbit, 25Gb/s or 12.5MB/s, or none, got '50'"),
    ("1gbit,0mbit", "1s", "rate must be finite and more than 0, got 0mbit; down stops a link"),
    (f"1gbit,{'9' * 400}gbit", "1s", "rate must be finite"),
    ("down,1gbit", "1s", "rate must not be down at second 0"),
    ("down", None, "rate must not be down at second 0"),
]
WRONG_TRACES = [
    ("", "is empty"),
    ("seconds rate\n# nothing\n", "is empty"),
    ("0 1gbit\n5 50mbit\n4 1gbit", "line 3: seconds must ascend, got 4 after 5"),
    ("0 1gbit\n0 50mbit", "line 2: seconds must ascend, got 0 after 0"),
    ("0 1gbit\n5 0mbit", "line 2: rate must be finite and more than 0, got 0mbit"),
    ("0 1gbit\n5 fast", "line 2: rate must be a number with a unit"),
    ("0", "line 1: expected seconds, a rate, and perhaps a host, got '0'"),
    ("-1 1gbit", "line 1: seconds must be a number such as 30 or 0.5, got '-1'"),
    (f"{'9' * 400} 1gbit", "seconds must be a number"),
    ("0 1gbit 3", "line 1: host must be 1 to 2, got '3'"),
    ("0 down 2", "must not be down at second 0"),
    (b"\xff\xfe", "cannot be read"),
]


@pytest.mark.parametrize(("rates", "every", "says"), WRONG_TURNS)
def test_wrong_turns_are_named(rates, every, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}" if says.startswith(("every", "rate")) else says):
        turns(rates, every, 2)


@pytest.mark.parametrize(("text", "says"), WRONG_TRACES)
def test_a_wrong_trace_is_named_with_its_line(tmp_path, text, says):
    file = tmp_path / "trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"trace {re.escape(str(file))}.*{re.escape(says)}"):
        trace(file, "1gbit", 2)
