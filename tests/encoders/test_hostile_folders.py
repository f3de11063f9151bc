"""Encoder folders from a stranger whose files are none: pipes, devices, files without an end; links are what caches are made of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rowssl.core.errors import InputError
from rowssl.core.files import LARGEST_CONFIG
from rowssl.encoders.huggingface import check_numbers, read_config, read_preprocessing
from rowssl.encoders.weights import stored_sizes

pytestmark = pytest.mark.usefixtures("no_waiting")
KINDS = ("pipe", "device", "huge", "folder")


def put(kind: str, path: Path) -> None:
    """Another thing in the place of a file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/full")  # gives zeros without an end, too
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(LARGEST_CONFIG + 1)


def refuses(error: pytest.ExceptionInfo[InputError]) -> bool:
    """Whether it is one sentence that says why."""
    text = str(error.value)
    return text.isprintable() and any(why in text for why in ("no plain file", "too large", "not a Hugging Face"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_that_is_none(kind: str, tmp_path: Path) -> None:
    put(kind, tmp_path / "config.json")
    for read in (read_config, check_numbers):
        with pytest.raises(
            InputError, match=r"config\.json (cannot be read: it is no plain file|is too large)"
        ) as error:
            read(tmp_path)
        assert refuses(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_preprocessor_that_is_none(kind: str, tmp_path: Path) -> None:
    put(kind, tmp_path / "preprocessor_config.json")
    with pytest.raises(InputError, match=r"preprocessor_config\.json ") as error:
        read_preprocessing(tmp_path, {}, None)
    assert refuses(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "part.safetensors"])
def test_weights_that_are_none(name: str, kind: str, tmp_path: Path) -> None:
    if name == "part.safetensors":
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    put(kind, tmp_path / name)
    with pytest.raises(InputError, match="cannot be loaded as an encoder: its safetensors: ") as error:
        stored_sizes(tmp_path)
    assert str(error.value).isprintable()


def test_an_index_is_too_large(tmp_path: Path) -> None:
    put("huge", tmp_path / "model.safetensors.index.json")
    with pytest.raises(InputError, match="is too large for such a file"):
        stored_sizes(tmp_path)


def test_links_as_in_a_cache(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    (blobs / "0").write_text(json.dumps({"model_type": "vit", "hidden_size": 64}))
    (blobs / "1").write_text(json.dumps({"size": 64}))
    (blobs / "2").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    save_file({"a": torch.zeros(3)}, blobs / "3")
    names = ("config.json", "preprocessor_config.json", "model.safetensors.index.json", "part.safetensors")
    for number, name in enumerate(names):
        (folder / name).symlink_to(f"../blobs/{number}")
    check_numbers(folder)
    assert read_config(folder)["hidden_size"] == 64
    assert read_preprocessing(folder, {}, None).image_size == 64
    assert stored_sizes(folder) == {"a": 3}
