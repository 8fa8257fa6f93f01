"""The files that operators collect: they have what the reducers reported, in a format that Prometheus reads."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi import SparseAllreduce, World
from sparse_mpi.comm import NullComm
from sparse_mpi.monitor import metrics
from sparse_mpi.monitor.step_report import combined

from ..gradients import gradient

N, STEPS = 2000, 4
ROOT = Path(__file__).parents[2]
COUNTERS = {
    "sent_bytes": lambda report: report.traffic.sent,
    "received_bytes": lambda report: report.traffic.received,
    "control_bytes": lambda report: report.traffic.control,
    "messages": lambda report: report.traffic.messages,
    "select_seconds": lambda report: report.select_seconds,
    "exchange_seconds": lambda report: report.exchange_seconds,
    "merge_seconds": lambda report: report.merge_seconds,
    "selected_entries": lambda report: report.selected,
    "result_entries": lambda report: report.total,
}


def parsed(file):
    """The families of a file by name, after a look at what a collector needs of each."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(file.read_text())}
    assert families
    for name, family in families.items():
        assert name.startswith("sparse_mpi_") and family.documentation and family.type in ("counter", "gauge")
        assert all(set(sample.labels) == {"job", "rank", "reducer"} for sample in family.samples)
    return families


def values(families, reducer="0"):
    """What is written of one reducer, without the prefix; a counter without its suffix."""
    return {
        name.removeprefix("sparse_mpi_"): sample.value
        for name, family in families.items()
        for sample in family.samples
        if sample.labels["reducer"] == reducer
    }


@pytest.fixture
def folder(metrics_folder):
    """Files of every step, and of this test alone."""
    return metrics_folder


@pytest.mark.parametrize("algorithm", ["elect", "oktopk", "dense"])
def test_counters_are_what_was_reported_and_never_fall(folder, algorithm):
    def body(comm):
        reducer, reports, seen = SparseAllreduce(N, k=20, comm=comm, algorithm=algorithm), [], []
        for step in range(STEPS):
            reducer.step(gradient(comm.rank, step, N))
            reports.append(reducer.report)
            seen.append(values(parsed(folder / f"sparse_mpi-test-{comm.rank}.prom")))
        return reports, seen, float(np.linalg.norm(reducer.residual))

    for reports, seen, norm in World(3).run(body):
        for step, found in enumerate(seen):
            whole = combined(reports[: step + 1])
            assert {name: found[name] for name in COUNTERS} == {name: of(whole) for name, of in COUNTERS.items()}
            assert found["steps"] == step + 1 and found["elements"] == N
            assert found["density_ratio"] == reports[step].selected / N
            assert found["imbalance_ratio"] == reports[step].traffic.received / reports[step].traffic.sent
        assert seen[-1]["sent_bytes"] > seen[0]["sent_bytes"] > 0
        assert seen[-1]["residual_norm"] == pytest.approx(norm) and (norm > 0) == (algorithm != "dense")
    assert len(list(folder.iterdir())) == 3  # no temporary file is left


def test_all_that_is_written_is_read(folder):
    SparseAllreduce(N, k=20, comm=NullComm()).step(gradient(0, 0, N))
    text = (folder / "sparse_mpi-test-0.prom").read_text()
    families = parsed(folder / "sparse_mpi-test-0.prom")
    assert len(families) == len(metrics.METRICS) == text.count("# HELP ") == text.count("# TYPE ")
    assert {family.type for name, family in families.items() if name == "sparse_mpi_steps"} == {"counter"}
    assert values(families)["imbalance_ratio"] == 1  # alone, with nothing sent


def test_series_are_bounded(folder, monkeypatch):
    """Those of reducers beyond the bound are added up."""
    monkeypatch.setattr(metrics, "MOST_REDUCERS", 2)
    reducers = [SparseAllreduce(N, k=20, comm=NullComm()) for _ in range(5)]
    for reducer in reducers:
        reducer.step(gradient(0, 0, N))
    families = parsed(folder / "sparse_mpi-test-0.prom")
    assert {sample.labels["reducer"] for sample in families["sparse_mpi_steps"].samples} == {"0", "1", "other"}
    assert [values(families, reducer)["steps"] for reducer in ("0", "1", "other")] == [1, 1, 3]
    written = sum(reducer.report.selected for reducer in reducers[2:])
    assert values(families, "other")["selected_entries"] == written


def test_files_are_written_at_most_every_few_seconds_and_at_the_end(folder, monkeypatch):
    clock = iter([100.0, 101.0, 104.9, 105.1, 106.0])
    monkeypatch.setattr(metrics, "monotonic", lambda: next(clock))
    monkeypatch.setattr(metrics, "SECONDS", 5.0)
    reducer, steps, norms = SparseAllreduce(N, k=20, comm=NullComm()), [], []
    for step in range(5):
        reducer.step(gradient(0, step, N))
        found = values(parsed(folder / "sparse_mpi-test-0.prom"))
        steps.append(found["steps"])
        norms.append(found["residual_norm"])
    assert steps == [1, 1, 1, 4, 4] and len(set(norms)) == 2
    metrics.write_all()
    assert values(parsed(folder / "sparse_mpi-test-0.prom"))["steps"] == 5


def steps_of(comm):
    reducer = SparseAllreduce(N, k=20, comm=comm)
    return [reducer.step(gradient(comm.rank, step, N)).to_dense() for step in range(STEPS)]


def no_space(self, *_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))


@pytest.mark.parametrize("trouble", ["missing", "a file", "taken", "full"])
def test_what_cannot_be_written_is_said_once_and_training_goes_on(folder, monkeypatch, caplog, trouble):
    expected = None
    with monkeypatch.context() as unobserved:
        unobserved.delenv(metrics.DIRECTORY)
        expected = World(2).run(steps_of)
    place = folder / "metrics"
    monkeypatch.setenv(metrics.DIRECTORY, str(place))
    if trouble == "a file":
        place.write_text("")
    elif trouble != "missing":
        place.mkdir()
    if trouble == "taken":  # by folders of the files' names
        for rank in range(2):
            (place / f"sparse_mpi-test-{rank}.prom").mkdir()
    elif trouble == "full":
        monkeypatch.setattr(Path, "open", no_space)
    with caplog.at_level(logging.WARNING, "sparse_mpi"):
        found = World(2).run(steps_of)
    np.testing.assert_array_equal(found, expected)
    assert len(caplog.records) == 1 and caplog.text.count("SPARSE_MPI_METRICS_DIR") == 1
    assert not list(folder.rglob("*.tmp"))


def test_links_are_replaced_and_not_followed(folder, tmp_path_factory):
    theirs, file = tmp_path_factory.mktemp("theirs") / "file", folder / "sparse_mpi-test-0.prom"
    theirs.write_text("theirs")
    for link in (file, file.with_name(f"{file.name}.tmp")):
        link.symlink_to(theirs)
        SparseAllreduce(N, k=20, comm=NullComm()).step(gradient(0, 0, N))
        assert theirs.read_text() == "theirs" and list(folder.iterdir()) == [file] and not file.is_symlink()
        assert values(parsed(file))["steps"] == 1
        file.unlink()


def test_a_folder_that_is_made_later_gets_the_files(folder, monkeypatch):
    monkeypatch.setenv(metrics.DIRECTORY, str(folder / "later"))
    reducer = SparseAllreduce(N, k=20, comm=NullComm())
    reducer.step(gradient(0, 0, N))
    (folder / "later").mkdir()
    reducer.step(gradient(0, 1, N))
    assert values(parsed(folder / "later" / "sparse_mpi-test-0.prom"))["steps"] == 2


@pytest.mark.parametrize(
    ("job", "name", "label"),
    [
        ('night/run "7" \\ again', "night_run__7____again", 'night/run "7" \\ again'),
        ("n\u00e4cht\udcff", "n\u00e4cht_", "n\u00e4cht?"),  # a byte that is no text
    ],
)
def test_labels_and_names_of_files_take_any_job(folder, monkeypatch, job, name, label):
    monkeypatch.setenv(metrics.JOB, job)
    SparseAllreduce(N, k=20, comm=NullComm()).step(gradient(0, 0, N))
    (file,) = folder.glob("*.prom")
    assert file.name == f"sparse_mpi-{name}-0.prom"
    (sample,) = parsed(file)["sparse_mpi_steps"].samples
    assert sample.labels == {"job": label, "rank": "0", "reducer": "0"}


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5"}, "41.2-5"),
        ({"SLURM_JOB_ID": "41", "TORCHELASTIC_RUN_ID": "abc", "RANK": "3", "SLURM_PROCID": "0"}, "41-3"),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "3"}, f"{metrics.socket.gethostname()}-{os.getppid()}-3"),
        ({"PMIX_NAMESPACE": "prterun-a-1@1", "PMIX_RANK": "2"}, "prterun-a-1_1-2"),
    ],
)
def test_launchers_tell_job_and_rank(folder, monkeypatch, told, name):
    """The rank of a communicator that is a part of a job would come twice."""
    monkeypatch.delenv(metrics.JOB)
    for variable, value in told.items():
        monkeypatch.setenv(variable, value)
    assert metrics.file_of(NullComm()).path == folder / f"sparse_mpi-{name}.prom"


NAMES = [f"sparse_mpi_{name}" for name, *_ in metrics.METRICS]


def test_the_dashboard_asks_for_what_is_written():
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    panels = dashboard["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"]]
    assert set(re.findall(r"sparse_mpi_\w+", " ".join(asked))) == set(NAMES)
    labels = " ".join(re.findall(r"(?:by|on) \(([^()]*)\)", " ".join(asked)))
    assert set(re.findall(r"\w+", labels)) == {"job", "rank"}
    assert all(expression.count("(") == expression.count(")") for expression in asked)
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_the_page_says_what_each_metric_means():
    page = (ROOT / "docs" / "guides" / "observe.md").read_text()
    rows = re.findall(r"^\| `(sparse_mpi_\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(name, "counter" if name.endswith("_total") else "gauge") for name in NAMES]
    bound = (metrics.MOST_REDUCERS + 1) * len(NAMES)
    assert f"at most {bound} series" in page and f"first {metrics.MOST_REDUCERS}" in page.replace("\n", " ")
    assert f"every {metrics.SECONDS:.0f} seconds" in page
