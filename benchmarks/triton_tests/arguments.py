"""Types and constants of a launch by Triton, as `aotc.compile` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from aotc.triton.specialization import argument_type, constant, dtype_of

_TORCH_DTYPES = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "bf16": torch.bfloat16,
    "fp8e4b15": torch.uint8,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def signature_of(
    params: Sequence[Any], bound: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return the types of arguments, the constants, and the launch's arguments."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    for parameter in params:
        value = bound[parameter.name]
        if parameter.is_constexpr:
            constants[parameter.name] = value
            continue
        signature[parameter.name] = _type_of(parameter, value)
        passed[parameter.name] = value.base if isinstance(value, TensorDescriptor) else value
    return signature, constants, passed


def as_tensor(value: Any) -> Any:
    """Return the tensor of a `TensorWrapper` with the wrapper's dtype; other values as they are."""
    if not isinstance(value, TensorWrapper):
        return value
    if isinstance(value.dtype, torch.dtype):
        return value.base.view(value.dtype)
    name = str(value.dtype)
    return value.base.view(_TORCH_DTYPES.get(name) or getattr(torch, name))


def _type_of(parameter: Any, value: Any) -> str:
    if isinstance(value, TensorDescriptor):
        box = ",".join(str(constant(extent)) for extent in value.block_shape)
        fill = ",nan" * (value.padding == "nan")
        return f"tensordesc<{dtype_of(value.base)}[{box}]{fill}>"
    if annotation := parameter.annotation_type:
        return "i1" if annotation == "u1" else annotation.replace("*k", "*")
    text = argument_type(value)
    if parameter.do_not_specialize:
        return text.partition(":")[0].partition("=")[0]
    return text.partition(":")[0] if parameter.do_not_specialize_on_alignment else text
