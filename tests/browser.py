"""Headless Chromium, driven over its DevTools protocol: open a page, wait for a condition, take a screenshot."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import aiohttp

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-port=0",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Page:
    """A page in its own Chromium, used as ``with Page() as page``. Time in the page is real time."""

    def __init__(self, width: int = 1600, height: int = 1200) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="hflray-chromium-", ignore_cleanup_errors=True)
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", f"--window-size={width},{height}"]
        log = Path(self._profile.name) / "stderr.txt"
        with log.open("w") as file:
            self._process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=file)
        self._loop = asyncio.new_event_loop()
        deadline = time.monotonic() + 30
        port = Path(self._profile.name) / "DevToolsActivePort"
        while not (port.exists() and port.read_text().count("\n")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Chromium did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)
        self._address = f"http://127.0.0.1:{port.read_text().split()[0]}"
        self._number = 0
        self._run(self._connect())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._session.close())
        self._loop.close()
        self._process.terminate()
        self._process.wait()
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Load an address. The page is loaded anew even if only the part after # differs."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, converted through JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait_for(self, expression: str, within_s: float = 60.0) -> Any:
        """Wait until a JavaScript expression is true or the time is over; return its last value."""
        deadline = time.monotonic() + within_s
        while not (value := self.evaluate(expression)) and time.monotonic() < deadline:
            time.sleep(0.25)
        return value

    def resize(self, width: int, height: int = 1000) -> None:
        """Give the page another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Let the system's colour scheme be ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the left button at a point of the window, move to another, and release it."""
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        steps = [("mouseMoved", start), ("mousePressed", start), ("mouseMoved", middle), ("mouseMoved", end)]
        for kind, (x, y) in [*steps, ("mouseReleased", end)]:
            button = "none" if (kind, (x, y)) == steps[0] else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=1, clickCount=1)

    def pdf(self, path: Path) -> None:
        """Print the page."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        return self._run(self._call(method, parameters))

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.put(f"{self._address}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        self._socket = await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        await self._call("Page.enable", {})

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = json.loads((await self._socket.receive()).data)
            if answer.get("id") == self._number:
                return dict(answer.get("result", answer))
