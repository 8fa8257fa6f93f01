"""The picture of a step: what it is made of, and that training draws one; and the trace of all ranks beside it."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import pytest

from sparse_mpi.comm import NullComm
from sparse_mpi.comm.background import Span
from sparse_mpi.comm.streams import Marks
from sparse_mpi.monitor.tracer import BucketTrace, Tracer
from sparse_train.records.metrics import Stamps, record
from sparse_train.records.timeline import Recorder, StepTrace, on_device, record_of, trace_events

from ..fakes.fake_device import Event
from .small_program import train


def test_a_step_of_median_length_is_drawn(tmp_path):
    class Reduction:
        def record(self):
            return Tracer(NullComm(1))

    recorder = Recorder(Reduction(), tmp_path / "new" / "t.png")
    for number, seconds in ((1, 9.0), (2, 2.0), (3, 1.0)):
        recorder.add(number, Stamps(0.0, 0.1, 0.2, 0.3, seconds))
    assert (
        recorder.draw(NullComm()).startswith("timeline of step 2 in ")
        and (tmp_path / "new" / "t.png").stat().st_size > 5000
    )


def test_times_on_a_device_are_those_of_its_events(device, tmp_path):
    """The host is 100 s ahead of the device's clock, and has queued the passes long before they were done."""
    begun = 5000  # milliseconds of the device's clock

    def event(seconds):
        made = Event()
        made.time = begun + 1e3 * seconds
        return made

    host = Stamps(100.0, 100.1, 100.2, 102.6, 102.7)  # all but the passes' ends were recorded as they were reached
    marks = tuple(map(event, (0.0, 1.0, 2.0, 2.6, 3.0)))
    buckets = [
        BucketTrace(
            Span(100.15, 100.16, 101.9), [(100.17, 101.6)], [(101.6, 101.9)], Marks(*map(event, (1.2, 1.3, 1.9)))
        ),
        BucketTrace(
            Span(100.2, 101.9, 102.5), [(101.9, 102.2)], [(102.2, 102.5)], Marks(*map(event, (2.0, 2.0, 2.55)))
        ),
    ]
    recorder = Recorder(SimpleNamespace(record=lambda: None), tmp_path / "step.svg")
    recorder._steps.extend([StepTrace(1, host, buckets, marks)] * 2)
    assert device.events == []
    said = recorder.draw(NullComm())
    assert device.events == [marks[-1]]  # the host has waited once, for the end of the step that is drawn
    assert said.endswith("1.1500 s of reductions, 0.6000 s exposed, in a step of 3.0000 s")
    step = on_device(StepTrace(1, host, buckets, marks))
    assert step.stamps == pytest.approx((0, 1, 2, 2.6, 3)) and step.buckets[1].span == pytest.approx((2, 2, 2.55))
    selection, call = step.buckets[0].selections[0], step.buckets[0].calls[0]
    assert selection == pytest.approx((1.3, 1.6)) and call == pytest.approx((1.6, 1.9))  # waiting is no selection


def test_without_steps_there_is_nothing_to_draw(tmp_path):
    """As in a run that is resumed where it was over."""
    recorder = Recorder(SimpleNamespace(record=lambda: None), tmp_path / "step.png")
    assert "there was no step to draw" in recorder.draw(NullComm()) and not (tmp_path / "step.png").exists()


def test_a_file_that_cannot_be_drawn_is_refused_before_training(tmp_path, monkeypatch):
    def opened(file):
        return record(Namespace(timeline=file, out=tmp_path / "run", plot=False, spares=0), NullComm())

    def refused(file):
        with pytest.raises((OSError, ImportError)) as error:
            opened(file)
        return str(error.value)

    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    assert "--timeline" in refused(tmp_path / "file" / "step.png") and "Is a dir" in refused(tmp_path / "folder.png")
    assert not (tmp_path / "run").exists()
    (tmp_path / "old.png").write_text("old")
    for file in (tmp_path / "old.png", tmp_path / "new.png"):
        opened(file).close()
    assert (tmp_path / "old.png").read_text() == "old" and not (tmp_path / "new.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert refused(tmp_path / "new.png").startswith("--timeline needs matplotlib")


# What Chrome's trace event format asks of the events of each phase, beside ph, name, pid and tid
SCHEMA = {"M": {"args": dict}, "X": {"ts": float, "dur": float}, "s": {"ts": float, "id": str}}
SCHEMA["f"] = SCHEMA["s"] | {"bp": str}


def assert_is_a_trace(trace):
    """Events have the fields of their phase, slices of a thread lie in each other or apart, and arrows join slices."""
    assert next(iter(trace)) == "traceEvents" and trace["displayTimeUnit"] == "ms"
    slices = {}
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        for field, kind in SCHEMA[event["ph"]].items():
            assert isinstance(event[field], kind), (event, field)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and math.isfinite(event["ts"])
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    rounding = 0.01  # microseconds
    for spans in slices.values():
        for begin, end in spans:
            for other, its_end in spans:
                apart = end <= other + rounding or its_end <= begin + rounding
                inside = begin >= other - rounding and end <= its_end + rounding
                around = begin <= other + rounding and end >= its_end - rounding
                assert apart or inside or around
    arrows = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event["ph"])
            around = slices[event["pid"], event["tid"]]
            assert any(begin - rounding <= event["ts"] <= end + rounding for begin, end in around), event
    assert all(ends == ["s", "f"] for ends in arrows.values())
    return slices, arrows


def test_steps_of_all_ranks_are_events_of_one_clock():
    def step(at):
        bucket = BucketTrace(Span(at + 2.0, at + 2.1, at + 2.6), [(at + 2.1, at + 2.2)], [(at + 2.2, at + 2.5)])
        return StepTrace(7, Stamps(at + 1.0, at + 1.5, at + 3.0, at + 3.2, at + 3.3), [bucket])

    events = trace_events([record_of(step(50.0)), None, record_of(step(40.0))])
    assert_is_a_trace({"traceEvents": events, "displayTimeUnit": "ms"})
    named = {(e["pid"], e["tid"], e["name"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert named[2, 0, "forward"] == (0, 5e5) and named[0, 0, "forward"] == (1e7, 5e5)
    assert named[2, 1, "selection"] == pytest.approx((1.1e6, 1e5)) and named[2, 1, "exchange"][0] == 1.2e6
    arrow = [(e["ph"], e["tid"], e["ts"]) for e in events if e.get("id") == "2.1"]
    assert arrow == [("s", 0, 1e6), ("f", 1, 1.1e6)]
    titles = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert titles == [
        *((0, 0, "rank 0"), (0, 0, "passes"), (0, 1, "bucket 1")),
        *((2, 0, "rank 2"), (2, 0, "passes"), (2, 1, "bucket 1")),
    ]


@pytest.mark.usefixtures("no_signals")
def test_training_draws_what_rank_0_did_and_traces_all(tmp_path, capsys):
    options = "--algo oktopk --max-steps 5 --bucket-mb 0.0001 --timeline".split()
    train(2, tmp_path / "run", *options, str(tmp_path / "step.png"))
    assert capsys.readouterr().out.count("timeline of step") == 1
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((tmp_path / "step.json").read_text())
    slices, arrows = assert_is_a_trace(trace)
    buckets = len(trace["timeline"]["rows"]) - 1
    assert buckets >= 2 and slices.keys() == {(rank, thread) for rank in range(2) for thread in range(buckets + 1)}
    assert len(arrows) == 2 * buckets
    names = Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert names["forward"] == names["update"] == 2 and names["exchange"] >= names["selection"] >= 2 * buckets
