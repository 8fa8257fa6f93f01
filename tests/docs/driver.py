"""Run the Python of a page in a process of its own: blocks come as JSON, and what came of them goes back as JSON.

Code is compiled at its place in the page, so that a traceback names the page's lines and shows them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any


def main() -> None:
    """Run the blocks on standard input up to the first that fails, and print a list of what each one did."""
    page, blocks = json.load(sys.stdin)
    names: dict[str, Any] = {"__name__": "__main__"}
    done = []
    for block in blocks:
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                if block["first"]:
                    exec(compile(block["first"], f"{page}, what is taken for granted", "exec"), names)
                exec(compile("\n" * (block["line"] - 1) + block["code"], page, "exec"), names)
        except BaseException:
            error = traceback.format_exc()
        done.append({"printed": printed.getvalue(), "error": error})
        if error:
            break
    print(json.dumps(done))


if __name__ == "__main__":
    main()
