"""A few megabytes of JSON can take gigabytes: the memory that is free is looked at before they are parsed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowssl.core import files
from rowssl.core.errors import InputError
from rowssl.core.files import read_manifest
from rowssl.training.checkpoints import Checkpoints

NESTS = '{"a": [' + "[]," * 2_000_000 + "0]}"
SENTENCE = r"manifest\.json may need 0\.2 GB to be read, more than the memory that is free\.$"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "available_memory", lambda: 2**27)
    monkeypatch.setattr(files.json, "loads", lambda *_: pytest.fail("it is parsed"))


@pytest.mark.usefixtures("little_memory")
def test_a_manifest_that_takes_more_memory_than_there_is(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(NESTS)
    with pytest.raises(InputError, match=SENTENCE):
        files.read_json(tmp_path / "manifest.json")
    with pytest.raises(InputError, match=SENTENCE):
        read_manifest(tmp_path)


@pytest.mark.usefixtures("little_memory")
def test_a_checkpoint_is_not_taken_for_damaged_where_memory_is_short(tmp_path: Path) -> None:
    """Damaged ones are passed over, and removed when the next is saved."""
    (tmp_path / "step-00000010").mkdir()
    (tmp_path / "step-00000010" / "manifest.json").write_text(NESTS)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(InputError, match=SENTENCE):
        checkpoints.latest("me")
    assert not checkpoints.problems


def test_small_files_and_machines_that_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    for free, content in ((1000, "[" + "0," * 10_000 + "0]"), (0, "[" + "0," * 2**21 + "0]")):
        monkeypatch.setattr(files, "available_memory", lambda free=free: free)
        path.write_text(content)
        assert len(files.read_json(path)) == (len(content) - 1) // 2
