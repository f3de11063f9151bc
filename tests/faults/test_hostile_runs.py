"""Runs and models from strangers are data: nothing in them leaves its folder, asks for more than is there, or is executed."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import refused

from rowssl.api import load
from rowssl.core.errors import InputError
from rowssl.core.files import own_hash, read_directory, write_directory, write_text
from rowssl.runs.classifier import Classifier
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run

Command = Callable[..., tuple[int, str, str]]


def sign(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest as whoever makes one by hand can: its own hash is right again."""
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    change(facts)
    facts["self"] = own_hash(facts)
    path.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    "name",
    [
        "../tail.safetensors",
        "/tmp/tail.safetensors",
        "sub/tail.safetensors",
        "..",
        "",
        "tail.pt",
        "tail.safetensors\0",
        "a\\..\\b",
    ],
)
def test_no_file_of_a_model_lies_elsewhere(own_run: Path, name: str) -> None:
    shutil.copy(own_run / "model" / "tail.safetensors", own_run / "tail.safetensors")
    sign(own_run / "model", lambda facts: facts["sha256"].update({name: facts["sha256"]["tail.safetensors"]}))
    with refused("cannot belong to it"):
        Classifier.load(own_run)


def test_no_file_of_a_model_is_a_link(own_run: Path) -> None:
    path = own_run / "model" / "tail.safetensors"
    shutil.move(path, own_run / "outside")
    path.symlink_to(own_run / "outside")
    with refused("cannot belong to it"):
        Classifier.load(own_run)


def test_links_in_a_run_are_not_followed_by_what_is_written(own_run: Path, tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    from rowssl.serve.app import create_app
    from rowssl.serve.session import Served

    secret, untouched = tmp_path / "secret", tmp_path / "untouched"
    secret.write_text("my secret")
    (own_run / "classes.csv").unlink()
    (own_run / "classes.csv").symlink_to(secret)
    with TestClient(create_app(Served(own_run, device="cpu")), base_url="http://127.0.0.1:8000") as client:
        assert client.get("/classes.csv").status_code == 404
    (own_run / ".edits.lock").unlink(missing_ok=True)
    (own_run / ".edits.lock").symlink_to(untouched)
    with refused("cannot be written"):
        Run.load(own_run).rename("a", "x")
    (own_run / ".edits.lock").unlink()
    (own_run / f".edits.json.{os.getpid()}.tmp").symlink_to(secret)
    for name in ("predictions.csv", "edits.json", "report.html"):
        (own_run / name).unlink(missing_ok=True)
        if name != "edits.json":
            (own_run / name).symlink_to(secret)
    load(own_run).rename("a", "x")
    assert secret.read_text() == "my secret"
    assert not untouched.exists()
    assert not (own_run / "classes.csv").is_symlink()
    write_text(own_run / "note", "text")
    assert (own_run / "note").read_text() == "text"


SIZES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "wide feature": lambda facts: facts["encoder"].update(out_dim=2**15),
    "very wide feature": lambda facts: facts["encoder"].update(out_dim=2**40),
    "a feature of no width": lambda facts: facts["encoder"].update(out_dim=0),
    "width as a text": lambda facts: facts["encoder"].update(out_dim="8"),
    "width as a truth": lambda facts: facts["encoder"].update(out_dim=True),
    "endless adapter": lambda facts: facts["encoder"].update(tail=f"adapter:{'9' * 5000}"),
    "wide adapter": lambda facts: facts["encoder"].update(tail="adapter:1000000000"),
    "no adapter": lambda facts: facts["encoder"].update(tail=["adapter"]),
    "large picture": lambda facts: facts["encoder"].update(asked_size=10**9),
    "wide embedding": lambda facts: facts["encoder"].update(name="identity", trunk_shape=[2**25], asked_size=0),
    "wider embedding": lambda facts: facts["encoder"].update(name="identity", trunk_shape=[2**40]),
    "no shape": lambda facts: facts["encoder"].update(trunk_shape=[]),
    "many classes": lambda facts: facts.update(classes=[str(i) for i in range(200_000)]),
    "many prompts": lambda facts: facts.update(method="promptcal", options={"n_prompts": 10**10}),
    "prompts as a text": lambda facts: facts.update(method="promptcal", options={"n_prompts": "9"}),
    "negative seed": lambda facts: facts.update(seed=-1),
    "large seed": lambda facts: facts.update(seed=2**70),
    "no temperature": lambda facts: facts.update(temperature=0.0),
    "endless temperature": lambda facts: facts.update(temperature=float("inf")),
    "temperature that is none": lambda facts: facts.update(temperature=float("nan")),
    "class with an escape": lambda facts: facts["classes"].__setitem__(0, "\x1b]0;hit\x07"),
    "class with a line": lambda facts: facts["classes"].__setitem__(0, "a\nb"),
    "class twice": lambda facts: facts["classes"].__setitem__(0, "b"),
    "class as a list": lambda facts: facts["classes"].__setitem__(0, ["b"]),
    "more known than there are": lambda facts: facts.update(n_known=99),
    "encoder elsewhere": lambda facts: facts["encoder"].update(name="/dev/zero", path="/dev/zero"),
    "encoder as a number": lambda facts: facts["encoder"].update(name=7),
    "encoder from the network": lambda facts: facts["encoder"].update(name="hf:somebody/something", path=None),
    "encoder to be fetched": lambda facts: facts["encoder"].update(name="dinov2_vitl14", path=None),
    "encoder from a strange place": lambda facts: facts["encoder"].update(name="hf:../../etc", path=None),
    "no encoder": lambda facts: facts.update(encoder={}),
    "other method": lambda facts: facts.update(method="os.system"),
    "other options": lambda facts: facts.update(method="promptcal", options={"n_supervised": [1]}),
    "newer": lambda facts: facts.update(model_format=2),
    "newer files": lambda facts: facts.update(format=2),
    "no hashes": lambda facts: facts.update(sha256={}),
    "hashes as a list": lambda facts: facts.update(sha256=[]),
}


@pytest.mark.parametrize("name", SIZES)
def test_what_a_manifest_says_is_not_believed(
    own_run: Path, name: str, monkeypatch: pytest.MonkeyPatch, run: Command, finished: Any
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("somebody asks the network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    sign(own_run / "model", SIZES[name])
    with refused(megabytes=128, seconds=30):
        Classifier.load(own_run)
    code, _, said = run("predict", own_run, finished.pictures / "000.png")
    assert code == 2
    assert said.startswith("rowssl: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("group", ["tail", "classifier", "far"])
@pytest.mark.parametrize("change", ["missing", "empty", "shape", "number", "more"])
def test_parts_that_do_not_fit_together(own_run: Path, group: str, change: str) -> None:
    tensors, facts = read_directory(own_run / "model")
    first = sorted(tensors[group])[0]
    if change == "missing":
        del tensors[group]
    elif change == "empty":
        tensors[group] = {}
    elif change == "shape":
        tensors[group][first] = torch.zeros(3, 5, 7)
    elif change == "number":
        tensors[group][first] = torch.tensor(1)
    else:
        tensors[group]["more"] = torch.zeros(2)
    write_directory(own_run / "model", tensors, facts)
    with refused("does not hold a whole model"):
        Classifier.load(own_run)


def test_a_manifest_without_an_end(own_run: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "", "\0", "null"):
        (own_run / "model" / "manifest.json").write_text(text)
        with refused("manifest"):
            Classifier.load(own_run)


def test_manifests_of_any_depth(own_run: Path) -> None:
    """Just below the depth that cannot be read lie some that can, but not be written again for their hash."""
    path = own_run / "model" / "manifest.json"
    whole, said = path.read_text(), set()
    for depth in range(700, 1000):
        path.write_text(whole.replace("{", f'{{"deep": {"[" * depth}{"]" * depth},', 1))
        with pytest.raises(InputError, match=r"manifest\.json") as caught:
            Classifier.load(own_run)
        said.add(str(caught.value).removeprefix(str(path)))
    assert said == {" is damaged: it is not what was written.", " is missing or damaged."}


def split(class_id: str, parts: list[Any], rows: Any, temperature: Any = 0.1) -> dict[str, Any]:
    return {"do": "split", "class": class_id, "parts": parts, "directions": rows, "temperature": temperature}


UNITS = np.eye(2, 192).tolist()
MULTIPLY = [
    one
    for i in range(40)
    for one in (
        split("a" if i == 0 else f"a{i - 1}.1", [f"a{i}.1", f"a{i}.2"], UNITS),
        {"do": "merge", "into": f"a{i}.1", "class": f"a{i}.2"},
    )
]
NESTED = [split("a" if i == 0 else f"a{i - 1}.1", [f"a{i}.1", f"a{i}.2"], UNITS) for i in range(200)]
HISTORIES: dict[str, Any] = {
    "joins itself": [{"do": "merge", "into": "a", "class": "a"}],
    "comes back": [{"do": "merge", "into": "b", "class": "a"}, {"do": "move", "rows": {}, "new": ["a"]},
                   {"do": "merge", "into": "a", "class": "b"}],
    "made twice": [{"do": "move", "rows": {}, "new": ["a"]}],
    "a part is a class": [split("a", ["b", "x"], UNITS)],
    "a part is itself": [split("a", ["a", "x"], UNITS)],
    "a part twice": [split("a", ["x", "x"], UNITS)],
    "a part that is none": [split("a", [["x"], "y"], UNITS)],
    "multiplies": MULTIPLY,
    "very deep": NESTED,
    "many new ones": [{"do": "move", "rows": {}, "new": [f"new {i}" for i in range(40_000)]}],
    "half a surrogate": [{"do": "rename", "class": "a", "name": "x", "note": "\ud800"}],
    "half a surrogate in a key": [{"do": "rename", "class": "a", "name": "x", "\udfff": 1}],
    "ragged": [split("a", ["x", "y"], [[1.0], [1.0, 0.0]])],
    "short": [split("a", ["x", "y"], [[1.0], [0.0]])],
    "not finite": [split("a", ["x", "y"], [[float("nan")] * 192, [1.0] * 192])],
    "too large": [split("a", ["x", "y"], [[10**400] * 192, [1.0] * 192])],
    "no temperature": [split("a", ["x", "y"], UNITS, float("inf"))],
    "name with an escape": [{"do": "rename", "class": "a", "name": "\x1b[31m"}],
    "name with a line": [{"do": "rename", "class": "a", "name": "a\nb"}],
    "name that is none": [{"do": "rename", "class": "a", "name": {"x": 1}}],
    "long name": [{"do": "rename", "class": "a", "name": "x" * 10_000}],
    "moved nowhere": [{"do": "move", "rows": {"000.png": "nowhere"}}],
    "moved by a list": [{"do": "move", "rows": [["000.png", "a"]]}],
    "nothing": [{}],
    "a text": ["rename"],
    "all a text": "rename",
    "undone and no edit": [{"do": "x"}, {"do": "undo"}, 7],
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_edits_of_a_stranger(own_run: Path, name: str, run: Command) -> None:
    content = {"format": 1, "model": Edits.load(own_run).model, "history": HISTORIES[name]}
    (own_run / "edits.json").write_text(json.dumps(content))
    with refused("edits.json|There is no class", seconds=30):
        Classifier.load(own_run)
    code, _, said = run("edit", own_run, "rename", "a", "b2")
    assert code == 2
    assert said.count("\n") == 1


def test_an_undone_edit_may_be_anything(own_run: Path, run: Command) -> None:
    history = [
        {"do": "rename"},
        {"do": "undo"},
        {"do": "split", "parts": 3, "time": "\x1b[31m"},
        {"do": "undo"},
        {"do": "undo"},
    ]
    content = {"format": 1, "model": Edits.load(own_run).model, "history": history}
    (own_run / "edits.json").write_text(json.dumps(content))
    assert len(Edits.load(own_run).classes) == 10
    code, said, _ = run("edit", own_run, "history")
    assert code == 0
    assert "\x1b" not in said
