"""What is installed is pinned, what is downloaded was asked for and is checked."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from faults.forked import Forked
from faults.trainings import fit_command
from rowssl.core.errors import InputError
from rowssl.encoders import huggingface, weights

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from dependencies import closure, extras, page, pinned  # noqa: E402


def installed_with_all_extras() -> None:
    """Some machines have the core alone; then there is less to compare."""
    try:
        closure("rowssl", extras())
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"not every extra is installed: {error}")


def test_the_constraints_pin_everything_that_is_installed() -> None:
    installed_with_all_extras()
    needed, pins = closure("rowssl", extras()), pinned()
    assert len(needed) > 60
    assert sorted(needed - pins.keys()) == []
    differing = {name: metadata.version(name) for name in needed if metadata.version(name).split("+")[0] != pins[name]}
    assert differing == {}  # torch's +cpu says for which machine it was built


def test_every_line_of_the_constraints_is_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert len(pinned()) == len(lines)


def test_the_extras_of_the_project_are_those_that_are_installed() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        re.split(r"[\s<>=~!;\[]", line)[0] for group in project["optional-dependencies"].values() for line in group
    }
    names |= {re.split(r"[\s<>=~!;\[]", line)[0] for line in project["dependencies"]}
    assert sorted(name for name in names - {"rowssl"} if re.sub(r"[-_.]+", "-", name).lower() not in pinned()) == []


def test_what_builds_the_package_is_exact_and_on_the_page() -> None:
    import tomllib

    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [line for line in needed if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert [line for line in needed if f"`{line}`" not in page] == []


def test_the_page_lists_what_is_pinned() -> None:
    installed_with_all_extras()
    rows = dict(
        re.findall(r"^\| ([\w.-]+) \| ([\w.]+) \|", (ROOT / "docs" / "dependencies.md").read_text(), flags=re.M)
    )
    wanted = dict(re.findall(r"^\| ([\w.-]+) \| ([\w.]+) \|", page(), flags=re.M))
    assert rows == wanted, "python benchmarks/dependencies.py > docs/dependencies.md"


def audited(*command: str) -> None:
    """`rowssl COMMAND`; any look at the network is written down and fails the process."""
    from rowssl.cli import app

    asked: list[str] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
            asked.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    sys.argv = ["rowssl", *command]
    app.main()
    if asked:
        sys.exit(f"the network was asked: {asked}")


def test_the_watch_sees_what_it_should(forked: Forked) -> None:
    """A server binds to a name, which is looked up: the watch of the next test is not blind."""
    ended = forked.call("faults.test_supply:look_up")
    assert ended.code == 1
    assert "the network was asked" in ended.err


def look_up() -> None:
    import socket

    from rowssl.cli import app

    app.main = lambda: socket.getaddrinfo("localhost", 80)
    audited()


@pytest.mark.parametrize("data", ["embeddings", "pictures"])
def test_training_asks_no_network(data: str, forked: Forked, embeddings: Path, tmp_path: Path) -> None:
    command = fit_command(embeddings, "kmeans", tmp_path / "run", 1)
    if data == "pictures":
        options = [
            "--known",
            5,
            "--encoder",
            "pixels",
            "--views",
            1,
            "--cache",
            tmp_path / "cache",
            "--method",
            "kmeans",
        ]
        command = ["fit", "--data", "digits", "--protocol", "longtail", *options, "--out", tmp_path / "run"]
    ended = forked.call("faults.test_supply:audited", *command)
    assert ended.code == 0, ended.err


def test_a_damaged_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face names a large file by its sha256; the network's part is played by a folder."""
    hub = pytest.importorskip("huggingface_hub")
    blob = tmp_path / "blobs" / hashlib.sha256(b"as published").hexdigest()
    snapshot = tmp_path / "snapshots" / "abc"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    blob.write_bytes(b"as it came")
    (snapshot / "model.safetensors").symlink_to(blob)

    def download(name: str, local_files_only: bool = False, **more: object) -> str:
        if local_files_only:
            raise OSError("not there yet")
        return str(snapshot)

    monkeypatch.setenv("ROWSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface, "hub_answers", lambda name: True)
    with pytest.raises(InputError, match=f"has sha256 {hashlib.sha256(b'as it came').hexdigest()} where"):
        huggingface.folder_of("somebody/something")
    blob.write_bytes(b"as published")
    assert huggingface.folder_of("somebody/something") == snapshot


def test_every_published_encoder_is_checked_by_a_sum() -> None:
    """Pinned here, or recorded at first sight and by Hugging Face's own name for the file (tests/encoders/test_weights.py)."""
    sums = [one.sha256 for one in weights.PUBLISHED.values() if one.sha256 is not None]
    assert len(sums) >= 4
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in sums)
    assert all(one.url.startswith("https://") for one in weights.PUBLISHED.values())
