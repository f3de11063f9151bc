"""A web page elsewhere cannot change a class, and what strangers wrote is text: both in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium

from rowssl.api import load
from rowssl.core.files import read_directory, write_directory
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="Chromium is driven through inherited pipes"),
]
NASTY = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
ATTACK = """<!doctype html><title>elsewhere</title><form id=f method=post enctype="text/plain" target=frame>
<input name='{"others": ["b"], "x": "' value='"}'></form><iframe name=frame></iframe><script>
const there = "%s";
const tries = [
  ["PATCH", "/classes/a", '{"name": "evil"}', { "Content-Type": "application/json" }, "cors"],
  ["POST", "/classes/a/merge", '{"others": ["b"]}', { "Content-Type": "application/json" }, "cors"],
  ["POST", "/classes/a/merge", '{"others": ["b"]}', { "Content-Type": "text/plain" }, "no-cors"],
  ["POST", "/move", '{"files": ["000.png"], "class_id": "b"}', { "Content-Type": "text/plain" }, "no-cors"],
  ["POST", "/classes/a/split", '{"parts": 2}', {}, "no-cors"],
  ["POST", "/undo", "", {}, "no-cors"],
];
window.read = [];
(async () => {
  for (const [method, path, body, headers, mode] of tries)
    try { await fetch(there + path, { method, body, headers, mode, credentials: "include" }); } catch (error) {}
  for (const path of ["/classes", "/classes.csv", "/thumb/0"])
    try { window.read.push(await (await fetch(there + path)).text()); } catch (error) {}
  const image = new Image();
  await new Promise((done) => { image.onload = image.onerror = done; image.src = there + "/thumb/0"; });
  window.seen = image.naturalWidth;
  f.action = there + "/classes/a/merge";
  f.submit();
  setTimeout(() => { window.done = true; }, 1000);
})();
</script>"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path / "profile") as one:
        yield one


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_page_elsewhere_changes_and_learns_nothing(browser: Chromium, own_run: Path, tmp_path: Path) -> None:
    Run.load(own_run).rename("a", "mine")
    command = [sys.executable, "-m", "rowssl", "serve", str(own_run), "--port", "0", "--device", "cpu"]
    pages = tmp_path / "pages"
    pages.mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            there = process.stdout.readline().strip().rstrip("/")
            (pages / "attack.html").write_text(ATTACK % there)
            handler = functools.partial(Quiet, directory=str(pages))
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                browser.open(f"http://127.0.0.1:{server.server_address[1]}/attack.html")
                browser.wait("window.done")
                assert browser.run("window.read") == []  # another origin reads nothing
                assert browser.run("window.seen") == 0  # and shows no picture
                server.shutdown()
        finally:
            process.terminate()
            process.communicate(timeout=60)
    (only,) = Edits.load(own_run).history
    assert only["name"] == "mine"


def test_the_report_shows_any_text_and_asks_nobody(browser: Chromium, own_run: Path) -> None:
    tensors, facts = read_directory(own_run / "answers")
    facts["names"] = [f"{NASTY}{i}" for i in range(len(facts["names"]))]
    facts |= {"source": NASTY, "skipped": [[NASTY, NASTY]], "facts": {NASTY: NASTY}}
    facts["class_names"] = [f"{i}{NASTY}" for i in range(len(facts["class_names"]))]
    write_directory(own_run / "answers", tensors, facts)
    load(own_run).rename("a", NASTY)
    browser.open((own_run / "report.html").as_uri())
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.wait("document.readyState === 'complete'")
    browser.run("new Promise((done) => setTimeout(done, 500))")
    assert "hit" not in browser.run("document.title").split()
    assert browser.run("document.title") != "hit"
    assert browser.run("document.querySelectorAll('img[src=x]').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run(f"document.body.innerText.includes({json.dumps(NASTY)})")
    asked = {address for address in browser.addresses() if not address.startswith(("file:", "data:", "about:"))}
    assert asked == set()
