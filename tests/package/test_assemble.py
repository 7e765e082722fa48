"""From compiled variants to records: what of a tensor becomes maps, numbers and guards."""

from __future__ import annotations

import pytest

from aotc.compiler import TensorMapSpec
from aotc.package.archive import decode, encode
from aotc.package.assemble import stored_params
from aotc.package.expression import to_text
from aotc.package.index import Archive, Kernel, Variant
from tests.support.descriptor_manifest import built


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return built(tmp_path_factory.mktemp("descriptors"))


def _variant(kernel: Kernel, target: str, dtype: str) -> Variant:
    return next(v for v in kernel.variants if (v.target, v.types) == (target, (dtype,)))


def test_a_map_for_each_tensor(kernel: Kernel) -> None:
    x, y = _variant(kernel, "sm_90a", "bf16").tensor_maps
    assert (x.param, x.data_type, x.box, x.swizzle, x.oob_fill) == (0, 9, (64, 16), 3, 1)
    assert (y.param, y.data_type, y.box, y.swizzle, y.oob_fill) == (1, 7, (32, 16), 3, 0)
    assert to_text(x.address) == "x"
    assert list(map(to_text, x.dims)) == ["x.shape[1]", "x.shape[0]"]
    assert list(map(to_text, x.strides)) == ["x.strides[0] * 2"]
    assert list(map(to_text, y.strides)) == ["y.strides[0] * 4"]
    assert (x.element_strides, x.interleave, x.l2_promotion) == ((1, 1), 0, 2)


def test_parameters_are_maps_and_what_the_code_asks_for(kernel: Kernel) -> None:
    params = _variant(kernel, "sm_90a", "bf16").cubin_params
    assert [(p.size, p.source, p.index) for p in params] == [
        (128, "tensor_map", 0),
        (128, "tensor_map", 1),
        (4, "argument", 2),
        (4, "expression", 0),
    ]
    # Maps are aligned to 64 bytes where the block of parameters begins, which is at 0x210.
    assert [p.offset for p in params] == [48, 176, 304, 308]
    assert params[3].expression is not None
    assert to_text(params[3].expression) == "x.shape[1]"


def test_without_tensor_copies_the_parts_are_passed(kernel: Kernel) -> None:
    variant = _variant(kernel, "sm_80", "bf16")
    assert variant.tensor_maps == ()
    passed = [to_text(p.expression) for p in variant.cubin_params if p.expression is not None]
    assert passed[:2] == ["x", "y"]
    assert {"x.strides[0]", "y.strides[0]", "x.shape[0]", "y.shape[1]"} <= set(passed)


def test_guards_and_access(kernel: Kernel) -> None:
    assert [guard.text for guard in kernel.guards] == [
        "x is 16-byte aligned, its last axis dense and a multiple of 8 elements",
        "y is 16-byte aligned, its last axis dense and a multiple of 4 elements",
    ]
    assert all(guard.is_promise for guard in kernel.guards)
    assert [(p.kind, p.rank, p.access) for p in kernel.params[:2]] == [
        ("tensor", 2, "read"),
        ("tensor", 2, "write"),
    ]


def test_an_archive_keeps_all_of_it(kernel: Kernel) -> None:
    read = decode(encode(Archive("descriptors", "0.1.0", (kernel,)))).kernels[0]
    for before, after in zip(
        sorted(kernel.variants, key=lambda v: (v.target, v.types)),
        sorted(read.variants, key=lambda v: (v.target, v.types)),
        strict=True,
    ):
        assert after.tensor_maps == before.tensor_maps
        slots = stored_params(read, after)
        assert slots == stored_params(kernel, before)
        maps = [slot for slot in slots if slot.tensor_map is not None]
        if after.target == "sm_90a" and after.types == ("fp32",):
            assert maps[0].argument == "x"
            assert maps[0].tensor_map == TensorMapSpec("fp32", (16, 32), 128, fill_nan=True)
