"""Options in layers: YAML files over each other, overrides over them, and one sentence for what is wrong."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from rowssl.config import build_config, load_config
from rowssl.core.errors import InputError
from rowssl.methods import check_method

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LAYERS = [sorted((CONFIGS / part).glob("*.yaml")) for part in ("data", "encoder", "method")]


@pytest.mark.parametrize("layers", list(product(*LAYERS)), ids=lambda layers: "+".join(p.stem for p in layers))
def test_the_shipped_files_compose(layers: tuple[Path, ...]) -> None:
    config = build_config(load_config(layers))
    assert config.data.name is not None
    check_method(config.method.name, config.method.options)


def test_later_layers_win_and_leave_the_rest_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("train: {epochs: 5, lr: 0.2}\nmethod: {name: simgcd, options: {epsilon: 2}}\n")
    (tmp_path / "b.yaml").write_text("train: {epochs: 7}\nmethod: {options: {tau_s: 0.2}}\n")
    config = build_config(load_config([tmp_path / "a.yaml", tmp_path / "b.yaml"], ["train.momentum=0.5", "seed=3"]))
    assert (config.train.epochs, config.train.lr, config.train.momentum, config.seed) == (7, 0.2, 0.5, 3)
    assert config.method.options == {"epsilon": 2, "tau_s": 0.2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: 3\n---\n", "YAML"),
        ("- 1\n", "keys and values"),
        ("train: {epoch: 3}\n", "train.epoch"),
        ("a: [", "YAML"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        build_config(load_config([path]), str(path))
    assert "wrong.yaml" in str(error.value)


def test_a_value_cannot_become_a_group(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("classes: 5\n")
    (tmp_path / "b.yaml").write_text("classes: {number: 5}\n")
    with pytest.raises(InputError, match=r"b\.yaml classes\.number"):
        load_config([tmp_path / "a.yaml", tmp_path / "b.yaml"])
