"""The page in a real browser, on `rowssl serve` as a process of its own: what a person clicks, and what is there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, find_chromium

from finished import Finished
from rowssl.runs.edits import Edits

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="Chromium is driven through inherited pipes"),
]
HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"


@pytest.fixture
def address(own_run: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "rowssl", "serve", str(own_run), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            assert first.startswith("http://127.0.0.1:"), first or process.stderr.read()  # type: ignore[union-attr]
            yield first
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path / "profile") as one:
        yield one


def ready(browser: Chromium) -> None:
    browser.wait("document.querySelectorAll('#classes li').length > 0")


def open_class(browser: Chromium, class_id: str) -> None:
    browser.run(f"document.querySelector('#classes li[data-id={json.dumps(class_id)}] a').click()")
    browser.wait(f"!document.getElementById('one').hidden && shown.id === {json.dumps(class_id)}")
    browser.wait("document.querySelectorAll('#members img').length > 0")


def submit(browser: Chromium, form: str) -> None:
    browser.run(f"document.querySelector('#{form} button').click()")


def test_drop_rename_merge_reload(
    browser: Chromium, address: str, own_run: Path, finished: Finished, tmp_path: Path
) -> None:
    browser.screen(1200)
    browser.open(address)
    ready(browser)
    assert browser.run("document.querySelectorAll('#classes li').length") == 10

    picture = tmp_path / "new <b>digit.png"
    finished.fresh[0].save(picture)
    browser.choose_file("#file", picture)
    browser.wait("document.querySelectorAll('.answer .near img').length === 8")
    browser.wait("[...document.querySelectorAll('.answer img')].every((one) => one.complete && one.naturalWidth > 0)")
    said = browser.run("document.querySelector('.answer .said-class').textContent")
    assert said in Edits.load(own_run).names.values()
    assert "<b>digit.png" in browser.run("document.querySelector('.answer').textContent")

    browser.run("document.querySelector('.answer .said-class a').click()")  # the class it was put into
    browser.wait("!document.getElementById('one').hidden && shown.id !== null")
    one = browser.run("shown.id")
    browser.run(f"document.getElementById('new-name').value = {json.dumps(HOSTILE)}")
    submit(browser, "rename")
    browser.wait(f"document.getElementById('one-name').textContent === {json.dumps(HOSTILE)}")

    other = next(c.id for c in Edits.load(own_run).classes if not c.known and c.id != one)
    browser.run(f"document.getElementById('other').value = {json.dumps(other)}")
    submit(browser, "merge")
    browser.wait("run.classes.length === 9")

    browser.reload()
    browser.wait(f"document.getElementById('one-name').textContent === {json.dumps(HOSTILE)}")
    browser.run("document.querySelector('.back').click()")
    ready(browser)
    names = browser.run("[...document.querySelectorAll('#classes li b')].map((one) => one.textContent)")
    assert HOSTILE in names
    assert len(names) == 9
    assert browser.run("window.hit") is None
    edits = Edits.load(own_run)
    assert edits.names[one] == HOSTILE
    assert edits.find(other) == one

    browser.choose_file("#file", picture)  # the model uses the new name
    browser.wait("document.querySelector('.answer .said-class')")
    assert browser.run("document.querySelector('.answer .said-class').textContent") == HOSTILE
    assert browser.complaints() == []
    own = (address, "blob:", "data:", "about:")
    assert all(asked.startswith(own) for asked in browser.addresses()), browser.addresses()


def test_move_split_undo_and_no_image(browser: Chromium, address: str, own_run: Path, tmp_path: Path) -> None:
    browser.screen(390, 844)
    browser.open(address)
    ready(browser)
    open_class(browser, "a")
    browser.run("document.querySelector('#members button').click()")
    file = browser.run("[...shown.chosen.keys()][0]")
    browser.run("document.getElementById('target').value = 'b'")
    submit(browser, "move")
    browser.wait("run.last_edit.includes('moved to b')")
    assert Edits.load(own_run).moves == {file: "b"}
    browser.wait(f"![...document.querySelectorAll('.member')].some((one) => one.title === {json.dumps(file)})")

    submit(browser, "split")
    browser.wait("document.getElementById('one').hidden && run.classes.length === 11")
    browser.run("document.getElementById('undo').click()")
    browser.wait("run.last_edit.includes('moved') && !document.getElementById('undo').disabled")
    browser.run("document.getElementById('undo').click()")
    browser.wait("run.last_edit === '' && document.getElementById('undo').disabled")
    assert Edits.load(own_run).effective == ()

    wrong = tmp_path / "text.png"
    wrong.write_text("no image")
    browser.choose_file("#file", wrong)
    browser.wait("document.querySelector('.wrong')?.textContent.includes('cannot be read as an image')")
    for width in (320, 390, 1200):
        browser.screen(width)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), f"the page is wider than {width}"


def test_a_drop_anywhere_is_answered(browser: Chromium, address: str, finished: Finished) -> None:
    browser.open(address)
    ready(browser)
    browser.run(
        """(async () => {
          const canvas = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
          const blob = await new Promise((done) => canvas.toBlob(done));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([blob], "drawn.png", { type: "image/png" }));
          document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer }));
        })()"""
    )
    browser.wait("document.querySelector('.answer .said-class')")
    assert "drawn.png" in browser.run("document.querySelector('.answer').textContent")
