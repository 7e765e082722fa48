"""Map dtype names of Triton and torch to the manifest's names."""

from __future__ import annotations

import ast

from aotc.frontend.python.resolve import dotted_name

_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    **{f"{u}int{bits}": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "i1",
}


def dtype_name(node: ast.expr) -> str:
    """Return the manifest's name of a dtype literal such as `tl.float32`; "" for others."""
    owner, _, name = dotted_name(node).rpartition(".")
    return _DTYPES.get(name, "") if owner in ("torch", "tl", "triton.language") else ""


def dtype_word(text: str) -> str:
    """Return the manifest's name of a dtype's text, such as `torch.float32`."""
    name = text.rpartition(".")[2]
    return _DTYPES.get(name, name)
