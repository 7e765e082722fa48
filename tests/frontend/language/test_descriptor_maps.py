"""Descriptors of maps in memory: emitted ops and errors."""

from __future__ import annotations

import pytest

from tests.frontend.conftest import Sources

SIGNATURE = {"maps": "*i8:16", "x": "tensordesc<bf16[16, 64]>", "n": "i32"}


def _source(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"\n@triton.jit\ndef k(maps, x, n):\n{lines}"


def _ops(sources: Sources, body: str) -> list[str]:
    text = sources.text(_source(body), SIGNATURE)
    return [line.strip() for line in text.splitlines() if "descriptor_" in line]


def test_a_pointer_becomes_a_descriptor(sources: Sources) -> None:
    creations, loaded, stored = _ops(
        sources,
        "d = tl.reinterpret_tensor_descriptor(maps + n * 128, [16, 64], tl.bfloat16)\n"
        "tl.static_assert(d.block_shape[1] == 64 and d.dtype == tl.bfloat16)\n"
        "d.store([0, n], d.load([n, 0]))",
    )
    assert "{element = bf16, shape = [16, 64]} : desc<16x64xbf16>" in creations
    assert "tile.descriptor_load(%d, %n, " in loaded
    assert stored.startswith("tile.descriptor_store(%d, ")


def test_the_older_functions_are_the_same(sources: Sources) -> None:
    new = _ops(
        sources,
        "v = tl.reinterpret_tensor_descriptor(maps, [8, 16], tl.float32).load([n, n])\n"
        "tl.reinterpret_tensor_descriptor(maps, [8, 16], tl.float32).store([n, 0], v)",
    )
    old = _ops(
        sources,
        "v = tl._experimental_descriptor_load(maps, [n, n], [8, 16], tl.float32)\n"
        "tl._experimental_descriptor_store(maps, v, [n, 0])",
    )
    assert old == new
    named = "tl._experimental_reinterpret_tensor_descriptor(maps, [8, 16], tl.float32).load([n, n])"
    assert _ops(sources, f"v = {named}") == new[:2]


def test_a_descriptor_parameter_will_do(sources: Sources) -> None:
    body = "v = {}\nx.store([n, 0], v)"
    old = body.format("tl._experimental_descriptor_load(x, [n, n], [16, 64], tl.bfloat16)")
    assert _ops(sources, old) == _ops(sources, body.format("x.load([n, n])"))
    store = "tl._experimental_descriptor_store(x, x.load([n, n]), [n, 0])"
    assert _ops(sources, store) == _ops(sources, "x.store([n, 0], x.load([n, n]))")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("tl.reinterpret_tensor_descriptor(n, [16, 64], tl.bfloat16)", "takes a scalar pointer"),
        (
            "tl.reinterpret_tensor_descriptor(maps, [4], tl.int64).atomic_xor([n], tl.arange(0, 4))",
            "atomic_xor does not take a descriptor of int64 whose map is in memory",
        ),
        (
            "tl.reinterpret_tensor_descriptor(maps + tl.arange(0, 2), [16, 64], tl.bfloat16)",
            "takes a scalar pointer",
        ),
        ("tl.reinterpret_tensor_descriptor(maps, [16, 48], tl.bfloat16)", "power of two"),
        ("tl.reinterpret_tensor_descriptor(maps, [16, 4], tl.bfloat16)", "at least 16 bytes"),
        ("tl.reinterpret_tensor_descriptor(maps, [2] * 5 + [16], tl.int8)", "1 to 5 axes"),
        ("tl.reinterpret_tensor_descriptor(maps, [16, n], tl.bfloat16)", "known at compile time"),
        ("tl.reinterpret_tensor_descriptor(maps, [64], tl.bfloat16).shape", "shape of a tensor"),
        ("tl.reinterpret_tensor_descriptor(maps, [64], tl.bfloat16).strides", "strides of a"),
        ("tl.reinterpret_tensor_descriptor(maps, [64], tl.bfloat16).load([n, n])", "1 offsets"),
        ("tl._experimental_descriptor_load(x, [n, n], [16, 32], tl.bfloat16)", "is given a"),
        ("tl._experimental_descriptor_store(maps, 1.0, [n])", "takes a tile of numbers"),
        ("tl._experimental_descriptor_store(x, tl.zeros([8, 64], tl.bfloat16), [n, n])", "given"),
    ],
)
def test_mistakes(sources: Sources, body: str, message: str) -> None:
    assert message in sources.error(_source(body), SIGNATURE).message


def _create(**arguments: str) -> str:
    keywords = {
        "desc_ptr": "maps",
        "global_address": "maps",
        "load_size": "[8, 16]",
        "global_size": "[n, n]",
        "element_ty": "tl.int8",
        **arguments,
    }
    text = ", ".join(f"{name}={value}" for name, value in keywords.items())
    return f"tl.extra.cuda.experimental_device_tensormap_create2d({text})"


def test_a_map_is_stored_with_dense_rows(sources: Sources) -> None:
    text = sources.text(_source(_create(global_size="[3, n]")), SIGNATURE)
    assert "tile.store_map(%maps, %maps, %0, %n, %1) {shape = [8, 16]}" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"desc_ptr": "n"}, "takes a scalar pointer to a tensor map"),
        ({"element_ty": "tl.int16"}, "the global_address of tl.extra.cuda"),
        ({"load_size": "[64]"}, "takes a load_size of 2 axes, got 1"),
        ({"load_size": "[8, 8]"}, "at least 16 bytes"),
        ({"global_size": "[n]"}, "takes global_size of 2 axes"),
        ({"global_size": "[n, 1.5]"}, "must be integers"),
    ],
)
def test_mistakes_of_a_stored_map(
    sources: Sources, arguments: dict[str, str], message: str
) -> None:
    assert message in sources.error(_source(_create(**arguments)), SIGNATURE).message
