"""A headless Chromium, driven to look at the page of a report."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


class Chromium:
    """A browser driven over two pipes by the DevTools protocol: JSON, each message ended by a zero byte."""

    def __init__(self, folder: Path) -> None:
        there_read, here_write = os.pipe()
        here_read, there_write = os.pipe()
        # The browser reads its file 3 and writes its file 4; ours may have these numbers, so they move away first.
        theirs = [fcntl.fcntl(file, fcntl.F_DUPFD, 10) for file in (there_read, there_write)]

        def place() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self.process = subprocess.Popen(
            [str(PROGRAM), *SWITCHES, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,
            close_fds=False,
            start_new_session=True,
        )
        for file in (there_read, there_write, *theirs):
            os.close(file)
        self.read, self.write, self.rest = here_read, here_write, b""
        self.events: list[dict[str, Any]] = []
        self.number, self.session = 0, ""

    def close(self) -> None:
        try:
            self.call("Browser.close")
            self.process.wait(20)
        except (OSError, TimeoutError, AssertionError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.read)
        os.close(self.write)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            part = os.read(self.read, 1 << 16)
            if not part:
                raise TimeoutError("the browser has gone")
            self.rest += part
        first, self.rest = self.rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path, width: int = 1400, height: int = 900, *, dark: bool = False) -> None:
        """Load a page and wait until its first chart is drawn; `events` are of this page only."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=page.as_uri())
        self.wait("document.readyState === 'complete'")
        self.value("document.querySelector('.chart').scrollIntoView()")
        self.wait("document.querySelectorAll('.main-svg').length > 0")

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.value(condition):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.05)

    def point_at(self, expression: str) -> None:
        """Move the mouse to the middle of an element."""
        box = self.value(
            f"(() => {{ const e = {expression}; e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for shift in (-3, 0, 1):  # a mouse moves; it does not appear
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + shift, y=box[1] + shift)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, for eyes."""
        self.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
        time.sleep(1)
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[Any]:
        """Console messages, exceptions, and requests of anything but the page itself."""
        found: list[Any] = []
        for event in self.events:
            name, parameters = event.get("method"), event.get("params", {})
            if name in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(parameters)
            if name == "Page.javascriptDialogOpening":
                found.append(parameters)
            if name == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not (url.startswith(("data:", "blob:")) or url.endswith("report.html")):
                    found.append(url)
        return found
