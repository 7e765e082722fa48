"""Kernels are functions with Triton's decorator; other decorators are refused by name."""

from __future__ import annotations

import pytest

from tests.frontend.conftest import Sources

KERNEL = "\ndef k(p):\n    tl.store(p, 1)\n"
SIGNATURE = {"p": "*i32"}


@pytest.mark.parametrize(
    "head",
    [
        "@triton.jit",
        "@triton.jit(debug=True)",
        "from triton import jit\n@jit",
        "from triton import jit as fast\n@fast",
        "from triton.runtime.jit import jit\n@jit",
        "import triton as t\n@t.jit",
        "from elsewhere.utils import triton as t\n@t.jit",
        "from elsewhere import timed\n@timed\n@triton.jit",
        "from elsewhere import timed\n@triton.jit\n@timed(3)",
        "def own(f):\n    return triton.jit(f)\n@own",
        "def own(**options):\n    return lambda f: triton.jit(f)\n@own(x=1)",
        "@triton.autotune([triton.Config({})], key=[])\n@triton.jit",
    ],
)
def test_kernels(sources: Sources, head: str) -> None:
    assert "tile.store" in sources.text(head + KERNEL, SIGNATURE)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("import numba\n@numba.cuda.jit", "numba.cuda.jit"),
        ("from numba import cuda\n@cuda.jit(device=True)", "numba.cuda.jit"),
        ("from numba import jit\n@jit", "numba.jit"),
        ("from numba import njit as jit\n@jit", "numba.njit"),
        ("from triton.experimental import gluon\n@gluon.jit", "triton.experimental.gluon.jit"),
        ("from triton.experimental.gluon import jit\n@jit", "triton.experimental.gluon.jit"),
        ("import jax\n@jax.jit", "jax.jit"),
        ("import torch\n@torch.jit.script", "torch.jit.script"),
        ("import torch\n@torch.compile(dynamic=True)", "torch.compile"),
        ("import functools\n@functools.cache", "functools.cache"),
        ("import numba, functools\n@functools.cache\n@numba.njit", "functools.cache"),
    ],
)
def test_others_are_named(sources: Sources, head: str, name: str) -> None:
    error = sources.error(head + KERNEL, SIGNATURE)
    assert f"k is decorated with @{name}, which is " in error.message
    assert "@triton.jit" in error.remedy
    assert ("Gluon" in error.message) == ("gluon" in name)


@pytest.mark.parametrize(
    ("assigned", "message"),
    [
        ("k = numba.cuda.jit(f)", "f is decorated with @numba.cuda.jit, which is not Triton's"),
        ("k = f", "f is a plain Python function"),
    ],
)
def test_kernels_by_assignment(sources: Sources, assigned: str, message: str) -> None:
    text = "import numba" + KERNEL.replace("k(", "f(") + assigned
    assert message in sources.error(text, SIGNATURE).message
    assert "tile.store" in sources.text(text.replace(assigned, "k = triton.jit(f)"), SIGNATURE)


def test_a_kernel_calls_no_function_of_another_language(sources: Sources) -> None:
    text = """
    from numba import cuda

    @cuda.jit(device=True)
    def one():
        return 1

    @triton.jit
    def k(p):
        tl.store(p, one())
    """
    error = sources.error(text, SIGNATURE)
    assert "one is decorated with @numba.cuda.jit, which is not Triton's" in error.message
