"""Arrays at an address, one maker per array protocol of the launcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.gpu_arrays import (
    Content,
    CudaArray,
    DLPackArray,
    ExchangeArray,
    TorchTensor,
)

Maker = Callable[..., object]
BUFFER = 0x7F00_0000_1000


def cuda_array(address: int, dtype: str = "fp32", **keywords: object) -> object:
    typestrs = {"fp16": "<f2", "fp32": "<f4", "fp64": "<f8", "i64": "<i8", "i1": "|b1"}
    return CudaArray(address, typestrs[dtype], **keywords)  # type: ignore[arg-type]


def torch_tensor(address: int, dtype: str = "fp32", **keywords: object) -> object:
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "i64": "int64", "i1": "bool"}
    return TorchTensor(address, names[dtype], **keywords)  # type: ignore[arg-type]


def dlpack(address: int, dtype: str = "fp32", **keywords: object) -> object:
    return DLPackArray(Content(address, dtype, **keywords))  # type: ignore[arg-type]


def old_dlpack(address: int, dtype: str = "fp32", **keywords: object) -> object:
    return DLPackArray(Content(address, dtype, **keywords), flags=None)  # type: ignore[arg-type]


MAKERS = {
    "exchange": ExchangeArray,
    "torch": torch_tensor,
    "cuda_array": cuda_array,
    "dlpack": dlpack,
    "old_dlpack": old_dlpack,
}
each_protocol = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
