"""All figures: at most six lines a panel, each named where it ends, no colour twice."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sparse_mpi.__main__ import main
from sparse_mpi_bench.commands.draw import KINDS, kind_of, read
from sparse_mpi_bench.figures.style import DPI, GREY, LINES, MOST, NAME, PAPER, apart, batches, drawn

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex, to_rgb

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDS = {
    "compare-vgg16": ["compare", "best"],
    "select-cpu": ["select"],
    "sparse-compare": ["sparse-compare", "sparse-times"],
    "sparse-volume": ["sparse-volume"],
    "volume-vgg": ["volume"],
    "predict-held-out": ["check"],
    "overlap-timeline": ["timeline"],
    "slow-networks": ["race"],
    "changing-link": ["race"],
    "accuracy-lstm": ["gaps", "curves"],
    "accuracy-vgg": ["gaps", "curves"],
    "residual-vgg": ["curves"],
}
DRAWN = ("compare-vgg16", "sparse-volume", "predict-held-out", "changing-link", "accuracy-lstm")
# What colour-blind eyes see of linear red, green and blue (Machado, Oliveira, Fernandes 2009)
SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def records_of(pattern: str) -> list[dict]:
    files = sorted(RESULTS.glob(f"{pattern}.json"))
    assert files, f"no record {pattern}"
    return read(files)


@pytest.mark.thin(0, record=DRAWN)  # seconds each
@pytest.mark.parametrize(("record", "kind"), [(record, kind) for record, kinds in RECORDS.items() for kind in kinds])
def test_few_lines_each_named_where_it_ends_in_a_colour_of_its_own(record, kind):
    records = records_of(record)
    figure = drawn(partial(kind_of(records, kind).figure, records))
    for axes in figure.axes:
        lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
        texts = [text for text in axes.texts if text.get_gid() == NAME]
        colours = [to_hex(line.get_color()) for line in lines]
        assert len(lines) <= MOST and len(set(colours)) == len(colours), axes.get_title()
        assert {line.get_label(): to_hex(line.get_color()) for line in lines}.items() <= {
            text.get_text(): to_hex(text.get_color()) for text in texts
        }.items()
        unnamed = {to_hex(line.get_color()) for line in axes.get_lines()} - set(colours)
        assert len(colours) + len(unnamed - {GREY}) <= MOST, axes.get_title()
        heights = sorted(axes.transData.transform(text.xy)[1] + text.xyann[1] * DPI / 72 for text in texts)
        assert all(high - low > 13 for low, high in zip(heights, heights[1:], strict=False)), axes.get_title()


def test_every_kind_of_record_is_tried():
    assert {kind for kinds in RECORDS.values() for kind in kinds} | {"trace"} == set(KINDS)


def brightness(colour: str) -> float:
    return float(np.dot([0.2126, 0.7152, 0.0722], linear(colour)))


def linear(colour: str) -> np.ndarray:
    shown = np.array(to_rgb(colour))
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Return linear light in CIE 1976 L*a*b*, where distances are about what eyes tell apart."""
    white = [0.9505, 1, 1.089]
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(xyz @ np.clip(light, 0, 1) / white, 0.009))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_differ_for_all_eyes_and_stand_out(eyes):
    assert len(LINES) == MOST
    seen = [lab(np.array(SEEN[eyes]) @ linear(colour)) for colour in LINES]
    assert min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]) > 20
    paper = brightness(PAPER)
    for colour in LINES:
        low, high = sorted((brightness(colour), paper))
        assert (high + 0.05) / (low + 0.05) >= 3  # of the Web Content Accessibility Guidelines, for graphics


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([5.0, 5.0], [4.0, 6.0]),
        ([6.0, 5.0], [6.5, 4.5]),
        ([0.0, 0.0, 9.0], [0.0, 2.0, 9.0]),
        ([10.0, 10.0], [8.0, 10.0]),
        ([3.0, 7.0], [3.0, 7.0]),
        ([0.0] * 8, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]),
    ],
)
def test_names_lie_apart_and_as_near_as_can_be(wanted, found):
    assert apart(wanted, 2.0, 0.0, 10.0) == pytest.approx(found)


def test_batches_are_few_and_about_equally_large():
    assert batches("abcdefg", 3) == [["a", "b"], ["c", "d"], ["e", "f", "g"]]
    assert batches("abc", 3) == [["a", "b", "c"]] and batches("", 3) == [[]]


def test_a_title_says_the_point_and_some_parts_are_drawn_alone(tmp_path):
    record, file = str(RESULTS / "sparse-compare.json"), tmp_path / "times.svg"
    words = ["--kind", "sparse-times", "--only", "kmers", "uniform", "--title", "auto is the fastest"]
    assert main(["draw", record, "--plot", str(file), *words]) == 0
    found = [
        text
        for text in ("auto is the fastest", "band: ", "kmers, 1gbit: ms", "uniform", "zipf")
        if text in file.read_text()
    ]
    assert found == ["auto is the fastest", "band: ", "kmers, 1gbit: ms", "uniform"]


def test_parts_that_are_not_there_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["draw", str(RESULTS / "slow-networks.json"), "--plot", str(tmp_path / "f.svg"), "--only", "9gbit"])
    assert "--only must name none, 10mbit, 100mbit, 1gbit" in capsys.readouterr().err


@pytest.mark.thin(0, extension=("svg",))
@pytest.mark.parametrize("extension", ["svg", "png", "pdf"])
def test_a_figure_is_the_same_each_time(tmp_path, extension):
    record, file = str(RESULTS / "overlap-timeline.json"), tmp_path / f"timeline.{extension}"
    assert main(["draw", record, "--plot", str(file)]) == 0
    first = file.read_bytes()
    assert 5000 < len(first) < 200_000 and (extension != "svg" or b">backward</text>" in first)
    main(["draw", record, "--plot", str(file)])
    assert file.read_bytes() == first


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1]", "must be a record that a command wrote with --json"),
        ("{}", "records must be of one kind that has a figure"),
        ('{"volumes": []}', "records must be of one kind that has a figure"),
    ],
)
def test_a_file_that_has_no_figure_is_refused(tmp_path, content, says):
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(SystemExit, match=says):
        main(["draw", str(tmp_path / "record.json"), "--plot", str(tmp_path / "f.svg")])


def test_a_trace_is_drawn_from_its_record_and_names_its_phases(tmp_path):
    file = tmp_path / "trace.json"
    main(["trace", "--ranks", "4", "--n", "1000", "--algorithms", "gtopk", "elect", "--json", str(file)])
    records = [json.loads(file.read_text())]
    figure = drawn(partial(kind_of(records).figure, records))
    phases = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert phases == ["consistency.check_consistency", "gtopk.climb", "gtopk.reduce"]
    handles = [to_hex(patch.get_facecolor()) for patch in figure.axes[3].get_legend().get_patches()]
    assert len(set(handles)) == len(handles) > 4
