"""The checks for sites are found by ReFrame, and so is the configuration that their page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from ..launch import ROOT

FOLDER = ROOT / "reframe"


def is_there() -> bool:
    """Tell if ReFrame is installed; the folder of the checks has its name, too."""
    try:
        return bool(version("ReFrame-HPC"))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not is_there(), reason="needs ReFrame-HPC")
@pytest.mark.parametrize("of_a_site", [False, True])
def test_the_checks_are_found_in_their_order(tmp_path, of_a_site):
    site = re.search(r"```python\n(site_configuration.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)[1]
    (tmp_path / "site.py").write_text(site)
    chosen = ["-C", str(tmp_path / "site.py"), "--system", "mysite:compute"] if of_a_site else []
    start = "import sys; from reframe.frontend.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *chosen, "-c", str(FOLDER), "-l", "--prefix", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(Step|Laws|Doctor) /", done.stdout) == ["Step", "Laws", "Doctor"], done.stdout
