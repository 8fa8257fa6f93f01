"""The notebooks beside the tutorials are stored without outputs, and their cells run in order."""

from __future__ import annotations

import json

import pytest

from ..launch import ROOT

FOLDER = ROOT / "docs" / "tutorials"
SAID = {
    "world": ["rank 3 of 4", "oktopk  1 sum, 12,136 bytes", "1 sum in 5 orders", "mismatch: "],
    "sparse-sums": ["as one process counts: True", "{'Lima': 22.0, 'Oslo': 21.0, 'Rome': 33.5}"],
}


@pytest.mark.parametrize("name", SAID)
def test_the_cells_of_a_notebook_run_in_order(name, capsys):
    book = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert book["nbformat"] == 4 and not any(cell["outputs"] for cell in cells)
    names: dict[str, object] = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert all(each in said for each in SAID[name]), said


def test_all_notebooks_are_tried_and_linked():
    index = (FOLDER / "index.md").read_text()
    assert sorted(SAID) == sorted(book.stem for book in FOLDER.glob("*.ipynb"))
    assert all(f"]({name}.ipynb)" in index for name in SAID)
