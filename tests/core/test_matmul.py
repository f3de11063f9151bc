"""oneDNN's products: the same numbers as PyTorch's, in the backward pass too, and only where they are asked for."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.nn.functional as F

from contract.problems import build, feed_of, long_tailed
from rowssl.core import matmul
from rowssl.core.matmul import fast_products
from rowssl.encoders.vit import in_parts
from rowssl.training.loop import Optimisation, train

KERNELS = []  # those of the tests: never let go


@pytest.fixture
def counted(monkeypatch):
    """oneDNN whatever the processor is; the shapes of what it was asked for."""
    monkeypatch.setenv("ROWSSL_PRODUCTS", "onednn")
    if matmul._made in ([], [None]):  # kernels that are in place stay
        monkeypatch.setattr(matmul, "_made", [])
        with fast_products():
            KERNELS.extend(matmul._made)
        if matmul._made == [None]:
            pytest.skip("this PyTorch has no oneDNN")
    asked, product = [], matmul._product

    def watched(a, b, bias=None):
        asked.append((tuple(a.shape), tuple(b.shape)))
        return product(a, b, bias)

    monkeypatch.setattr(matmul, "_product", watched)
    return asked


def matrices(n, d, m, **how):
    generator = torch.Generator().manual_seed(n * m + d)
    return torch.randn(n, d, generator=generator, **how), torch.randn(d, m, generator=generator, **how)


@pytest.mark.parametrize("shape", [(256, 384, 384), (128, 256, 1104), (16, 2048, 2048), (4096, 256, 40)])
@pytest.mark.parametrize("lies", ["plain", "transposed", "parts", "expanded", "all expanded"])
def test_products_are_those_of_pytorch(counted, shape, lies):
    n, d, m = shape
    a, b = matrices(n, d, m)
    if lies == "transposed":
        a, b = a.T.contiguous().T, b.T.contiguous().T
    elif lies == "parts":
        a, b = torch.cat([a, a], dim=1)[:, :d], torch.cat([b, b])[::2]
    elif lies == "expanded":
        a = a[:1].expand(n, d)
    elif lies == "all expanded":
        a, b = a[:1].expand(n, d), b[:, :1].expand(d, m)
    bias, full = torch.randn(m), torch.randn(n, m)
    if lies == "all expanded":
        bias, full = bias[:1].expand(m), full[:1].expand(n, m)
    exact = a.double() @ b.double()
    close = {"rtol": 0, "atol": 1e-6 * d}
    with fast_products():
        torch.testing.assert_close((a @ b).double(), exact, **close)
        torch.testing.assert_close(torch.addmm(bias, a, b).double(), exact + bias.double(), **close)
        torch.testing.assert_close(torch.addmm(full, a, b).double(), exact + full.double(), **close)
    assert counted == [((n, d), (d, m))] * 3


def test_layers_and_their_gradients_go_there(counted):
    x, weight = matrices(256, 512, 512)
    bias = torch.randn(512)

    def gradients():
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight.T, bias)]
        F.linear(*leaves).square().sum().backward()
        return [leaf.grad for leaf in leaves]

    plain = gradients()
    assert counted == []
    with fast_products():
        ours = gradients()
    assert len(counted) == 3  # forward, d/dx, d/dweight
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "other"),
    [(torch.float64, {}), (torch.bfloat16, {}), (torch.float32, {"alpha": 2}), (torch.float32, {"beta": 0.5})],
)
def test_what_it_cannot_do_is_left_to_pytorch(counted, kind, other):
    a, b = (part.to(kind) for part in matrices(256, 512, 512))
    c = torch.ones(512, dtype=kind)
    plain = torch.addmm(c, a, b, **other)
    with fast_products():
        assert torch.equal(torch.addmm(c, a, b, **other), plain)
    assert counted == []


def test_small_products_odd_numbers_and_wrong_shapes_are_left_to_pytorch(counted):
    a, b = matrices(8, 8, 8)
    with fast_products():
        for n, d, m in ((1001, 512, 512), (1000, 513, 512), (1000, 512, 513)):  # code for each of these would add up
            torch.mm(*matrices(n, d, m))
        with pytest.raises(RuntimeError, match="self must be a matrix"):
            torch.mm(torch.ones(512), torch.ones(512, 512))
        assert torch.equal(a @ b, torch.mm(a, b, out=torch.empty(0)))
        assert (torch.empty(0, 300) @ torch.ones(300, 300)).shape == (0, 300)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(torch.ones(2000, 40), torch.ones(50, 2000))
    assert counted == []


def test_other_threads_and_what_follows_are_left_alone(counted):
    a, b = matrices(256, 512, 512)
    plain = torch.mm(a, b, out=torch.empty(0))
    found = []
    with fast_products(), fast_products():
        thread = threading.Thread(target=lambda: found.append(a @ b))
        thread.start()
        thread.join()
    found.append(a @ b)
    assert counted == []
    assert all(torch.equal(one, plain) for one in found)


def test_an_error_ends_it(counted):
    a, b = matrices(256, 512, 512)
    with pytest.raises(ZeroDivisionError), fast_products():
        raise ZeroDivisionError
    a @ b
    assert counted == []


def test_training_steps_and_trunks_ask_for_it(counted, monkeypatch):
    monkeypatch.setattr(matmul, "LEAST_WORK", 1)
    problem = long_tailed(64, known=4, novel=4, dim=16)
    list(train(build("dts-paper", problem), feed_of(problem, epochs=1, batch_size=16), Optimisation()))
    assert counted
    counted.clear()
    weight = torch.randn(8, 8)
    in_parts(lambda part: part.flatten(1)[:, :8] @ weight, torch.randn(8, 3, 8, 8), 8)
    assert counted


def test_a_pytorch_with_another_operator_keeps_its_own(monkeypatch):
    def refuses(*_):
        raise RuntimeError("mkldnn::_linear_pointwise() is missing value for argument")

    monkeypatch.setattr(matmul, "_product", refuses)
    assert matmul._kernels() is None
    monkeypatch.setattr(matmul, "_product", lambda *_: torch.zeros(2, 8))
    assert matmul._kernels() is None


def test_threads_that_come_first_together_make_it_once(monkeypatch):
    made = []
    monkeypatch.setattr(matmul, "_made", [])
    monkeypatch.setattr(matmul, "_wanted", lambda: True)
    monkeypatch.setattr(matmul, "_kernels", lambda: time.sleep(0.05) or made.append(1))

    def enter():
        with fast_products():
            pass

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


@pytest.mark.parametrize(
    ("asked", "vendor", "capability", "expected"),
    [
        ("", "AuthenticAMD", "AVX512", True),
        ("", "AuthenticAMD", "AVX2", False),
        ("", "GenuineIntel", "AVX512", False),
        ("mkl", "AuthenticAMD", "AVX512", False),
        ("onednn", "GenuineIntel", "AVX2", True),
    ],
)
def test_which_processors_gain(monkeypatch, asked, vendor, capability, expected):
    monkeypatch.setenv("ROWSSL_PRODUCTS", asked)
    monkeypatch.setattr(matmul.Path, "read_text", lambda self: f"processor : 0\nvendor_id\t: {vendor}\nmodel : 1\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert matmul._wanted() is expected


def test_nothing_is_replaced_where_nothing_is_gained():
    """In a process of its own: kernels that were put in place stay."""
    program = (
        "import torch, rowssl.core.matmul as p\n"
        "with p.fast_products(): pass\n"
        "print('matmul.py' in torch._C._dispatch_dump('aten::mm'))"
    )
    for asked, expected in (("mkl", "False"), ("onednn", "True")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "ROWSSL_PRODUCTS": asked},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")
