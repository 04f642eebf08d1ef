"""The report in headless Chromium: hostile texts stay texts, nothing overflows at three widths, and
nothing is asked for but the file itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlkit.results.report import write_report

websocket = pytest.importorskip("websocket")  # of websocket-client, which Jupyter brings
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
SPILT = """[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, .text")
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""


class Browser:
    """As much of the DevTools protocol as a look at a page needs."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=300)
        self._calls, self.events = 0, []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        asked = {"id": self._calls, "method": method, "params": parameters}
        self._socket.send(json.dumps(asked))
        while (reply := json.loads(self._socket.recv())).get("id") != self._calls:
            self.events.append(reply)
        return reply["result"]

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def open(self, page: Path) -> None:
        for domain in ("Page", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.value("document.readyState") != "complete":
            time.sleep(0.2)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = tmp_path / "profile" / "DevToolsActivePort"
        for _ in range(600):
            if ready.exists() and "\n" in ready.read_text():
                break
            time.sleep(0.2)
        port = ready.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as reply:
            tabs = json.load(reply)
        tab = next(tab for tab in tabs if tab["type"] == "page")
        yield Browser(tab["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait()


def test_hostile_texts_lay_out_and_ask_for_nothing(
    finished_run: Path, browser: Browser, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished_run, tmp_path / "hostile")
    data = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    question = "<script>alert(1)</script> " + "W" * 300 + " harbour" * 2460  # 20,006 characters
    data["states"] = [{**state, "question": question} for state in data["states"]]
    (folder / "evaluation.json").write_text(json.dumps(data), encoding="utf-8")
    page = write_report(folder)
    browser.open(page)
    for width in (390, 800, 1400):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                     deviceScaleFactor=1, mobile=False)  # fmt: skip
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), width
        assert browser.value(SPILT) == [], width
    text = browser.value("document.body.textContent")
    assert question in text and "</td><img src=x onerror=alert(2)>" in text
    assert browser.value("document.scripts.length") == 0
    assert browser.value("[...document.images].every(i => i.naturalWidth > 0 && i.alt)")
    asked = [e["params"]["request"]["url"] for e in browser.events
             if e.get("method") == "Network.requestWillBeSent"]  # fmt: skip
    assert {url for url in asked if not url.startswith("data:")} == {page.resolve().as_uri()}
    loud = ("Log.entryAdded", "Page.javascriptDialogOpening")
    assert not [e for e in browser.events if e.get("method") in loud]
