"""Run pip, or another long command, and print at least a line every 5 s: of pip one for each package that it gets.

python packaging/progress.py "24 packages, 350 MB" .venv/bin/python -m pip install numpy
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time

EVERY = 5  # seconds
KEPT = 40  # lines that are shown if the command fails
GOT = re.compile(
    r"(?:Downloading|Processing|Using cached) (?:\S*/)?([^-/\s]+)-(\d[^-\s]*?)(?:-\S*)?\.(?:whl|tar\.gz)"
    r"(?: (\(\d[^)]*B\)))?(?: \(from .*\))?$"
)
INSTALLS = "Installing collected packages: "
SLOW = ("Building", "Preparing", "Collecting", "Installing")  # what these lines begin is what pip does from then on


def packages(line: str) -> str:
    """Return name, version and size of the package that pip gets with this line of its output; "" with another."""
    found = GOT.match(line.strip())
    return " ".join(filter(None, found.groups())).replace("%2B", "+") if found else ""


def task(line: str) -> str:
    """Return what pip does from this line of its output on; "" if it goes on with what it did."""
    if line.startswith(INSTALLS):
        return f"installing {line.count(',') + 1} packages"
    words = line.split(" (")[0].split(":")[0].strip()
    return words[:1].lower() + words[1:] if words.startswith(SLOW) else ""


def run(title: str, command: list[str]) -> int:
    """Run the command, and return its status; its last lines are printed if that is not 0."""
    start = shown = time.monotonic()
    print(title, flush=True)
    unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=unbuffered)
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in job.stdout or ():
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    pip, doing, said = "pip" in command, "working", list[str]()
    while True:
        try:
            line = lines.get(timeout=max(0.0, shown + EVERY - time.monotonic()))
        except queue.Empty:
            line, text = "\n", f"{doing}, {time.monotonic() - start:.0f} s"
        else:
            said.append(line)
            doing = (pip and task(line)) or doing
            text = packages(line) if pip else line.rstrip()
        if not line:
            break
        if text:
            shown = time.monotonic()
            print(f"  {text}", flush=True)
    if status := job.wait():
        print("".join(said[-KEPT:]), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
