"""No method mixes devices: each trains, answers and is loaded on what pretends to be a GPU. See `pretend_cuda`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path

import numpy as np
import torch

from pretend_cuda import pretend, pretend_backward

torch.set_num_threads(1)
import rowssl.runs.fit as fitting
from rowssl.config import build_config
from rowssl.methods import build_method
from rowssl.runs.classifier import Classifier

def build(*arguments, **options):
    method = build_method(*arguments, **options)
    pretend_backward(method)
    return method

def answer(method, *arguments, **more):  # all of it is there when it has been trained; for its files it moves to the CPU
    assert {tensor.device.type for tensor in method.state_dict().values()} == {"cuda"}
    return ask(method, *arguments, **more)

if sys.argv[1] == "rules":
    pretend()
    x = torch.zeros(3, device="cuda")
    assert (x.device.type, (x + 1).device.type, x.cpu().device.type) == ("cuda", "cuda", "cpu")
    assert x[torch.tensor([0])].device.type == "cuda"
    for wrong in (lambda: x + torch.zeros(3), lambda: torch.zeros(3)[x.long()], lambda: x.numpy(),
                  lambda: x.index_put_((torch.tensor([0]),), torch.zeros(1))):
        try:
            wrong()
        except (RuntimeError, TypeError):
            continue
        raise AssertionError("devices were mixed")
    sys.exit()

rng = np.random.default_rng(0)
truth = rng.integers(6, size=90)
x = (2 * rng.normal(size=(6, 24))[truth] + rng.normal(size=(90, 24))).astype(np.float32)
labels = [f"class {c}" if c < 3 and rng.random() < 0.5 else "" for c in truth]
out = Path(sys.argv[2])
np.savez(out / "data.npz", embeddings=x, labels=np.array(labels), truth=np.array([f"class {c}" for c in truth]))
pretend()
fitting.build_method, ask, fitting.answer = build, fitting.answer, answer
for case in sys.argv[3:]:
    name, _, options = case.partition(":")
    config = build_config({
        "data": {"source": str(out / "data.npz")}, "classes": 6, "seed": 0,
        "train": {"epochs": 2, "batch_size": 30, "device": "cuda:0", "save_seconds": 0},
        "method": {"name": name, "options": dict(option.split("=") for option in options.split(",") if option)},
    })
    fitting.fit(config, out / case)
    model = Classifier.load(out / case, device="cuda:0")
    print(case, len(model.predict_embeddings(x[:5])))
"""

CASES = {
    "clustering": ["kmeans", "gcd", "gcd:readout=kmeans", "bacon"],
    "classifiers": ["simgcd", "trssl", "orca", "opencon", "promptcal"],
    "dts": ["dts", "dts:preset=paper", "dts:preset=official", "dts:queue_init=data", "dts:score=loss", "dts:score=instance",
            "dts:temperature=true_prior", "dts:classifier_init=semi_kmeans", "dts:n_prototypes=70,n_neighbours=3"],
}  # fmt: skip


def run(*arguments: str) -> str:
    here = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reaches into the libraries of Linux builds of torch")
class TestRules:
    def test_what_cuda_refuses_is_refused(self) -> None:
        run("rules")

    @pytest.mark.parametrize("kind", CASES)
    def test_no_method_mixes_devices(self, kind: str, tmp_path: Path) -> None:
        said = run("fit", str(tmp_path), *CASES[kind])
        assert said.split("\n")[:-1] == [f"{case} 5" for case in CASES[kind]]
