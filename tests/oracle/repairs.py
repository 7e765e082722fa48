"""Repairs of Triton's interpreter for results that differ from its compiler's.

`REPAIRS` lists the wrong methods of the interpreter, the reasons, and their replacements. The language
itself (promotion, casts, widening, combine functions, signatures) is under test and unchanged. Repairs
replace single operations of the interpreter's builder on NumPy arrays, mostly because it holds bf16 and
fp8 as plain integers.

Written for Triton 3.9.0. Repairs are written from the PTX ISA and IEEE 754, not from aotc.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from tests.oracle.values import NUMPY, Array

Handle = Any
Builder = interpreter.InterpreterBuilder


# ---- floats held as integers by the interpreter -----------------------------------------------


def _dtype(kind: Any) -> np.dtype[Any]:
    """Return the NumPy dtype to view the bits of a type as numbers."""
    return _NUMPY_OF.get(kind.scalar) or interpreter._get_np_dtype(kind.scalar)


_NUMPY_OF = {getattr(tl, name): dtype for name, dtype in NUMPY.items()}
_AS_BITS = (tl.bfloat16, tl.float8e4nv, tl.float8e5)


def _numbers(handle: Handle) -> Array:
    """Return the elements of a value as numbers."""
    data = np.ascontiguousarray(handle.data)
    return data.view(_dtype(handle.dtype)) if handle.dtype.scalar in _AS_BITS else handle.data


def _handle(numbers: Array, kind: Any) -> Handle:
    """Return a handle of the interpreter for numbers."""
    data = np.asarray(numbers)
    if kind.scalar in _AS_BITS:
        data = np.ascontiguousarray(data).view(interpreter._get_np_dtype(kind.scalar))
    return interpreter.TensorHandle(data, kind.scalar)


def _rounded(numbers: Array, kind: Any, *, towards_zero: bool = False) -> Array:
    """Return numbers rounded once to a float type; fp8 saturates, as `cvt.satfinite` does."""
    dtype, wide = _dtype(kind), np.asarray(numbers).astype(np.float64)
    if dtype.itemsize >= 4 and not towards_zero:
        return np.asarray(numbers).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    exponent = np.frexp(wide)[1] - 1
    step = np.maximum(exponent, info.minexp) - info.nmant
    whole = np.trunc if towards_zero else np.rint
    out = np.ldexp(whole(np.ldexp(wide, -step)), step)
    largest = float(info.max)
    finite = np.isfinite(wide)
    if dtype.itemsize == 1:
        out = np.where(np.isnan(wide), np.nan, np.clip(out, -largest, largest))
    elif towards_zero:
        out = np.where(finite, np.clip(out, -largest, largest), wide)
    else:
        over = np.where(np.abs(out) > largest, np.copysign(np.inf, out), out)
        out = np.where(finite, over, wide)
    return np.copysign(out, wide).astype(dtype)


def _binary_op(self: Any, lhs: Handle, rhs: Handle, op: Any) -> Handle:
    kind = lhs.dtype.scalar
    if kind not in _AS_BITS:
        out = _ORIGINALS["binary_op"](self, lhs, rhs, op)
        return interpreter.TensorHandle(out.data, tl.int1) if out.data.dtype == np.bool_ else out
    left, right = (_numbers(operand).astype(np.float32) for operand in (lhs, rhs))
    out = np.asarray(op(left, right))
    if out.dtype == np.bool_:
        return interpreter.TensorHandle(out, tl.int1)
    return _handle(_rounded(out, kind), kind)


def _unary_op(self: Any, arg: Handle, op: Any) -> Handle:
    if arg.dtype.scalar not in _AS_BITS:
        return _ORIGINALS["unary_op"](self, arg, op)
    out = op(_numbers(arg).astype(np.float32))
    return _handle(_rounded(out, arg.dtype), arg.dtype)


def _create_fneg(self: Any, arg: Handle) -> Handle:
    if arg.dtype.scalar not in _AS_BITS:
        return self.unary_op(arg, np.negative)
    sign = np.array(1 << (arg.dtype.primitive_bitwidth - 1), arg.data.dtype)
    return interpreter.TensorHandle(arg.data ^ sign, arg.dtype.scalar)


def _create_fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
    if z.dtype.scalar not in _AS_BITS:
        return _ORIGINALS["create_fma"](self, x, y, z)
    a, b, c = (_numbers(operand).astype(np.float64) for operand in (x, y, z))
    # A product of two bf16 has 16 bits. The addend fits fp64 beside it, or is far away.
    return _handle(_rounded(a * b + c, z.dtype), z.dtype)


def _create_dot(self: Any, a: Handle, b: Handle, d: Handle, precision: Any, limit: int) -> Handle:
    del self, precision, limit
    left, right, acc = (_numbers(operand) for operand in (a, b, d))
    if d.data.dtype.kind == "i":
        return interpreter.TensorHandle(
            np.matmul(left.astype(np.int32), right.astype(np.int32)) + acc, d.dtype.scalar
        )
    out = np.matmul(left.astype(np.float64), right.astype(np.float64)) + acc.astype(np.float64)
    return _handle(_rounded(out, d.dtype), d.dtype)


# ---- functions flushing subnormals ------------------------------------------------------------


def _flushing(function: Callable[[Array], Array]) -> Callable[[Any, Handle], Handle]:
    def compute(self: Any, arg: Handle) -> Handle:
        if arg.data.dtype != np.float32:
            return self.unary_op(arg, function)
        numbers = arg.data.astype(np.float64)
        out = function(np.where(np.abs(numbers) < _TINY, np.copysign(0.0, numbers), numbers))
        out = np.where(np.abs(out) < _TINY, np.copysign(0.0, out), out)
        return interpreter.TensorHandle(out.astype(np.float32), arg.dtype.scalar)

    return compute


_TINY = 2.0**-126

# ---- conversions ------------------------------------------------------------------------------


def _cast_impl(self: Any, src: Handle, dst_type: Any) -> Handle:
    del self
    numbers, kind = _numbers(src), dst_type.scalar
    if kind.is_floating() and (kind in _AS_BITS or src.dtype.scalar.is_floating()):
        return _handle(_rounded(numbers, kind), kind)
    return _handle(numbers.astype(_dtype(kind)), kind)


def _create_fp_to_fp(self: Any, src: Handle, dst_type: Any, rounding: Any) -> Handle:
    del self
    towards_zero = rounding == ir.ROUNDING_MODE.RTZ
    numbers, kind = _numbers(src), dst_type.scalar
    return _handle(_rounded(numbers, kind, towards_zero=towards_zero), kind)


# ---- minimum and maximum ----------------------------------------------------------------------


def _before(a: Array, b: Array) -> Array:
    """Return where `a` is less than `b`, -0 less than +0."""
    return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def _pick(smaller: bool, propagates: bool) -> Callable[[Array, Array], Array]:
    def pick(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        first = _before(a, b) if smaller else _before(b, a)
        out = np.where(first | np.isnan(b), a, b)
        if propagates:
            out = np.where(np.isnan(a) | np.isnan(b), np.nan, out).astype(a.dtype)
        return out

    return pick


_MIN, _MAX = _pick(smaller=True, propagates=False), _pick(smaller=False, propagates=False)
_MIN_NAN, _MAX_NAN = _pick(smaller=True, propagates=True), _pick(smaller=False, propagates=True)


def _create_clampf(self: Any, arg: Handle, lo: Handle, hi: Handle, propagate: Any) -> Handle:
    drops = propagate == ir.PROPAGATE_NAN.NONE
    low, high = (_MAX, _MIN) if drops else (_MAX_NAN, _MIN_NAN)
    return self.binary_op(self.binary_op(arg, lo, low), hi, high)


# ---- reductions and scans ---------------------------------------------------------------------


def _check_tensor(self: Any, input: Any) -> None:  # noqa: A002
    _ORIGINALS["check_tensor"](self, input)
    if self.axis is not None and self.axis < 0:
        self.axis += len(input[0].shape)


def _reduce_all(self: Any, input: Any) -> Any:  # noqa: A002
    axes = len(input[0].handle.data.shape)
    reduced = self.generic_reduce(input)
    if self.axis is not None or not self.keep_dims:
        return reduced
    kinds = [operand.dtype for operand in input]
    return [
        self.to_tensor(operand.handle.data.reshape((1,) * axes), kind)
        for operand, kind in zip(reduced, kinds, strict=True)
    ]


def _scan_all(self: Any, input: Any) -> Any:  # noqa: A002
    def flipped(operand: Any) -> Any:
        data = np.ascontiguousarray(np.flip(operand.handle.data, axis=self.axis))
        return self.to_tensor(data, operand.dtype)

    if not self.reverse:
        return self.generic_scan(input)
    return [
        flipped(operand) for operand in self.generic_scan([flipped(operand) for operand in input])
    ]


# ---- Python builtins in kernels ---------------------------------------------------------------


def _range(*bounds: Any, **hints: Any) -> Any:
    del hints
    for value in range(*(int(bound) for bound in bounds)):
        kind = tl.int32
        yield tl.tensor(interpreter.TensorHandle(np.array([value], np.int32), kind), kind)


def _patch_lang_core(lang: Any, scope: Any) -> None:
    _ORIGINALS["_patch_lang_core"](lang, scope)
    scope.set_attr(lang, "range", _range)


def _extreme(name: str) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        if not any(isinstance(value, tl.tensor) for value in values):
            return (min if name == "minimum" else max)(*values)
        function = getattr(interpreter.interpreter_semantic, name)
        result = values[0]
        for value in values[1:]:
            result = function(result, value, tl.PropagateNan.NONE)
        return result

    return call


GLOBALS: dict[str, tuple[str, Any]] = {
    "range": (
        (
            "a loop counts in Python's integers, which adopt the type of what they meet; the compiler "
            "counts in int32 values, which do not"
        ),
        _range,
    ),
    "min": ("Python compares whole tiles; the compiler takes tl.minimum", _extreme("minimum")),
    "max": ("Python compares whole tiles; the compiler takes tl.maximum", _extreme("maximum")),
}
"""Python builtins with another meaning in a kernel: the reason and the replacement."""

# ---- the list ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repair:
    """A replacement for wrong methods of a class, or functions of a module, of the interpreter."""

    owner: Any
    methods: tuple[str, ...]
    why: str
    right: Callable[..., Any]


REPAIRS: tuple[Repair, ...] = (
    Repair(
        Builder,
        ("binary_op",),
        "bf16 is held as uint16, and NumPy adds, multiplies, compares and orders those integers; "
        "the GPU computes on the numbers and rounds once; and a truth value that comes of comparing "
        "int8 is called int8, so that it is no longer one bit once it is made a tile",
        _binary_op,
    ),
    Repair(
        Builder,
        ("unary_op",),
        "as above: the floor of a bf16 is that of its bits",
        _unary_op,
    ),
    Repair(
        Builder,
        ("create_fneg",),
        "as above: the negative of a bf16 is that of its bits",
        _create_fneg,
    ),
    Repair(
        Builder,
        ("create_fma",),
        "as above; the bits of three bf16 are multiplied and added as integers",
        _create_fma,
    ),
    Repair(
        Builder,
        ("create_dot",),
        "as above: bits of bf16 are multiplied; NaN of fp8e4nv becomes 480 on the way to fp16",
        _create_dot,
    ),
    Repair(
        Builder,
        ("cast_impl",),
        "fp32 is truncated to bf16 where the compiler rounds to nearest even; fp64 and integers "
        "become the uint16 of their value instead of a bf16, and the reverse",
        _cast_impl,
    ),
    Repair(
        Builder,
        ("create_fp_to_fp",),
        "halves are rounded up instead of to even, a carry out of the mantissa is lost, infinities "
        "and large numbers become NaN in fp8 where `cvt.satfinite` saturates, and NaN becomes a "
        "number; rounding towards zero overflows to infinity",
        _create_fp_to_fp,
    ),
    *(
        Repair(
            Builder,
            (name,),
            "in fp32 the compiler emits `.ftz` instructions, or libdevice's functions made of them: "
            "subnormal numbers count as zeros, and come out as zeros",
            _flushing(function),
        )
        for name, function in (
            ("create_exp2", np.exp2),
            ("create_sqrt", np.sqrt),
            ("create_rsqrt", lambda numbers: 1 / np.sqrt(numbers)),
            ("create_sin", np.sin),
            ("create_cos", np.cos),
            ("create_erf", np.vectorize(math.erf, otypes=[np.float64])),
        )
    ),
    *(
        Repair(
            Builder,
            (name,),
            "NumPy returns either zero of +0 and -0; PTX `min` and `max` order -0 before +0",
            lambda self, lhs, rhs, pick=pick: self.binary_op(lhs, rhs, pick),
        )
        for name, pick in (
            ("create_minnumf", _MIN),
            ("create_maxnumf", _MAX),
            ("create_minimumf", _MIN_NAN),
            ("create_maximumf", _MAX_NAN),
        )
    ),
    Repair(
        Builder,
        ("create_clampf",),
        "zeros as above; and NumPy's `clip` knows nothing of bf16",
        _create_clampf,
    ),
    Repair(
        interpreter.ReduceScanOpInterface,
        ("check_tensor",),
        "negative axes are counted from the end by the compiler, and by nobody here",
        _check_tensor,
    ),
    Repair(
        interpreter.ReduceOps,
        ("apply_impl",),
        "sums, minima, maxima and their indices are NumPy's, which drop NaN, pick either zero, add "
        "the bits of bf16, and do not ask the combine function of the library at all; a reduction of "
        "all axes that keeps them has one axis",
        _reduce_all,
    ),
    Repair(
        interpreter.ScanOps,
        ("apply_impl",),
        "as above, for cumulative sums and products",
        _scan_all,
    ),
    Repair(
        interpreter,
        ("_patch_lang_core",),
        "`tl.range` counts in Python's integers, see `GLOBALS`",
        _patch_lang_core,
    ),
)

_ORIGINALS: dict[str, Callable[..., Any]] = {
    method: getattr(repair.owner, method) for repair in REPAIRS for method in repair.methods
}


def install() -> None:
    """Install the repairs for the life of the process."""
    for repair in REPAIRS:
        for method in repair.methods:
            setattr(repair.owner, method, repair.right)
