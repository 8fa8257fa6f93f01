"""Draw the figures of the pages anew, from the checkout: ``figures.json`` has the command of each.

python runs/figures.py [NAME ...]             the figures whose paths have one of these in them, or all
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    for figure, command in json.loads(Path(__file__).with_suffix(".json").read_text()).items():
        if not names or any(name in figure for name in names):
            subprocess.run([sys.executable, *shlex.split(command.replace("FIGURE", figure))], check=True)
            print(figure, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
