"""A real browser for pages: Chromium, driven through chromedriver's HTTP protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SECONDS = 120


@dataclass(frozen=True)
class Browser:
    """A session of the browser."""

    url: str

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Send a command of the WebDriver protocol, and return its value."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            return json.load(response)["value"]

    def open(self, page: Path) -> None:
        self.call("POST", "/url", url=page.as_uri())

    def run(self, script: str, *args: Any) -> Any:
        """Return the value of a script's `return`."""
        return self.call("POST", "/execute/sync", script=script, args=args)

    def click(self, selector: str) -> None:
        """Click an element as a user does, where it is on the screen."""
        element = self.call("POST", "/element", using="css selector", value=selector)
        (reference,) = element.values()
        self.call("POST", f"/element/{reference}/click")

    def is_visible(self, selector: str) -> bool:
        script = "const e = document.querySelector(arguments[0]); return e.checkVisibility()"
        return self.run(script, selector)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


@contextlib.contextmanager
def open_browser(folder: Path, width: int = 1300, height: int = 1000) -> Generator[Browser]:
    """Yield a browser without a network; skip the test if none is installed."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver")
    arguments = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9"),
        *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"),
    ]
    options = {"binary": chromium, "args": arguments}
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(
                match[1]
                for line in process.stdout
                if (match := re.search(r"on port (\d+)\.", line))
            )
            server = Browser(f"http://127.0.0.1:{port}")
            capabilities = {"alwaysMatch": {"goog:chromeOptions": options}}
            session = server.call("POST", "/session", capabilities=capabilities)
            browser = Browser(f"{server.url}/session/{session['sessionId']}")
            try:
                yield browser
            finally:
                browser.call("DELETE", "")
        finally:
            process.terminate()
