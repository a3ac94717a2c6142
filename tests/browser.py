"""Chromium without a window, over its DevTools pipe: for tests and for pictures of reports.

    python -m tests.browser runs/demo report.png [--width 1280] [--height 0] [--dark]

draws the report of a run directory; a height of 0 is the whole page.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--hide-scrollbars", "--font-render-hinting=none", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads its orders from descriptor 3 and answers on 4.
LAUNCH = """
import fcntl, os, sys
orders, answers = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(orders, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds, on a busy machine


def find_chromium() -> str | None:
    """The path of Chromium or Chrome; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Page:
    """One open page.

    Attributes:
        complaints: console errors and warnings, exceptions and violated policies, as text.
        requests: the addresses of everything that was asked for.
    """

    reads: Any
    writes: Any
    session: str = ""
    count: int = 0
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have Chromium do something; what else it tells meanwhile is noted."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writes.write(json.dumps(message).encode() + b"\0")
        self.writes.flush()
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(script):
            if time.monotonic() > end:
                raise TimeoutError(f"{script} is not true after {PATIENCE} s: {self.complaints}")
            time.sleep(0.05)

    def picture(self, height: int = 0) -> bytes:
        """The page as PNG, down to ``height``; 0 is all of it."""
        width = self.evaluate("innerWidth")
        whole = self.evaluate("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def _message(self) -> bytes:
        found = bytearray()
        while (byte := self.reads.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has gone.")
            found += byte
        return bytes(found)

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])


@contextmanager
def opened(file: Path, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """A file in a browser window of this width, which has drawn its figures."""
    program = find_chromium()
    assert program is not None, "There is no chromium; ask find_chromium() first."
    to_read, to_write = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCH, str(to_read[0]), str(to_write[1]), program, *FLAGS,
             f"--user-data-dir={home}", "about:blank"],
            pass_fds=(to_read[0], to_write[1]),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read[0])
        os.close(to_write[1])
        try:
            with os.fdopen(to_write[0], "rb") as reads, os.fdopen(to_read[1], "wb") as writes:
                page = Page(reads, writes)
                _go(page, file, width, dark)
                yield page
                page.session = ""
                page.call("Browser.close")
        finally:
            process.terminate()
            process.wait(PATIENCE)


def _go(page: Page, file: Path, width: int, dark: bool) -> None:
    target = page.call("Target.createTarget", url="about:blank")["targetId"]
    attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
    page.session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Network", "Log"):
        page.call(f"{domain}.enable")
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
    )  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.call("Emulation.setEmulatedMedia", features=[scheme])
    page.call("Page.navigate", url=file.resolve().as_uri())
    page.wait_for("document.readyState == 'complete' && !!document.documentElement.dataset.drawn")


def main() -> None:
    """Draw a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=0)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    page_file = options.directory / "report.html"
    with opened(page_file, width=options.width, dark=options.dark) as page:
        options.picture.write_bytes(page.picture(options.height))


if __name__ == "__main__":
    main()
