"""Descriptors made in a kernel, and invalid tensors."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import CompileError
from tests.frontend.conftest import Sources

SIGNATURE = {"p": "*bf16:16", "q": "*i32:16", "m": "i32", "n": "i64"}


def _translated(sources: Sources, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return sources.text(f"\n@triton.jit\ndef k(p, q, m, n):\n{lines}", SIGNATURE)


def test_sizes_have_the_types_of_sizes(sources: Sources) -> None:
    text = _translated(
        sources,
        "x = tl.make_tensor_descriptor(p, shape=[m, n], strides=[m, 1], block_shape=[16, 64])\n"
        "y = tl.make_tensor_descriptor(q, [8], [1], [32])\n"
        "y.store([m], tl.sum(x.load([m, 0]).to(tl.int32)) + tl.zeros((32,), tl.int32))",
    )
    assert "tile.descriptor_of(%p, %m, " in text
    assert "{shape = [16, 64]} : desc<16x64xbf16>" in text
    assert text.count("{dtype = i32} : i32") >= 1  # the extent n
    assert text.count("{dtype = i64} : i64") >= 1  # the stride m
    assert ": desc<32xi32>" in text


def test_padding_is_part_of_the_type(sources: Sources) -> None:
    make = 'x = tl.make_tensor_descriptor(p, [m], [1], [16], padding_option="nan")\n'
    text = _translated(sources, make + "tl.store(p + tl.arange(0, 16), x.load([0]))")
    assert "desc<16xbf16, nan>" in text


def test_attributes_are_what_was_given(sources: Sources) -> None:
    text = _translated(
        sources,
        "x = tl.make_tensor_descriptor(p, [m, 64], [m, 1], [16, 64])\n"
        "tl.static_assert(x.block_shape[1] == 64 and x.dtype == tl.bfloat16)\n"
        "tl.store(q, x.shape[0] + x.strides[0].to(tl.int32))",
    )
    assert "tile.descriptor_extent" in text
    assert "tile.descriptor_stride" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("m, [4], [1], [8]", "takes a scalar pointer, got int32"),
        ("p + tl.arange(0, 4), [4], [1], [8]", "takes a scalar pointer, got pointer"),
        ("p, [4], [1], [4]", "must have at least 16 bytes"),
        ("p, [4], [1], [12]", "must be a power of two"),
        ("p, [4], [1], [m]", "must be known at compile time"),
        ("p, [m, m], [m, 1], [8]", "takes shape of 1 axes, as its block_shape has, got 2"),
        ("p, m, [1], [8]", "takes shape of 1 axes, as its block_shape has, got int32"),
        ("p, [m], [m, 1], [8]", "takes strides of 1 axes, as its block_shape has, got 2"),
        ("p, [m], [m], [8]", "the last axis of a tensor must be dense"),
        ("p, [m], [2], [8]", "the last axis of a tensor must be dense"),
        ("p, [0.5], [1], [8]", "the shape of tl.make_tensor_descriptor must be integers"),
        (
            "p, [m, m], [0.5, 1], [4, 8]",
            "the strides of tl.make_tensor_descriptor must be integers",
        ),
        ('p, [m], [1], [8], "one"', "padding_option must be 'zero' or 'nan', got 'one'"),
        ('q, [m], [1], [8], "nan"', 'padding_option="nan" is for floats, got a tensor of i32'),
        ("p, [1] * 6, [1] * 6, [1, 1, 1, 1, 1, 8]", "must have 1 to 5 axes"),
    ],
)
def test_mistakes(sources: Sources, arguments: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        _translated(sources, f"x = tl.make_tensor_descriptor({arguments})")
    assert message in caught.value.message
    assert caught.value.loc is not None
    assert caught.value.loc.line > 4
