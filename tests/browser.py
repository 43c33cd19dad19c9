"""Headless Chromium over its DevTools protocol: open a page, do what a reader does, see what they see.

Found on the PATH, or where CHROMIUM points. Every request, console message and error of a tab is kept.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-port=0",
)  # fmt: skip
PATIENCE = 60  # seconds until something that should happen counts as not happening


def chromium() -> str | None:
    """The program's path, or None."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process; tabs are made with `open`."""

    def __init__(self, program: str, profile: Path):
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port_file = profile / "DevToolsActivePort"
        until = time.monotonic() + PATIENCE
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert self._process.poll() is None, f"{program} ended at once"
            assert time.monotonic() < until, f"{program} opened no DevTools port"
            time.sleep(0.05)
        port, path = port_file.read_text().split("\n")[:2]
        self._open = contextlib.ExitStack()
        address = f"ws://127.0.0.1:{port}{path}"
        self._wire = Wire(self._open.enter_context(connect(address, max_size=None, compression=None)))

    def tab(self, **size: Any) -> Tab:
        """A tab with a storage of its own."""
        context = self._wire.call("Target.createBrowserContext")["browserContextId"]
        made = self._wire.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self._wire.call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        return Tab(self._wire, attached["sessionId"], context, **size)

    def close(self) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(30)


class Wire:
    """Commands and their results; events go to the tab they belong to."""

    def __init__(self, socket: ClientConnection):
        self._socket, self._last = socket, 0
        self.tabs: dict[str, Tab] = {}

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._last += 1
        wanted = self._last
        message = {"id": wanted, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._socket.send(json.dumps(message))
        while True:
            reply = json.loads(self._socket.recv(timeout=PATIENCE))
            if reply.get("id") == wanted:
                assert "error" not in reply, f"{method}: {reply['error']}"
                return reply["result"]
            if (tab := self.tabs.get(reply.get("sessionId", ""))) and "method" in reply:
                tab.take(reply["method"], reply["params"])

    def post(self, method: str, session: str, **params: Any) -> None:
        """A command whose result nobody waits for."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params, "sessionId": session}))


class Tab:
    """A page. `width`, `height` in CSS pixels; `dark` is what the reader's system prefers; `password` is their answer
    where the browser asks for one."""

    def __init__(
        self, wire: Wire, session: str, context: str, *, width: int = 1280, height: int = 800, dark: bool = False,
        password: str | None = None,
    ):  # fmt: skip
        self._wire, self._session, self._context = wire, session, context
        self._password = password
        self.events: list[tuple[str, dict[str, Any]]] = []
        wire.tabs[session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if password is not None:
            self.call("Fetch.enable", handleAuthRequests=True)

    def take(self, event: str, params: dict[str, Any]) -> None:
        """Keep an event; let requests through and answer questions for a password."""
        self.events.append((event, params))
        if event == "Fetch.requestPaused":
            self._wire.post("Fetch.continueRequest", self._session, requestId=params["requestId"])
        elif event == "Fetch.authRequired":
            answer = {"response": "ProvideCredentials", "username": "reader", "password": self._password}
            self._wire.post(
                "Fetch.continueWithAuth", self._session, requestId=params["requestId"], authChallengeResponse=answer
            )

    def call(self, method: str, **params: Any) -> Any:
        return self._wire.call(method, self._session, **params)

    def close(self) -> None:
        self._wire.call("Target.disposeBrowserContext", browserContextId=self._context)

    def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
            allowUnsafeEvalBlockedByCSP=False,
        )  # fmt: skip
        assert "exceptionDetails" not in done, f"{expression}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until the expression is truthy."""
        end = time.monotonic() + seconds
        while not self.js(f"!!({expression})"):
            assert time.monotonic() < end, f"never true: {expression}; the page shows: {self.text('body')[:2000]}"
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """What the reader can see of an element."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """A real click in the middle of an element, which must be visible."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{find}.scrollIntoView({{block: 'nearest'}})")
        x, y, width, height = self.js(
            f"(r => [r.x, r.y, r.width, r.height])({find}.getBoundingClientRect())"
        )  # fmt: skip
        assert width > 0, f"{selector} is not visible"
        where = {"x": x + width / 2, "y": y + height / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        code = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}[key]
        more = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Addresses asked for since `open`."""
        self.js("0")  # takes in what is on the wire
        return [p["request"]["url"] for name, p in self.events if name == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console shows: messages, uncaught errors, refusals by policy, failed loads."""
        self.js("0")
        found = []
        for name, params in self.events:
            if name == "Runtime.consoleAPICalled":
                found.append(f"console.{params['type']}: {params['args']}")
            elif name == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif name == "Log.entryAdded":
                found.append(f"{params['entry']['level']}: {params['entry']['text']}")
        return found
