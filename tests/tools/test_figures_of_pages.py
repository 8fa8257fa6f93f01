"""Figures of the pages: each has words for who cannot see it, and a command."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURES = sorted((ROOT / "docs").rglob("*.svg"))
FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)]*\.svg)\)")


def test_pages_show_figures_with_words_and_every_figure_has_a_command():
    """`runs/figures.py` has the command; for what no record holds it is on a page."""
    shown = [(page.parent / file, words) for page in PAGES for words, file in FIGURE.findall(page.read_text())]
    assert {file.resolve() for file, _ in shown} == set(FIGURES) and min(len(words) for _, words in shown) >= 20
    told = runpy.run_path(str(ROOT / "runs" / "figures.py"))["FIGURES"]
    pages = "".join(page.read_text() for page in PAGES)
    assert len(FIGURES) > 15 and {ROOT / figure for figure in told} <= set(FIGURES)
    for file in FIGURES:
        assert file.relative_to(ROOT).as_posix() in told or f"--plot {file.name}" in pages, file


def test_results_are_few_and_small():
    """One page of tables, and the records and figures that it and others show."""
    files = list((ROOT / "docs" / "results").iterdir())
    assert len(files) <= 60 and sum(file.stat().st_size for file in files) <= 2_000_000
