"""LLVM arithmetic and the backend's calls in NumPy: one entry per thread."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

_FLOATS = {
    "half": np.float16,
    "bfloat": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
}
_ERF = np.vectorize(math.erf, otypes=[np.float64])
LIBDEVICE: dict[str, Callable[..., Any]] = {
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "exp": np.exp,
    "exp2": np.exp2,
    "erf": _ERF,
    "fmod": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
}
FLOAT_CALLS: dict[str, Callable[..., Any]] = {
    "llvm.minnum": np.fmin,
    "llvm.maxnum": np.fmax,
    "llvm.minimum": np.minimum,
    "llvm.maximum": np.maximum,
    "llvm.fabs": np.abs,
    "llvm.floor": np.floor,
    "llvm.nearbyint": np.rint,
    "llvm.rint": np.rint,
    "llvm.trunc": np.trunc,
    "llvm.ceil": np.ceil,
    "llvm.nvvm.ex2.approx.ftz": np.exp2,
    "llvm.nvvm.sqrt.approx.ftz": np.sqrt,
    "llvm.nvvm.sqrt.rn": np.sqrt,
    "llvm.nvvm.rsqrt.approx.ftz": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "llvm.nvvm.div.full": np.divide,
}


def dtype_of(kind: str) -> Any:
    """Return the NumPy dtype of a scalar LLVM type."""
    if kind in _FLOATS:
        return np.dtype(_FLOATS[kind])
    if kind.startswith("ptr"):
        return np.dtype(np.uint64)
    bits = int(kind[1:])
    return np.dtype(bool) if bits == 1 else np.dtype(f"uint{bits}")


def signed(array: Any) -> Any:
    """Return an unsigned array read as signed."""
    return array.view(array.dtype.str.replace("u", "i"))


def update(name: str, kind: str, old: Any, operands: list[Any]) -> Any:
    """Return the word after an atomic of PTX type `kind` on the word `old`."""
    if name == "cas":
        return operands[1] if (old == operands[0]).all() else old
    if name == "exch":
        return operands[0]
    if kind.startswith(("f", "bf")):
        dtype = {"bf": np.dtype(ml_dtypes.bfloat16)}.get(kind[:2]) or np.dtype(f"f{old.itemsize}")
        if kind == "f16x2":
            dtype = np.dtype(np.float16)
        assert name == "add"
        return (old.view(dtype) + operands[0].view(dtype)).view(old.dtype)
    read = signed if kind.startswith("s") else (lambda word: word)
    combine: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    return combine[name](read(old), read(operands[0])).view(old.dtype)


def _divide(a: Any, b: Any) -> Any:
    pairs = [(int(x), int(y) or 1) for x, y in zip(a, b, strict=True)]
    exact = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    return np.array(exact, object).astype(a.dtype)


def elementwise(kind: str, operation: Callable[..., Any], args: list[Any]) -> Any:
    """Apply an operation to numbers, or to the elements of vectors one by one."""
    vector = re.fullmatch(r"<\d+ x (.+)>", kind)
    if vector:
        return [
            elementwise(vector[1], operation, list(lane_args))
            for lane_args in zip(*args, strict=True)
        ]
    return operation(*args).astype(dtype_of(kind))


def fused(a: Any, b: Any, c: Any) -> Any:
    return a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)


def permuted(low: Any, high: Any, selector: Any) -> Any:
    """Choose bytes of two words; no selector here replicates a sign."""
    word = low.astype(np.uint64) | high.astype(np.uint64) << 32
    out = np.zeros_like(low)
    for byte in range(4):
        chosen = (selector >> (4 * byte) & 15).astype(np.uint64)
        assert (chosen < 8).all()
        out |= ((word >> (8 * chosen)) & 255).astype(np.uint32) << (8 * byte)
    return out


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b if a.dtype.kind != "b" else a ^ b,
    "sub": lambda a, b: a - b if a.dtype.kind != "b" else a ^ b,
    "mul": lambda a, b: a * b,
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.divide,
    "fneg": np.negative,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "lshr": np.right_shift,
    "ashr": lambda a, b: signed(a) >> signed(b),
    "udiv": lambda a, b: a // np.where(b == 0, 1, b).astype(b.dtype),
    "urem": lambda a, b: a % np.where(b == 0, 1, b).astype(b.dtype),
    "sdiv": lambda a, b: _divide(signed(a), signed(b)),
    "srem": lambda a, b: signed(a) - _divide(signed(a), signed(b)) * signed(b),
}
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
INT_CALLS: dict[str, Callable[..., Any]] = {
    "llvm.usub.sat": lambda a, b: np.where(a < b, 0, a - b).astype(a.dtype),
    "llvm.ssub.sat": lambda a, b: np.array(
        [
            max(int(x) - int(y), np.iinfo(signed(a).dtype).min)
            for x, y in zip(signed(a), signed(b), strict=True)
        ],
        signed(a).dtype,
    ).view(a.dtype),
    "llvm.smin": lambda a, b: np.minimum(signed(a), signed(b)).view(a.dtype),
    "llvm.smax": lambda a, b: np.maximum(signed(a), signed(b)).view(a.dtype),
    "llvm.umin": np.minimum,
    "llvm.umax": np.maximum,
    "llvm.abs": lambda a: np.abs(signed(a)).view(a.dtype),
    "llvm.ctpop": lambda a, *_: np.array([int(x).bit_count() for x in a], a.dtype),
}


def convert(opcode: str, value: Any, target: str) -> Any:
    vector = re.fullmatch(r"<(\d+) x (.+)>", target)
    if opcode == "bitcast":
        if isinstance(value, list):
            flat = np.stack(value, axis=1)
            return np.ascontiguousarray(flat).view(dtype_of(target))[:, 0]
        if vector:
            dtype = dtype_of(vector[2])
            parts = np.ascontiguousarray(value)[:, None].view(dtype)
            return [parts[:, i].copy() for i in range(int(vector[1]))]
        return value.view(dtype_of(target))
    dtype = dtype_of(target)
    if opcode == "sext":
        return (-value.astype(np.int64) if value.dtype.kind == "b" else signed(value)).astype(dtype)
    if opcode in ("fptosi", "fptoui"):
        # Out of range saturates, as the instruction does; a NaN becomes 0.
        kind = np.iinfo(dtype.str.replace("u", "i") if opcode == "fptosi" else dtype)
        wide = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0))
        exact = [min(max(int(x) if abs(x) < 2**70 else int(np.sign(x)) * 2**70, kind.min), kind.max)
                 for x in wide]  # fmt: skip
        return np.array([x % (1 << kind.bits) for x in exact], dtype)
    if dtype.kind == "b":
        return (value & 1).astype(bool)
    return value.astype(dtype)


def round_to(value: Any, dtype: Any, rounding: str) -> Any:
    near = value.astype(dtype)
    if rounding == "rn":
        return near
    over = np.abs(near.astype(np.float64)) > np.abs(value.astype(np.float64))
    bits = near.view(np.dtype(f"uint{8 * dtype.itemsize}"))
    return np.where(over, bits - 1, bits).astype(bits.dtype).view(dtype)


def to_fp8(value: Any, name: str) -> Any:
    dtype, largest = (
        (ml_dtypes.float8_e4m3fn, 448.0) if "e4m3" in name else (ml_dtypes.float8_e5m2, 57344.0)
    )
    bits = np.clip(value, -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(value), np.uint8(0x7F), bits)
