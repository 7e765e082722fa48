"""Tensor descriptors in kernels: emitted ops and errors."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import CompileError
from tests.frontend.conftest import Sources

SIGNATURE = {"x": "tensordesc<bf16[16, 64]>", "y": "tensordesc<fp32[32],nan>", "n": "i32"}


def _translated(sources: Sources, body: str, **types: str) -> str:
    if "r." in body:
        types["r"] = "tensordesc<bf16[1,64]>"
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return sources.text(f"\n@triton.jit\ndef k(x, y, n, r=None):\n{lines}", {**SIGNATURE, **types})


def test_methods_and_functions_are_the_same(sources: Sources) -> None:
    long = "tensordesc<fp32[64]>"
    methods = _translated(sources, "y.store([n], tl.sum(x.load([n, 1]), 0))", y=long)
    load = "tl.load_tensor_descriptor(x, [n, 1])"
    functions = _translated(
        sources, f"tl.store_tensor_descriptor(y, [n], tl.sum({load}, 0))", y=long
    )
    assert methods == functions
    assert "tile.descriptor_load(%x, %n, " in methods
    assert "%x: desc<16x64xbf16>" in methods


def test_a_stored_value_is_cast_and_offsets_become_i32(sources: Sources) -> None:
    text = _translated(sources, "y.store([n.to(tl.int64)], tl.arange(0, 32))")
    assert "{dtype = fp32} : tile<32xfp32>" in text
    assert text.count("{dtype = i32}") == 1


def test_attributes(sources: Sources) -> None:
    text = _translated(
        sources,
        "tl.static_assert(x.block_shape[1] == 64 and x.dtype == tl.bfloat16)\n"
        "tl.static_assert(len(x.shape) == 2 and hasattr(x, 'load'))\n"
        "tl.static_assert(isinstance(x, tl.tensor_descriptor) and not isinstance(x, tl.tensor))\n"
        "y.store([x.shape[0]], tl.full((32,), x.strides[0], tl.float32))",
    )
    assert "tile.descriptor_extent(%x) {axis = 0} : i32" in text
    assert "tile.descriptor_stride(%x) {axis = 0} : i64" in text


def test_rows_are_gathered_and_scattered(sources: Sources) -> None:
    """The result has one row an index; indices and column become i32."""
    body = "at = tl.arange(0, 8).to(tl.int64)\nr.scatter(r.gather(at, n) * 2.0, at + 1, n.to(tl.int64))"
    text = _translated(sources, body)
    assert "tile.descriptor_gather(%r, " in text
    assert ": tile<8x64xbf16>" in text
    assert "tile.descriptor_scatter(%r, " in text
    assert text.count("{dtype = i32}") == 3


def test_a_tile_is_prefetched(sources: Sources) -> None:
    text = _translated(sources, "x.prefetch([n, 64])")
    assert "tile.descriptor_prefetch(%x, %n, " in text


@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_reductions(sources: Sources, kind: str) -> None:
    body = f"y.atomic_{kind}([n], tl.arange(0, 32))"
    text = _translated(sources, body, y="tensordesc<i32[32]>")
    assert f'{{kind = "{kind}"}}' in text
    if kind != "add":
        assert f'{{kind = "{kind}"}}' in _translated(sources, body, y="tensordesc<i64[32]>")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x.load([n])", "takes a list of 2 offsets, got 1"),
        ("x.load(n)", "takes a list of 2 offsets, got int32"),
        (
            "x.prefetch([n])",
            "prefetch of tensordesc<bf16[16, 64]> takes a list of 2 offsets, got 1",
        ),
        ("x.load([n, 0.5])", "the offsets of load must be integers"),
        ("y.store([n], tl.arange(0, 16))", "takes a tile of its block_shape, got"),
        ("y.atomic_and([n], tl.arange(0, 32))", "atomic_and does not take a descriptor of float32"),
        (
            "x.gather(tl.arange(0, 8), 0)",
            "gather takes a descriptor of two axes whose block_shape is one",
        ),
        ("r.gather(n, 0)", "the rows of gather must be a tile of one axis of integers, got int32"),
        ("r.gather(tl.zeros([8], tl.float32), 0)", "the rows of gather must be a tile of one axis"),
        ("r.gather(tl.arange(0, 8), 0.5)", "the column of gather must be an integer, got"),
        (
            "r.scatter(tl.zeros([4, 64], tl.bfloat16), tl.arange(0, 8), 0)",
            "takes a tile of [8, 64], got",
        ),
        ("x.lode([n, 0])", "a tensor descriptor has no attribute 'lode'"),
        ("tl.load_tensor_descriptor(n, [0])", "load takes a tensor descriptor, got int32"),
        ("n + x", "expected a value, got tensordesc<bf16"),
        ("-x", "expected a value, got tensordesc<bf16"),
        ("tl.exp(x)", "expected an argument of tl.exp, got tensordesc<bf16"),
        ("tl.load(x)", "expected an argument of tl.load, got tensordesc<bf16"),
        ("if x:\n    n = 1", "expected a condition, got tensordesc<bf16"),
    ],
)
def test_mistakes(sources: Sources, body: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        _translated(sources, body)
    assert message in caught.value.message
    assert caught.value.loc is not None
    assert caught.value.loc.line > 4
