"""A copy of this checkout, to change files in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPILED = ".pytest_cache/cuda-emulation"


def copy(folder: Path, caches: bool = False) -> Path:
    """Copy the files that git knows, or would, to ``folder``, and with ``caches`` what Python and g++ have compiled."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [Path(name) for name in names if name and (ROOT / name).is_file()]
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, folder / file)  # with its time, by which caches know it
    compiled = {file.parent / "__pycache__" for file in files if file.suffix == ".py"} | {Path(COMPILED)}
    for cache in sorted(compiled if caches else ()):
        if (ROOT / cache).is_dir():
            shutil.copytree(ROOT / cache, folder / cache)
    return folder
