"""Figures of the pages: each is there for light and dark pages, with words for who cannot see it, and a command."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURES = sorted(file for file in (ROOT / "docs").rglob("*.svg") if not file.stem.endswith("-dark"))
PICTURE = re.compile(
    r'<picture>\n  <source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)-dark\.svg">\n'
    r'  <img alt="([^"]{20,})" src="\1\.svg">\n</picture>'
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_show_figures_of_both_kinds_with_words(page):
    text = page.read_text()
    shown = [page.parent / f"{found[1]}.svg" for found in PICTURE.finditer(text)]
    assert len(shown) == text.count("<img") and not re.search(r"!\[[^\]]*\]\([^)]*\.(png|svg)\)", text)
    for file in shown:
        assert file.exists() and file.with_name(f"{file.stem}-dark.svg").exists()


def test_every_figure_has_a_twin_and_a_command_and_is_shown():
    """`runs/figures.py` has the command; for what no record holds it is on a page."""
    told = runpy.run_path(str(ROOT / "runs" / "figures.py"))["FIGURES"]
    pages = "".join(page.read_text() for page in PAGES)
    assert len(FIGURES) > 15 and {ROOT / figure for figure in told} <= set(FIGURES)
    for file in FIGURES:
        assert file.with_name(f"{file.stem}-dark.svg").exists(), file
        drawn = file.relative_to(ROOT).as_posix() in told or f"--plot {file.name}" in pages
        assert drawn and re.search(rf'src="[^"]*\b{file.name}"', pages), file
    dark = [file for file in (ROOT / "docs").rglob("*-dark.svg")]
    assert {file.with_name(file.name.replace("-dark", "")) for file in dark} == set(FIGURES)


def test_results_are_few_and_small():
    """One page of tables, and the records and figures that it and others show."""
    files = list((ROOT / "docs" / "results").iterdir())
    assert len(files) <= 60 and sum(file.stat().st_size for file in files) <= 2_000_000
