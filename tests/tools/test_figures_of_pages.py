"""Figures of the pages: each is there for light and dark pages, with words for who cannot see it, and a command."""

from __future__ import annotations

import re
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


def test_every_figure_has_a_twin_and_a_command():
    """`make figures` has the command; for what no record holds it is on a page."""
    makefile = (ROOT / "Makefile").read_text()
    told = makefile[makefile.index("\nDRAWN :=") : makefile.index("\ngpu:")] + "".join(
        page.read_text() for page in PAGES
    )
    assert len(FIGURES) > 20
    for file in FIGURES:
        assert file.with_name(f"{file.stem}-dark.svg").exists(), file
        names = f"{file.stem}|{file.parent.name}" if file.stem == "gaps" else file.stem.replace("step-", "")
        assert re.search(rf"(DRAWN := .*|for name in .*|--(plot|strip|timeline) \S*)\b({names})\b", told, re.DOTALL), (
            file
        )
    dark = [file for file in (ROOT / "docs").rglob("*-dark.svg")]
    assert {file.with_name(file.name.replace("-dark", "")) for file in dark} == set(FIGURES)
