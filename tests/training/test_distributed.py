"""Two processes are one process with the same global batch: losses, weights and state, for every method.

In double precision, so that what is left of a difference is rounding in its last digits and not forty steps of it amplified.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from contract.problems import METHODS, build, digest, long_tailed
from rowssl.core import distributed
from rowssl.core.errors import InputError
from rowssl.data.feed import ArraySource, Batch, FeatureAugmentation, Feed
from rowssl.methods.base import Method, Step
from rowssl.training.loop import Optimisation, train


@pytest.mark.parametrize("name", ["gpu", "cuda:7", "meta", "", "cuda" if not torch.cuda.is_available() else "cuda:99"])
def test_a_device_that_is_not_here_is_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"--device .* cannot be used on this machine: choose one of auto, cpu"):
        distributed.device(name)


def test_devices_that_are_here() -> None:
    assert distributed.device("cpu").type == "cpu"
    assert distributed.device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_every_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: what would be asked of one is recorded."""
    asked: list[Any] = []
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", asked.append)
    distributed.start()
    assert asked == [3, "cpu:gloo,cuda:nccl"]
    monkeypatch.setattr(distributed, "world", lambda: 8)
    monkeypatch.setattr(torch, "empty", lambda size, device: asked.append(str(device)))
    assert distributed.device("cuda:0") == torch.device("cuda:3")  # its own, whichever was named for all
    monkeypatch.setenv("LOCAL_RANK", "4")
    asked.clear()
    distributed.start()
    assert asked == ["cpu:gloo,cuda:nccl"]  # more processes than GPUs: fine on a CPU, refused when a GPU is asked for


BATCHES = (32, 33)  # 33: the shares are of 16 and of 17 rows
EPOCHS = 8
AUGMENTATION = FeatureAugmentation(mix=0.3, dropout=0.1, noise=0.1)

PROGRAM = """
import json, sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from contract.problems import METHODS, digest
from rowssl.core import distributed
from rowssl.training.checkpoints import Checkpoints
from training.test_distributed import BATCHES, recorded_training

torch.set_num_threads(1)
distributed.start()
folder, rank = Path(sys.argv[1]), distributed.rank()
assert distributed.world() == 2
facts = {"shares": {}, "losses": {}, "digests": {}, "resumed": {}}
for rows in (1, 2, 7, 32, 33):
    here = distributed.share(rows)
    facts["shares"][rows] = [here.start, here.stop]

# Gathering: whole tensors in order, and of the gradient each process keeps its share.
whole = torch.arange(14.0).view(7, 2)
local = whole[distributed.share(7)].clone().requires_grad_()
left, right = distributed.gather(7, local, local * 10)
(left.square().sum() + right.sum()).backward()
facts["gathered"] = torch.cat([left, right], dim=1).tolist()
facts["gradient"] = local.grad.tolist()
single = torch.nn.Parameter(torch.zeros(2))
single.grad = torch.tensor([1.0, float(rank)])
distributed.sum_gradients([single, torch.nn.Parameter(torch.zeros(1))])
facts["summed"] = single.grad.tolist()

for name in METHODS:
    for batch_size in BATCHES:
        method, losses = recorded_training(name, batch_size)
        facts["losses"][f"{name} {batch_size}"] = losses
        facts["digests"][f"{name} {batch_size}"] = digest(method)
        if rank == 0:
            save_file({k: v.contiguous() for k, v in method.state_dict().items()}, folder / f"{name}-{batch_size}.safetensors")
    where = folder / "runs" / name / "checkpoints"
    recorded_training(name, 32, checkpoints=Checkpoints(where), stop=7)
    distributed.barrier()
    resumed, _ = recorded_training(name, 32, checkpoints=Checkpoints(where))
    facts["resumed"][name] = digest(resumed)
(folder / f"facts-{rank}.json").write_text(json.dumps(facts))
distributed.barrier()
"""


class Stopped(Exception):
    pass


class DoubleFeed(Feed):
    """Trunk outputs in double precision."""

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        return replace(batch, views=tuple(view.double() for view in batch.views))

    def chunks(self, rows: np.ndarray | None = None, size: int = 1024) -> Iterator[tuple[np.ndarray, Tensor]]:
        return ((part, x.double()) for part, x in super().chunks(rows, size))

    def view_chunks(self, view: int, size: int = 1024) -> Iterator[tuple[np.ndarray, Tensor]]:
        return ((rows, x.double()) for rows, x in super().view_chunks(view, size))


def recorded_training(name: str, batch_size: int, stop: int | None = None, **more: Any) -> tuple[Method, list[float]]:
    """Train a small problem, up to step `stop` if there is one; every step's total loss."""
    problem = long_tailed(100)
    method, losses = build(name, problem).double(), []
    plain = method.loss

    def recording(batch: Batch) -> Step:
        result = plain(batch)
        losses.append(float(torch.stack([term.detach() for term in result.losses.values()]).sum()))
        return result

    method.loss = recording  # type: ignore[method-assign]
    source = ArraySource(problem.embeddings, problem.views)
    sizes = {"batch_size": batch_size, "epochs": EPOCHS, "seed": 0}
    feed = DoubleFeed(source, problem.targets, **sizes, augmentation=AUGMENTATION)

    def watch(steps: int) -> None:
        if steps == stop:
            assert steps % feed.steps_per_epoch  # within an epoch
            raise Stopped

    with suppress(Stopped):
        list(train(method, feed, Optimisation(lr=0.05, save_within_seconds=0), **more, watch=watch))
    return method, losses


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes found: the folder and each process's facts."""
    folder = tmp_path_factory.mktemp("distributed")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), str(folder)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, [json.loads((folder / f"facts-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def one() -> dict[str, tuple[Method, list[float]]]:
    """The same trainings in this process alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {f"{name} {size}": recorded_training(name, size) for name in METHODS for size in BATCHES}
    torch.set_num_threads(threads)
    return found


def test_shares_cover_every_row_once(two: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second = (facts["shares"] for facts in two[1])
    for rows in first:
        assert first[rows][0] == 0
        assert first[rows][1] == second[rows][0]
        assert second[rows][1] == int(rows)
        assert abs((first[rows][1] - first[rows][0]) - (second[rows][1] - second[rows][0])) <= 1


def test_gather_is_whole_and_its_gradient_a_share(two: tuple[Path, list[dict[str, Any]]]) -> None:
    whole = torch.arange(14.0).view(7, 2)
    for facts in two[1]:
        assert facts["gathered"] == torch.cat([whole, whole * 10], dim=1).tolist()
        assert facts["summed"] == [2.0, 1.0]
    gradient = two[1][0]["gradient"] + two[1][1]["gradient"]
    assert gradient == (2 * whole + 10).tolist()


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("name", METHODS)
def test_two_processes_train_as_one(
    name: str,
    batch_size: int,
    one: dict[str, tuple[Method, list[float]]],
    two: tuple[Path, list[dict[str, Any]]],
) -> None:
    key = f"{name} {batch_size}"
    method, losses = one[key]
    folder, facts = two
    assert len(losses) >= 20
    assert facts[0]["losses"][key] == facts[1]["losses"][key]
    difference = [abs(a - b) for a, b in zip(losses, facts[0]["losses"][key], strict=True)]
    assert max(difference) <= 1e-6
    assert facts[0]["digests"][key] == facts[1]["digests"][key]  # both processes hold the same bits
    state: dict[str, Tensor] = load_file(folder / f"{name}-{batch_size}.safetensors")
    for part, tensor in method.state_dict().items():
        torch.testing.assert_close(
            state[part], tensor, atol=1e-6, rtol=1e-6, msg=lambda text, part=part: f"{part}: {text}"
        )


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_resume_bit_for_bit(name: str, two: tuple[Path, list[dict[str, Any]]]) -> None:
    for facts in two[1]:
        assert facts["resumed"][name] == facts["digests"][f"{name} 32"]


def test_alone_nothing_is_shared() -> None:
    assert (distributed.rank(), distributed.world()) == (0, 1)
    assert distributed.share(33) == slice(0, 33)
    x = torch.randn(3, 2)
    assert distributed.gather(3, x)[0] is x
    module = build("simgcd", long_tailed(60))
    before = digest(module)
    distributed.same_everywhere(module)
    distributed.barrier()
    assert digest(module) == before
