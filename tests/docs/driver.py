"""Run the Python of a page in a process of its own, and print what each block did.

    python -m tests.docs.driver '["PAGE", [[LINE, CODE, CODE THAT IS TAKEN FOR GRANTED], ...]]'

Code is compiled at its place in the page, so that a traceback names the page's lines and shows them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any


def run_blocks(page: str, blocks: list[tuple[int, str, str]]) -> list[tuple[str, str | None]]:
    """Run blocks up to the first that fails; return output and error of each, None if there is none."""
    sys.path[:] = [path for path in sys.path if Path(path).name != "train"]
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")  # pages show no former spellings
    names: dict[str, Any] = {"__name__": "__main__"}
    done = []
    for line, code, first in blocks:
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                if first:
                    exec(compile(first, f"{page}, what is taken for granted", "exec"), names)
                exec(compile("\n" * (line - 1) + code, page, "exec"), names)
        except BaseException:
            error = traceback.format_exc()
        done.append((printed.getvalue(), error))
        if error:
            break
    return done


if __name__ == "__main__":
    print("\n" + json.dumps(run_blocks(*json.loads(sys.argv[1]))))
