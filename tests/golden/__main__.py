"""Compare all trajectories with the recorded ones, or with ``--write`` record them."""

from __future__ import annotations

import json
import sys

from .trajectories import CASES, RECORD, machine


def main() -> int:
    found = {name: run() for name, run in CASES.items()}
    if "--write" in sys.argv[1:]:
        RECORD.write_text(json.dumps({"machine": machine(), "cases": found}, indent=0) + "\n")
        return 0
    known = json.loads(RECORD.read_text())
    changed = [name for name, ranks in found.items() if known["cases"].get(name) != ranks]
    print(f"recorded on {known['machine']}, run on {machine()}")
    print(f"{len(found) - len(changed)} of {len(found)} trajectories are as recorded, byte for byte")
    print("\n".join(changed))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
