"""SVGs are written shorter, and show the same."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Tree

import pytest

from sparse_mpi.tools.figures.style import LIGHT, panels, write
from sparse_mpi.tools.figures.svg import SVG, shorten

HEAD = f'<svg xmlns="{SVG}" xmlns:xlink="http://www.w3.org/1999/xlink"><defs><style>*{{}}</style></defs>'


def shortened(tmp_path, body: str) -> str:
    file = tmp_path / "a.svg"
    file.write_text(f"{HEAD}{body}</svg>")
    shorten(file)
    return file.read_text()


def test_every_reference_of_a_figure_leads_somewhere_and_words_are_text(tmp_path):
    pytest.importorskip("matplotlib")

    def figure(look):
        shown, axes = panels(1, 3, 2.0)
        for panel in axes[0]:
            panel.loglog([1, 1e5], [1, 2], "o-", label="steps")
            panel.set_title("seconds of steps")
            panel.bar([1], [2], hatch="//")
        return shown

    write(figure, tmp_path / "f.svg")
    root = Tree.parse(tmp_path / "f.svg").getroot()
    named = {element.get("id") for element in root.iter()} - {None}
    text = (tmp_path / "f.svg").read_text()
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) == named
    assert text.count(">seconds of steps</text>") == 3
    assert LIGHT.paper in text and len(text) < 15_000


def test_paths_are_told_step_by_step_without_summing_up_errors(tmp_path):
    points = [(100 + 1.04 * step, 7 * step % 5 + 0.26) for step in range(200)]
    path = "M 100.00 0.26 " + " ".join(f"L {x:.6f} {y:.6f}" for x, y in points[1:]) + " z M 5 5 L 9 5"
    told = re.search(r' d="([^"]+)"', shortened(tmp_path, f'<path d="{path}"/>'))[1]
    assert told.endswith("zM5 5h4")
    x, y = 100.0, 0.3
    steps = re.findall(r"([lhv])([^lhvz]*)", told)
    for (command, told_by), (right, down) in zip(steps, points[1:], strict=False):
        moves = [float(number) for number in re.findall(r"-?[\d.]+", told_by)]
        x += moves[0] if command in "lh" else 0
        y += moves[-1] if command in "lv" else 0
        assert abs(x - right) < 0.06 and abs(y - down) < 0.06
