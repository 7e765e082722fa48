"""Kernels storing tensor maps for others, in the emulator, against host-encoded maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.ir.types import BF16, FP16, FP32, I8, DescriptorType
from aotc.schedule.layout.tensor_copies import tensor_map_of
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.emulator.async_copies.tensor_map import TensorMap
from tests.support.descriptors import compiled, launch, tensor

_SCALARS = {"fp16": FP16, "bf16": BF16, "fp32": FP32, "i8": I8}
_CREATE = """def k(p, maps, h, w, H: tl.constexpr, W: tl.constexpr):
    out = maps + tl.program_id(0) * 128
    tl.extra.cuda.experimental_device_tensormap_create{rank}d(
        desc_ptr=out, global_address=p, load_size={load}, global_size={sizes},
        element_ty=p.dtype.element_ty,
    )
    tl.extra.cuda.experimental_tensormap_fenceproxy_acquire(out)
"""
_LOAD = """    d = tl.reinterpret_tensor_descriptor(maps, [16, 32], tl.float16)
    d.store([0, 0], d.load([1, 0]))
"""


def _stored(
    folder: Path, dtype: str, block: Sequence[int], sizes: Sequence[int], num_warps: int
) -> list[bytes]:
    """Return the maps stored by two programs."""
    rank = len(block)
    load, size_names = ("[H, W]", "[h, w]") if rank == 2 else ("[W]", "[w]")
    source = _CREATE.format(rank=rank, load=load, sizes=size_names)
    signature = {"p": f"*{dtype}:16", "maps": "*i8:16", "h": "i32", "w": "i32"}
    constants = {"H": block[0], "W": block[-1]}
    kernel = compiled(folder, source, signature, constants, num_warps=num_warps)
    maps = np.full(256, 0x5A, np.uint8)
    values = {"p": tensor((64, 64), dtype), "maps": maps.view(np.int8)}
    launch(kernel, (2,), {**values, "h": sizes[0], "w": sizes[-1]})
    return [maps[start : start + 128].tobytes() for start in (0, 128)]


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize(
    ("dtype", "block", "sizes"),
    [
        ("fp16", (16, 32), (7, 24)),
        ("bf16", (8, 128), (1, 8)),  # cut into boxes of 128 bytes
        ("i8", (4, 16), (33, 64)),
        ("fp32", (64,), (61,)),
        ("fp32", (1, 512), (3, 4096)),
    ],
)
def test_a_stored_map_is_the_one_that_a_host_encodes(
    tmp_path: Path, dtype: str, block: tuple[int, ...], sizes: tuple[int, ...], num_warps: int
) -> None:
    first, second = _stored(tmp_path, dtype, block, sizes, num_warps)
    assert first == second
    form = tensor_map_of(DescriptorType(_SCALARS[dtype], block))
    strides = (*sizes[1:], 1)
    empty = np.empty(0, np.uint8)
    encoded = PlacedTensor(empty, dtype, sizes, strides, form.box, form.swizzle_bytes)
    assert first == encoded.encode_at(TensorMap.from_bytes(first).address, "p")


@pytest.mark.parametrize(
    ("lines", "target", "message"),
    [
        ("", "sm_80", "a tensor map is for tensor copies, which sm_80 does not have"),
        (
            _LOAD,
            "sm_90a",
            "a kernel that stores a tensor map takes none from memory",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: str, target: str, message: str) -> None:
    source = _CREATE.format(rank=2, load="[16, 32]", sizes="[h, w]") + lines
    signature = {"p": "*fp16:16", "maps": "*i8:16", "h": "i32", "w": "i32"}
    with pytest.raises(CompileError, match=message):
        compiled(tmp_path, source, signature, {"H": 16, "W": 32}, target)
