"""Drive headless Chromium through chromedriver with plain WebDriver HTTP requests."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = (
    shutil.which("chromium") or shutil.which("google-chrome"),
    shutil.which("chromedriver"),
)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_ELEMENT = (
    "element-6066-11e4-a52e-4f735466cecf"  # the key of element references in the WebDriver standard
)
_SECONDS = 90.0
ENTER, ESCAPE, RIGHT, TAB = "\ue007", "\ue00c", "\ue014", "\ue004"


class Browser:
    """One browser window.

    Args:
        url: URL of the WebDriver session.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self._send("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a JavaScript function body."""
        return self._send("execute/sync", script=script, args=list(arguments))

    def wait(self, expression: str, seconds: float = _SECONDS) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        until = time.monotonic() + seconds
        while not (found := self.run(f"return {expression}")):
            assert time.monotonic() < until, f"{expression} was not true in {seconds} s"
            time.sleep(0.1)
        return found

    def text(self, selector: str) -> str:
        """Return the text of an element, visible or not."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def click(self, selector: str) -> None:
        """Click a visible element."""
        self._send(f"element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Type text into an element."""
        self._send(f"element/{self._find(selector)}/value", text=text)

    def press(self, key: str) -> None:
        """Press a key in the focused element."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._send("actions", actions=[{"type": "key", "id": "keyboard", "actions": keys}])

    def look(self, width: int, height: int, dark: bool = False, scale: float = 1.0) -> None:
        """Set the window size in CSS pixels and the preferred colour scheme."""
        self._cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._cdp("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write a screenshot as a PNG file."""
        path.write_bytes(
            base64.b64decode(self._cdp("Page.captureScreenshot", format="png")["data"])
        )

    def errors(self) -> list[str]:
        """Return console errors since the last call, except for HTTP error statuses."""
        entries = self._send("se/log", type="browser")
        return [
            one["message"]
            for one in entries
            if one["level"] == "SEVERE" and one["source"] != "network"
        ]

    def _find(self, selector: str) -> str:
        return str(self._send("element", using="css selector", value=selector)[_ELEMENT])

    def _cdp(self, command: str, **parameters: Any) -> Any:
        return self._send("goog/cdp/execute", cmd=command, params=parameters)

    def _send(self, path: str, **body: Any) -> Any:
        return _post(f"{self._url}/{path}", body)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser and yield its window.

    Args:
        profile: Empty folder for the browser profile.
    """
    assert CHROMIUM is not None
    assert DRIVER is not None
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    session = ""
    try:
        port = _port(driver)
        options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        }
        base = f"http://127.0.0.1:{port}/session"
        session = f"{base}/{_post(base, {'capabilities': wanted})['sessionId']}"
        yield Browser(session)
    finally:
        if session:
            urllib.request.urlopen(
                urllib.request.Request(session, method="DELETE"), timeout=_SECONDS
            ).close()
        driver.terminate()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if "on port" in line and "success" in line:
            return int(line.rpartition("port")[2].strip(" .\n"))
    raise AssertionError("chromedriver did not start")


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(error.read().decode()[:600]) from None
