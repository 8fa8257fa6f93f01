"""All figures: at most six lines a panel, each named where it ends, no colour twice."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from sparse_mpi.__main__ import main
from sparse_mpi_bench.commands.draw import KINDS, kind_of, read
from sparse_mpi_bench.figures.style import DPI, GREY, MOST, NAME, drawn

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURES = sorted((ROOT / "docs").rglob("*.svg"))
FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)]*\.svg)\)")
RECORDS = {
    "compare-vgg16": ["compare"],
    "sparse-compare": ["sparse"],
    "volume-vgg": ["volume"],
    "predict-held-out": ["check"],
    "overlap-timeline": ["timeline"],
    "slow-networks": ["race"],
    "accuracy-lstm": ["gaps", "curves"],
    "accuracy-vgg": ["gaps", "curves"],
    "residual-vgg": ["curves"],
}
DRAWN = ("compare-vgg16", "predict-held-out", "slow-networks", "accuracy-lstm")


@pytest.mark.thin(0, record=DRAWN)  # seconds each
@pytest.mark.parametrize(("record", "kind"), [(record, kind) for record, kinds in RECORDS.items() for kind in kinds])
def test_few_lines_each_named_where_it_ends_in_a_colour_of_its_own(record, kind):
    records = read([RESULTS / f"{record}.json"])
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


def test_a_title_says_the_point_and_some_parts_are_drawn_alone(tmp_path):
    record, file = str(RESULTS / "sparse-compare.json"), tmp_path / "times.svg"
    words = ["--only", "kmers", "uniform", "--title", "auto is the fastest"]
    assert main(["bench", "draw", record, "--plot", str(file), *words]) == 0
    found = [
        text
        for text in ("auto is the fastest", "band: ", "kmers, 1gbit: ms", "uniform", "zipf")
        if text in file.read_text()
    ]
    assert found == ["auto is the fastest", "band: ", "kmers, 1gbit: ms", "uniform"]


@pytest.mark.thin(0, extension=("svg",))
@pytest.mark.parametrize("extension", ["svg", "png", "pdf"])
def test_a_figure_is_the_same_each_time(tmp_path, extension):
    record, file = str(RESULTS / "overlap-timeline.json"), tmp_path / f"timeline.{extension}"
    assert main(["bench", "draw", record, "--plot", str(file)]) == 0
    first = file.read_bytes()
    assert 5000 < len(first) < 200_000 and (extension != "svg" or b">backward</text>" in first)
    main(["bench", "draw", record, "--plot", str(file)])
    assert file.read_bytes() == first


def test_a_trace_is_drawn_from_its_record_and_names_its_phases(tmp_path):
    file = tmp_path / "trace.json"
    main(["bench", "trace", "--ranks", "4", "--n", "1000", "--algorithms", "gtopk", "elect", "--json", str(file)])
    records = [json.loads(file.read_text())]
    figure = drawn(partial(kind_of(records).figure, records))
    phases = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert phases == ["consistency.check_consistency", "gtopk.climb", "gtopk.reduce"]
    handles = [to_hex(patch.get_facecolor()) for patch in figure.axes[3].get_legend().get_patches()]
    assert len(set(handles)) == len(handles) > 4


def test_pages_show_figures_with_words_and_every_figure_has_a_command():
    shown = [(page.parent / file, words) for page in PAGES for words, file in FIGURE.findall(page.read_text())]
    assert {file.resolve() for file, _ in shown} == set(FIGURES) and min(len(words) for _, words in shown) >= 20
    told = json.loads((ROOT / "runs" / "figures.json").read_text())
    assert len(FIGURES) > 10 and {ROOT / figure for figure in told} == set(FIGURES)
