"""The site is built without a warning and without torch, its search works from files alone, and it has every page and
public name."""

from __future__ import annotations

import importlib
import re

import pytest

from ..launch import ROOT
from .conftest import build

PUBLIC = ".algorithms .checkpoint .comm .ddp .fsdp .fault_tolerance .feedback .collectives .optim .select .wire"
PUBLIC = [*PUBLIC.split(), ".testing"]
TABLES = {"ALGORITHMS", "CASES", "FEEDBACKS", "SELECTORS", "WIRES", "Average", "Sum", "Counts"}  # described in words
GROUP = r"(?ms)^## (.*?)$(.*?)(?=^## |\Z)"  # of guides, in the index


@pytest.mark.full("builds the whole site, 20 s")
def test_the_site_has_all_pages_and_public_names_and_a_search_without_network(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()

    described = set(re.findall(r'<dt [^>]*id="([\w.]+)"', "".join(p.read_text() for p in site.rglob("*.html"))))
    last = {name.rpartition(".")[2] for name in described}
    assert {"DiLoCo", "GradientReduction", "MPIComm", "SparseState", "sparse_hook"} <= last
    for module in ["", *PUBLIC]:
        names = importlib.import_module(f"sparse_mpi{module}").__all__
        assert set(names) - TABLES <= last, module

    torch = (site / "reference/api/torch.html").read_text()
    hook = re.search(r'id="sparse_mpi.ddp.sparse_hook">(.*?)</dt>', torch, re.DOTALL)[1]
    words = "".join(re.sub("<[^>]*>", "", hook).split())
    assert "bucket:torch.distributed.GradBucket" in words and "Future[torch.Tensor]" in words
    source = re.search(r'href="\.\./\.\./(_modules/[^"#]*)#([^"]*)"><span class="viewcode-link">', hook)
    assert f'id="{source[2]}"' in (site / source[1]).read_text()

    tree = (site / "index.html").read_text().partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    listed = re.findall(r'<a class="reference internal" href="([^"#]+)">(.*?)</a>', tree)
    pages, titles = zip(*listed, strict=True)
    assert len(pages) == len(set(pages)) == len(list((ROOT / "docs").rglob("*.md"))) - 1
    assert len(set(titles)) == len(titles) and max(map(len, titles)) < 50, titles

    guides = (ROOT / "docs/guides/index.md").read_text()
    groups = {title: re.findall(r"\]\((.*?)\.md\)", text) for title, text in re.findall(GROUP, guides)}
    captions = re.findall(r'<span class="caption-text">(.*?)</span></p>\s*<ul>(.*?)</ul>', tree, re.DOTALL)
    assert {title: re.findall(r'href="guides/(.*?)\.html"', text) for title, text in captions} == groups

    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]+)"', (site / "search.html").read_text())
    assert "searchindex.js" in loaded and not [source for source in loaded if "//" in source]
    assert "oktopk" in (site / "searchindex.js").read_text()


@pytest.mark.full("builds a small site, 2 s")
def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    wrong = ["nowhere.md", "other.md#no-such-heading", "#no-such-heading"]
    (tmp_path / "conf.py").write_text('extensions = ["myst_parser"]\nmyst_heading_anchors = 4\n')
    (tmp_path / "other.md").write_text("# Other\n")
    links = "\n\n".join(f"[here]({link})" for link in wrong)
    (tmp_path / "index.md").write_text(f"# Title\n\n{links}\n\n```{{toctree}}\nother\n```\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0 and all(f"index.md:{line}: WARNING" in done.stderr for line in (3, 5, 7)), done.stderr
