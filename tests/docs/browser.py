"""A Chromium without a screen, which opens pages, and says what does not fit on them.

It is told what to do over two pipes, as `--remote-debugging-pipe` has it: messages of the DevTools protocol in JSON,
each with a zero byte at its end.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)
SECONDS = 240  # for an answer
TALLEST = 3000  # pixels of a page that a picture has

# Neither the page nor its column of text scrolls sideways. A block that scrolls within itself is not cut. Where the
# screen is wide enough for them, code and tables need not be scrolled either: only what a program printed may be wider
LOOK = """
(() => {
    const found = [], article = document.querySelector("article");
    const named = node => `${node.tagName.toLowerCase()}.${node.className}: ${node.textContent.trim().slice(0, 60)}`;
    const overflow = node => getComputedStyle(node).overflowX;
    const over = node => node.scrollWidth - node.clientWidth;
    for (let node = article; node; node = node.parentElement) {
        if (over(node) <= 0 || overflow(node) === "visible") continue;
        const right = node => node.getBoundingClientRect().right;
        const widest = [...article.querySelectorAll("*")].reduce((a, b) => right(b) > right(a) ? b : a);
        found.push(`the page scrolls sideways by ${over(node)} px; ${named(widest)}`);
        break;
    }
    for (const node of article.querySelectorAll("*"))
        if (over(node) > 1 && ["hidden", "clip"].includes(overflow(node))) found.push(`cut: ${named(node)}`);
    for (const node of article.querySelectorAll("pre, .table-wrapper")) {
        if (over(node) <= 0) continue;
        if (!["auto", "scroll"].includes(overflow(node))) found.push(`does not scroll: ${named(node)}`);
        else if (innerWidth >= 1000 && !node.closest(".highlight-text")) found.push(`too wide: ${named(node)}`);
    }
    return found;
})()
"""


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A running Chromium with one page; a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        (told, self._out), (self._in, said) = os.pipe(), os.pipe()
        told, said = (fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (told, said))
        command = ["bash", "-c", f'exec "$@" 3<&{told} 4>&{said}', "bash", program, *OPTIONS]
        self._process = subprocess.Popen(
            [*command, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(told, said),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(told)
        os.close(said)
        self._buffer, self._events, self._number = b"", list[dict[str, Any]](), 0
        self._session: dict[str, str] = {}
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command, and return what it answers.

        Raises:
            RuntimeError: the command failed, or there is no answer.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda said: said.get("id") == message["id"])
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page: Path) -> None:
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self._wait(lambda said: said.get("method") == "Page.loadEventFired")

    def show(self, width: int, mode: str) -> list[str]:
        """Make the screen so many pixels wide, and "dark" or "light"; return what does not fit."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        return self.ask(LOOK)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def picture(self, file: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], TALLEST), "scale": 1}
        taken = self.call("Page.captureScreenshot", format="jpeg", quality=85, captureBeyondViewport=True, clip=clip)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(taken["data"]))

    def _wait(self, wanted: Any) -> dict[str, Any]:
        """Return the first message that is wanted, also of those that came before; keep the others."""
        limit = time.monotonic() + SECONDS
        while True:
            for place, said in enumerate(self._events):
                if wanted(said):
                    return self._events.pop(place)
            if not select.select([self._in], [], [], max(0, limit - time.monotonic()))[0]:
                raise RuntimeError(f"Chromium has not answered for {SECONDS} s")
            if not (read := os.read(self._in, 1 << 20)):
                raise RuntimeError("Chromium has ended")
            *messages, self._buffer = (self._buffer + read).split(b"\0")
            self._events += map(json.loads, messages)
