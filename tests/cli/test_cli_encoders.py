"""`rowssl encoders`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command import rowssl
from rowssl.encoders import weights

ROOT = Path(__file__).resolve().parents[2]


def test_it_says_what_works_and_how_to_get_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROWSSL_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "encoders").mkdir()
    (tmp_path / "encoders" / "dinov2_vits14.safetensors").write_bytes(b"")
    assert rowssl("encoders") == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert set(weights.PUBLISHED) < set(lines)
    assert re.search(r" yes +.*dinov2_vits14\.safetensors$", lines["dinov2_vits14"])
    assert lines["dino_vitb16"].endswith(" no    hf download timm/vit_base_patch16_224.dino model.safetensors")
    assert "if you do not choose: dinov2_vits14." in said


def test_the_page_has_the_address_of_every_published_encoder() -> None:
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    for name, entry in weights.PUBLISHED.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert entry.repository in row
        assert entry.url in row
