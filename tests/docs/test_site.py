"""The site is built without a warning and without torch, its search works from files alone, and it has every page and
public name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..launch import ROOT

PUBLIC = ".algorithms .checkpoint .comm .ddp .fsdp .fault_tolerance .feedback .collectives .optim .select .wire"
PUBLIC = [*PUBLIC.split(), ".testing"]
ABSENT = ("torch", "mpi4py", "numba", "cupy", "lightning", "transformers", "scipy", "mypy")  # where the site is built
TABLES = {"ALGORITHMS", "CASES", "FEEDBACKS", "SELECTORS", "WIRES", "Average", "Sum", "Counts"}  # described in words


def build(source: Path, out: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does, with modules in the folder ``path`` before all others."""
    recipe = re.search(r"\n\t\$\(DOCS\)/bin/python (.*) docs build/docs\n", (ROOT / "Makefile").read_text())[1]
    command = [sys.executable, *recipe.split(), str(source), str(out)]
    variables = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240)


@pytest.mark.full("builds the whole site, 20 s")
def test_the_site_has_all_pages_and_public_names_and_a_search_without_network(tmp_path):
    (absent := tmp_path / "absent").mkdir()
    for module in ABSENT:
        (absent / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    done = build(ROOT / "docs", tmp_path, str(absent))
    assert done.returncode == 0 and not done.stderr, done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()

    described = set(re.findall(r'<dt [^>]*id="([\w.]+)"', "".join(p.read_text() for p in tmp_path.rglob("*.html"))))
    last = {name.rpartition(".")[2] for name in described}
    assert {"DiLoCo", "GradientReduction", "MPIComm", "SparseState", "sparse_hook"} <= last
    for module in ["", *PUBLIC]:
        names = importlib.import_module(f"sparse_mpi{module}").__all__
        assert set(names) - TABLES <= last, module

    torch = (tmp_path / "reference/api/torch.html").read_text()
    hook = re.search(r'id="sparse_mpi.ddp.sparse_hook">(.*?)</dt>', torch, re.DOTALL)[1]
    words = "".join(re.sub("<[^>]*>", "", hook).split())
    assert "bucket:torch.distributed.GradBucket" in words and "Future[torch.Tensor]" in words

    tree = (tmp_path / "index.html").read_text().partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    listed = re.findall(r'<a class="reference internal" href="([^"#]+)">(.*?)</a>', tree)
    pages, titles = zip(*listed, strict=True)
    assert len(pages) == len(set(pages)) == len(list((ROOT / "docs").rglob("*.md"))) - 1
    assert len(set(titles)) == len(titles) and max(map(len, titles)) < 50, titles

    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', (tmp_path / "search.html").read_text())
    assert "searchindex.js" in loaded and not [source for source in loaded if "//" in source]
    assert "oktopk" in (tmp_path / "searchindex.js").read_text()


@pytest.mark.full("builds a small site, 2 s")
@pytest.mark.parametrize("link", ["nowhere.md", "other.md#no-such-heading", "#no-such-heading"])
def test_a_link_that_leads_nowhere_is_an_error(tmp_path, link):
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\nmyst_heading_anchors = 4\n')
    (tmp_path / "other.md").write_text("# Other\n")
    (tmp_path / "index.md").write_text(f"# Title\n\n[here]({link})\n\n```{{toctree}}\nother\n```\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0 and link.partition("#")[2] in done.stderr
