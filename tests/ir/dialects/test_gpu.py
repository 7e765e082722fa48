"""Typing rules of gpu ops."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu
from aotc.ir.types import (
    FP16,
    FP32,
    I1,
    I32,
    U64,
    PointerType,
    SharedType,
    TileType,
    Type,
)
from tests.support.op_sampler import BUFFER, EXTENT, PAIRS, ROW, SWAPPED


def _values(*types: Type) -> list[Value]:
    return Block(types).args


X = TileType(FP32, (EXTENT,), ROW)


def test_accesses_follow_the_pointers_layout() -> None:
    pointer, mask, swapped = _values(
        TileType(PointerType(FP32), (EXTENT,), ROW), TileType(I1, (EXTENT,), ROW),
        TileType(I1, (EXTENT,), SWAPPED),
    )  # fmt: skip
    assert gpu.Load(pointer, mask, vector=4).out.type == X
    with pytest.raises(IRError, match="the mask is"):
        gpu.Load(pointer, swapped)


@pytest.mark.parametrize("cls", [gpu.Convert, gpu.ShuffleConvert])
def test_conversions_change_the_layout_alone(cls: object) -> None:
    (x,) = _values(X)
    extra = {"plan": ()} if cls is gpu.ShuffleConvert else {}
    assert callable(cls)
    assert cls(x, SWAPPED, **extra).out.type == TileType(FP32, (EXTENT,), SWAPPED)
    with pytest.raises(IRError, match="is not of"):
        cls(x, PAIRS, **extra)


def test_shared_memory() -> None:
    buffer = gpu.SharedAlloc(FP32, (EXTENT,), BUFFER).out
    assert buffer.type == SharedType(FP32, (EXTENT,), BUFFER)
    (x, half) = _values(X, TileType(FP16, (EXTENT,), ROW))
    assert not gpu.SharedStore(x, buffer).results
    assert gpu.SharedLoad(buffer, SWAPPED).out.type == TileType(FP32, (EXTENT,), SWAPPED)
    with pytest.raises(IRError, match="does not fit"):
        gpu.SharedStore(half, buffer)
    with pytest.raises(IRError, match="expected a shared buffer"):
        gpu.SharedStore(x, x)
    with pytest.raises(IRError, match="is not of"):
        gpu.SharedLoad(buffer, PAIRS)


def test_a_masked_load_is_of_elements() -> None:
    buffer = gpu.SharedAlloc(FP32, (EXTENT,), BUFFER).out
    x, mask, half = _values(X, TileType(I1, (EXTENT,), ROW), TileType(FP16, (EXTENT,), ROW))
    load = gpu.MaskedSharedLoad(buffer, ROW, mask=mask, other=x)
    assert isinstance(load, gpu.SharedLoad)
    assert load.out.type == X
    with pytest.raises(IRError, match="tile<128xfp16.* instead of tile<128xi1"):
        gpu.MaskedSharedLoad(buffer, ROW, mask=half)
    with pytest.raises(IRError, match="tile<128xfp16.* instead of tile<128xfp32"):
        gpu.MaskedSharedLoad(buffer, ROW, mask=mask, other=half)
    with pytest.raises(IRError, match="masks are for elements"):
        gpu.MaskedSharedLoad(buffer, ROW, matrix="b16", mask=mask)


def test_pointers_are_stored_as_their_bits() -> None:
    buffer = gpu.SharedAlloc(U64, (EXTENT,), BUFFER).out
    kind = TileType(PointerType(FP32), (EXTENT,), ROW)
    (pointer,) = _values(kind)
    gpu.SharedStore(pointer, buffer)
    assert gpu.SharedLoad(buffer, ROW, element=PointerType(FP32)).out.type == kind
    assert gpu.memory_element(kind) == U64
    assert gpu.memory_element(TileType(I32, (4,))) == I32


def test_slots_of_a_buffer() -> None:
    buffer = gpu.SharedAlloc(FP32, (EXTENT,), BUFFER, num_stages=3).out
    assert isinstance(buffer.type, SharedType)
    assert buffer.type.size_bytes == 3 * buffer.type.stage_bytes == 3 * 4 * EXTENT
    index, wide = _values(I32, U64)
    stage = gpu.SharedStage(buffer, index, ahead=2).out
    assert stage.type == SharedType(FP32, (EXTENT,), BUFFER)
    with pytest.raises(IRError, match="expected a shared buffer of one stage"):
        gpu.SharedLoad(buffer, ROW)
    with pytest.raises(IRError, match="3 ahead in 3 stages"):
        gpu.SharedStage(buffer, index, ahead=3)
    with pytest.raises(IRError, match="the index is u64"):
        gpu.SharedStage(buffer, wide)
    with pytest.raises(IRError, match="the index is u64"):
        gpu.NextStage(wide, 3)
    with pytest.raises(IRError, match="4 ahead in 3 stages"):
        gpu.NextStage(index, 3, ahead=4)
    with pytest.raises(IRError, match="expected a shared buffer"):
        gpu.SharedStage(index, index)
    with pytest.raises(IRError, match="0 stages"):
        gpu.SharedAlloc(FP32, (EXTENT,), BUFFER, num_stages=0)
    with pytest.raises(IRError, match="-1 pending groups"):
        gpu.AsyncWait(-1)


def test_asynchronous_copies_move_4_8_or_16_bytes() -> None:
    buffer = gpu.SharedAlloc(FP32, (EXTENT,), BUFFER).out
    narrow = gpu.SharedAlloc(FP16, (EXTENT,), BUFFER).out
    pointer, half, flag, mask = _values(
        TileType(PointerType(FP32), (EXTENT,), ROW), TileType(PointerType(FP16), (EXTENT,), ROW),
        I1, TileType(I1, (EXTENT,), SWAPPED),
    )  # fmt: skip
    assert not gpu.AsyncCopy(pointer, buffer, None, flag, vector=4).results
    gpu.AsyncCopy(half, narrow, vector=2)
    with pytest.raises(IRError, match="copies 2 bytes at a time"):
        gpu.AsyncCopy(half, narrow)
    with pytest.raises(IRError, match="copies 32 bytes at a time"):
        gpu.AsyncCopy(pointer, buffer, vector=8)
    with pytest.raises(IRError, match="does not fit"):
        gpu.AsyncCopy(half, buffer, vector=2)
    with pytest.raises(IRError, match="the mask is"):
        gpu.AsyncCopy(pointer, buffer, mask)
    with pytest.raises(IRError, match="enabled is"):
        gpu.AsyncCopy(pointer, buffer, None, mask)
