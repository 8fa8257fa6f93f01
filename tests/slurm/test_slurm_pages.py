"""What the documentation shows of Slurm is run, by `tests/docs`, under a real one."""

from __future__ import annotations

import pytest

from ..docs.pages import pages
from ..docs.running import folder_of, run_commands
from .conftest import SECONDS

PAGES = {name: page for name, page in pages().items() if "slurm" in page.kinds}
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3 * SECONDS)]


@pytest.mark.full("jobs of tests/slurm/test_slurm.py do the like")
@pytest.mark.parametrize("name", PAGES)
def test_slurm_of_a_page_runs(name, queue, tmp_path):
    page = PAGES[name]
    run_commands(page, page.commands(slurm=True), folder_of(page, tmp_path), queue.environment)
