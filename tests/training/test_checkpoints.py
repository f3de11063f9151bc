"""Checkpoints: whole or not at all, checked byte by byte, and the previous one when the last is damaged.

`tests/faults/test_atomic.py` kills processes while they save.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rowssl.core.errors import InputError
from rowssl.core.files import own_hash, read_directory, sha256_of, write_directory, write_text
from rowssl.training.checkpoints import Checkpoints


def tensors(value: float = 1.0) -> dict[str, dict[str, Tensor]]:
    """Of several types, and some with nothing in them."""
    method = {
        "weight": torch.full((7, 3), value),
        "count": torch.tensor([2, 5]),
        "seen": torch.tensor([True, False]),
        "total": torch.full((2,), value, dtype=torch.float64),
        "nothing": torch.zeros(0, 4),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    return {"method": method, "optimiser": {"weight": torch.randn(7, 3)}}


def equal(one: dict[str, dict[str, Tensor]], two: dict[str, dict[str, Tensor]]) -> bool:
    return one.keys() == two.keys() and all(
        one[g].keys() == two[g].keys()
        and all(torch.equal(one[g][k], two[g][k]) and one[g][k].dtype == two[g][k].dtype for k in one[g])
        for g in one
    )


@pytest.fixture
def two_saved(tmp_path: Path) -> Checkpoints:
    """Checkpoints of steps 10 (all ones) and 20 (all twos)."""
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(10, tensors(1.0), {"identity": "me"})
    checkpoints.save(20, tensors(2.0), {"identity": "me"})
    return checkpoints


def newest(checkpoints: Checkpoints, identity: str = "me") -> tuple[int, float]:
    """Step and content of what a restart would use."""
    found = Checkpoints(checkpoints.folder).latest(identity)
    assert found is not None
    return int(found[1]["step"]), float(found[0]["method"]["weight"][0, 0])


def test_round_trip(tmp_path: Path) -> None:
    written = tensors(3.0)
    write_directory(tmp_path / "model", written, {"identity": "me", "more": [1, "two"]})
    read, facts = read_directory(tmp_path / "model")
    assert equal(written, read)
    assert facts["more"] == [1, "two"]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "manifest.json",
        "method.safetensors",
        "optimiser.safetensors",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]  # no temporaries


def test_the_newest_counts_and_two_are_kept(two_saved: Checkpoints) -> None:
    assert newest(two_saved) == (20, 2.0)
    two_saved.save(30, tensors(3.0), {"identity": "me"})
    assert newest(two_saved) == (30, 3.0)
    assert sorted(p.name for p in two_saved.folder.iterdir()) == ["step-00000020", "step-00000030"]


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").latest("me") is None
    Checkpoints(tmp_path / "nowhere").clean()


def test_a_step_can_be_written_again(two_saved: Checkpoints) -> None:
    two_saved.save(20, tensors(5.0), {"identity": "me"})
    assert newest(two_saved) == (20, 5.0)
    assert sorted(p.name for p in two_saved.folder.iterdir()) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize("name", ["method.safetensors", "optimiser.safetensors"])
@pytest.mark.parametrize("damage", ["first byte", "last byte", "middle", "cut short", "removed"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_used(
    two_saved: Checkpoints, name: str, damage: str
) -> None:
    file = two_saved.folder / "step-00000020" / name
    content = bytearray(file.read_bytes())
    if damage == "removed":
        file.unlink()
    elif damage == "cut short":
        file.write_bytes(content[:-3])
    else:
        content[{"first byte": 0, "last byte": -1, "middle": len(content) // 2}[damage]] ^= 1
        file.write_bytes(content)
    again = Checkpoints(two_saved.folder)
    found = again.latest("me")
    assert found is not None
    assert found[1]["step"] == 10
    assert len(again.problems) == 1
    assert str(file) in again.problems[0]
    with pytest.raises(InputError, match=name):
        read_directory(file.parent)


def test_no_flipped_bit_of_the_manifest_goes_unnoticed(two_saved: Checkpoints) -> None:
    """Wherever the bit: either nothing that matters has changed, or the checkpoint before is used."""
    file = two_saved.folder / "step-00000020" / "manifest.json"
    content = file.read_bytes()
    wrong = []
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1
        file.write_bytes(flipped)
        try:
            result: object = newest(two_saved)
        except Exception as error:
            result = error
        if result not in ((20, 2.0), (10, 1.0)):
            wrong.append((bytes(flipped[max(0, position - 15) : position + 5]), result))
    assert wrong == []


def test_fresh_checkpoints_survive_damaged_ones_of_later_steps(two_saved: Checkpoints) -> None:
    """After both are found damaged training starts again, and what it saves must not be swept away as the oldest."""
    for path in two_saved.folder.iterdir():
        (path / "method.safetensors").write_bytes(b"damaged")
    again = Checkpoints(two_saved.folder)
    assert again.latest("me") is None
    assert len(again.problems) == 2
    again.save(5, tensors(7.0), {"identity": "me"})
    assert newest(again) == (5, 7.0)
    again.save(8, tensors(8.0), {"identity": "me"})
    assert newest(again) == (8, 8.0)


@pytest.mark.parametrize("why", ["damaged", "does not fit"])
def test_a_checkpoint_that_was_passed_over_goes_before_a_good_one(two_saved: Checkpoints, why: str) -> None:
    if why == "damaged":
        (two_saved.folder / "step-00000020" / "method.safetensors").write_bytes(b"damaged")
    again = Checkpoints(two_saved.folder)
    found = again.latest("me", misfit=lambda _, facts: "it is odd" if facts["step"] == 20 else "")
    assert found is not None
    assert found[1]["step"] == 10
    again.save(25, tensors(3.0), {"identity": "me"})
    assert sorted(p.name for p in again.folder.iterdir()) == ["step-00000010", "step-00000025"]
    (again.folder / "step-00000025" / "method.safetensors").write_bytes(b"damaged too")
    assert newest(again) == (10, 1.0)


def test_a_step_that_was_passed_over_and_written_again_counts(two_saved: Checkpoints) -> None:
    (two_saved.folder / "step-00000020" / "manifest.json").unlink()
    again = Checkpoints(two_saved.folder)
    assert again.latest("me") is not None
    again.save(20, tensors(4.0), {"identity": "me"})
    again.save(30, tensors(5.0), {"identity": "me"})
    assert sorted(p.name for p in again.folder.iterdir()) == ["step-00000020", "step-00000030"]


def test_strays_of_a_killed_process_are_removed(two_saved: Checkpoints) -> None:
    dead = os.fork() or os._exit(0)  # the number of a process that is no more
    os.waitpid(dead, 0)
    for name in (f".step-00000030.{dead}.tmp", f".step-00000020.{dead}.old.tmp"):
        (two_saved.folder / name / "deep").mkdir(parents=True)
        (two_saved.folder / name / "method.safetensors").write_bytes(b"half")
    two_saved.clean()
    assert sorted(p.name for p in two_saved.folder.iterdir()) == ["step-00000010", "step-00000020"]
    assert newest(two_saved) == (20, 2.0)


def test_a_run_with_other_options_is_refused(two_saved: Checkpoints) -> None:
    with pytest.raises(InputError, match="other options") as error:
        two_saved.latest("somebody else")
    assert str(two_saved.folder.parent) in str(error.value)


def edit(path: Path, **changes: object) -> None:
    """Change a manifest as somebody would who knows that it holds a hash of itself."""
    manifest = path / "manifest.json"
    content = {**json.loads(manifest.read_text()), **changes}
    manifest.write_text(json.dumps({**content, "self": own_hash(content)}))


def test_a_newer_format_is_refused(two_saved: Checkpoints) -> None:
    path = two_saved.folder / "step-00000020"
    content = json.loads((path / "manifest.json").read_text()) | {"format": 2}
    (path / "manifest.json").write_text(json.dumps(content | {"self": own_hash(content)}))
    with pytest.raises(InputError, match="format 2"):  # not damage: nothing older is used, nothing is swept away
        Checkpoints(two_saved.folder).latest("me")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "sub/in.safetensors", "x.pt", ".."])
def test_a_manifest_cannot_name_files_elsewhere(two_saved: Checkpoints, name: str) -> None:
    path = two_saved.folder / "step-00000020"
    outside = two_saved.folder / "outside.safetensors"
    outside.write_bytes((path / "method.safetensors").read_bytes())
    edit(path, sha256={name: sha256_of(outside)})
    with pytest.raises(InputError, match=r"manifest\.json names the file"):
        read_directory(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "sha256": 3}', "\xff\xfe"])
def test_what_is_no_manifest_is_refused(two_saved: Checkpoints, text: str) -> None:
    path = two_saved.folder / "step-00000020"
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"manifest\.json"):
        read_directory(path)
    assert newest(two_saved) == (10, 1.0)


@contextmanager
def no_more_space(limit: int) -> Iterator[None]:
    """Every write beyond `limit` bytes of a file fails, as on a full disk (the operating system's own limit)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


@pytest.mark.parametrize("limit", [0, 100, 200])
def test_a_full_disk_is_one_sentence_and_the_previous_checkpoint_stays(two_saved: Checkpoints, limit: int) -> None:
    with no_more_space(limit), pytest.raises(InputError, match="step-00000030 cannot be written") as error:
        two_saved.save(30, tensors(3.0), {"identity": "me"})
    assert "\n" not in str(error.value)
    assert newest(two_saved) == (20, 2.0)
    assert not list(two_saved.folder.glob(".*"))


def test_a_full_file_system(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "checkpoints")
    checkpoints.save(1, tensors(1.0), {"identity": "me"})
    large = {"method": {"weight": torch.zeros(2000, 1000)}}
    with pytest.raises(InputError, match="cannot be written"):
        checkpoints.save(2, large, {"identity": "me"})
    assert newest(checkpoints) == (1, 1.0)
    assert not list(checkpoints.folder.glob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_folder(two_saved: Checkpoints) -> None:
    two_saved.folder.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            two_saved.save(30, tensors(3.0), {"identity": "me"})
        assert newest(two_saved) == (20, 2.0)
    finally:
        two_saved.folder.chmod(0o700)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file stands in the way")
    with pytest.raises(InputError, match="run"):
        Checkpoints(tmp_path / "run" / "checkpoints").save(1, tensors(), {"identity": "me"})


def test_text_is_replaced_or_left(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_text(path, "one")
    with no_more_space(2), pytest.raises(InputError, match=r"metrics\.json cannot be written"):
        write_text(path, "three")
    assert path.read_text() == "one"
    write_text(path, "zwölf")
    assert path.read_text(encoding="utf-8") == "zwölf"
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]
