"""Rules for arithmetic and casts: run in lockstep against NumPy, over every dtype."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.core import Op
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I1,
    I32,
    I64,
    SCALARS,
    U8,
    U64,
    PointerType,
    ScalarType,
)
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, SM_80, SM_90, Program, row_layout

N = 64
LAYOUT = row_layout(N)
INTS = [kind for kind in SCALARS.values() if kind.is_int and not kind.is_bool]
FLOATS = [kind for kind in SCALARS.values() if kind.is_float]
WIDE_FLOATS = [FP16, BF16, FP32, FP64]
SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 2.5, -3.25, 448.0, 500.0, 1e-3, 65504.0]


def values(element: ScalarType, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    dtype = np.dtype(NUMPY[element.name])
    if element.is_bool:
        return random.integers(0, 2, N).astype(dtype)
    if element.is_float:
        plain = random.standard_normal(N) * 8
        plain[: len(SPECIAL)] = np.roll(SPECIAL, seed)
        with np.errstate(all="ignore"):
            return plain.astype(np.float32 if element.bits < 32 else np.float64).astype(dtype)
    info = np.iinfo(dtype)
    numbers = random.integers(info.min, info.max, N, dtype=dtype, endpoint=True)
    numbers[:4] = [info.min, info.max, 0, 1]
    return np.roll(numbers, seed)


def apply(make: Any, elements: list[ScalarType], arrays: list[Any], target: Any = SM_90) -> Any:
    program = Program()
    operands = [program.load(element, LAYOUT) for element in elements]
    program.store(program.add(make(*operands)).out)
    return program.run(*arrays, target=target)[0]


def same(actual: Any, want: Any, *, ulps: float = 0) -> None:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        wide_got, wide_want = actual.astype(np.float64), np.asarray(want).astype(np.float64)
    if ulps:
        eps = float(ml_dtypes.finfo(actual.dtype).eps)
        tiny = float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)
        np.testing.assert_allclose(wide_got, wide_want, rtol=ulps * eps, atol=tiny)
    else:
        np.testing.assert_array_equal(wide_got, wide_want)


def in_float(function: Any, dtype: Any, *args: Any) -> Any:
    """Compute in float32 (float64 for doubles) and round to `dtype` once."""
    wide = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        return function(*(arg.astype(wide) for arg in args)).astype(dtype)


def truncated_div(a: Any, b: Any) -> Any:
    return [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]


# ---- integers ---------------------------------------------------------------------------------

WRAPPING = [
    (arith.Add, lambda a, b: a + b),
    (arith.Sub, lambda a, b: a - b),
    (arith.Mul, lambda a, b: a * b),
    (arith.And, lambda a, b: a & b),
    (arith.Or, lambda a, b: a | b),
    (arith.Xor, lambda a, b: a ^ b),
    (arith.Min, np.minimum),
    (arith.Max, np.maximum),
]


def wrapped(exact: Any, dtype: Any) -> Any:
    bits = np.iinfo(dtype).bits
    out = [int(x) % (1 << bits) for x in exact]
    return np.array(out, np.dtype(f"u{np.dtype(dtype).itemsize}")).view(dtype)


@pytest.mark.parametrize("element", INTS, ids=str)
@pytest.mark.parametrize(("cls", "want"), WRAPPING, ids=lambda x: getattr(x, "opcode", ""))
def test_integers_wrap(cls, want, element) -> None:
    a, b = values(element), values(element, 3)
    with np.errstate(all="ignore"):
        expected = want(a, b)
    assert np.array_equal(apply(cls, [element] * 2, [a, b]), expected)


@pytest.mark.parametrize("element", INTS, ids=str)
def test_division_truncates(element) -> None:
    a, b = values(element), values(element, 5)
    b[b == 0] = 3
    if element.is_signed:
        b[b == -1] = 7  # the quotient of the least number would overflow
    exact_a, exact_b = a.astype(object), b.astype(object)
    quotient = wrapped(truncated_div(exact_a, exact_b), a.dtype)
    assert np.array_equal(apply(arith.Div, [element] * 2, [a, b]), quotient)
    with np.errstate(all="ignore"):
        remainder = a - quotient * b
    assert np.array_equal(apply(arith.Rem, [element] * 2, [a, b]), remainder)


@pytest.mark.parametrize("element", INTS, ids=str)
def test_shifts_and_high_products(element) -> None:
    a, b = values(element), values(element, 9)
    amount = (np.arange(N) % element.bits).astype(a.dtype)
    assert np.array_equal(apply(arith.Shl, [element] * 2, [a, amount]), a << amount)
    assert np.array_equal(apply(arith.Shr, [element] * 2, [a, amount]), a >> amount)
    exact = [int(x) * int(y) >> element.bits for x, y in zip(a, b, strict=True)]
    assert np.array_equal(apply(arith.MulHi, [element] * 2, [a, b]), wrapped(exact, a.dtype))


@pytest.mark.parametrize("element", INTS, ids=str)
@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_integer_comparisons_follow_the_sign(predicate, element) -> None:
    a, b = values(element), values(element, 1)
    b[::4] = a[::4]
    actual = apply(lambda x, y: arith.Compare(x, y, predicate), [element] * 2, [a, b])
    want = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    assert np.array_equal(actual, want[predicate])


@pytest.mark.parametrize("element", INTS, ids=str)
def test_integer_unary(element) -> None:
    a, b, c = values(element), values(element, 1), values(element, 2)
    with np.errstate(all="ignore"):
        assert np.array_equal(apply(arith.Neg, [element], [a]), (0 - a).astype(a.dtype))
        assert np.array_equal(apply(arith.Abs, [element], [a]), np.abs(a))
        assert np.array_equal(apply(arith.Fma, [element] * 3, [a, b, c]), a * b + c)


def test_constants_fold_into_sums_that_wrap() -> None:
    program = Program()
    x = program.load(I32, LAYOUT)
    for number in (2**31 - 1, 1, -5):
        constant = program.add(arith.Constant(number, x.type)).out
        x = program.add(arith.Add(x, constant)).out
    three = program.add(arith.Constant(3, x.type)).out
    x = program.add(arith.Sub(three, program.add(arith.Mul(x, three)).out)).out
    program.store(x)
    program.store(program.add(arith.Cast(x, I64)).out)
    a = values(I32)
    narrow, wide = program.run(a)
    want = wrapped([3 - 3 * (int(n) + 2**31 - 5) for n in a], np.int32)
    assert np.array_equal(narrow, want)
    assert np.array_equal(wide, want.astype(np.int64))


# ---- floats -----------------------------------------------------------------------------------

FLOAT_BINARY = [
    (arith.Add, np.add), (arith.Sub, np.subtract), (arith.Mul, np.multiply),
    (arith.Div, np.divide), (arith.DivRn, np.divide), (arith.Rem, np.fmod),
]  # fmt: skip


@pytest.mark.parametrize("element", FLOATS, ids=str)
@pytest.mark.parametrize(("cls", "want"), FLOAT_BINARY, ids=lambda x: getattr(x, "opcode", ""))
def test_float_arithmetic_rounds_once(cls, want, element) -> None:
    a, b = values(element), values(element, 4)
    actual = apply(cls, [element] * 2, [a, b])
    expected = in_float(want, a.dtype, a, b)
    if element.bits == 8:  # the conversion back saturates
        largest = float(ml_dtypes.finfo(a.dtype).max)
        expected = in_float(lambda x, y: np.clip(want(x, y), -largest, largest), a.dtype, a, b)
    same(actual, expected)


@pytest.mark.parametrize("element", WIDE_FLOATS, ids=str)
@pytest.mark.parametrize("nan", [False, True])
def test_minimum_and_nan(element, nan) -> None:
    a, b = values(element), values(element, 2)
    with np.errstate(all="ignore"):
        low, high = (np.minimum, np.maximum) if nan else (np.fmin, np.fmax)
        wide = [array.astype(np.float64) for array in (a, b)]
        same(apply(lambda x, y: arith.Min(x, y, nan), [element] * 2, [a, b]), low(*wide))
        same(apply(lambda x, y: arith.Max(x, y, nan), [element] * 2, [a, b]), high(*wide))


@pytest.mark.parametrize("element", FLOATS, ids=str)
@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_float_comparisons_are_ordered_but_ne(predicate, element) -> None:
    a, b = values(element), values(element, 1)
    b[::4] = a[::4]
    wa, wb = a.astype(np.float64), b.astype(np.float64)
    actual = apply(lambda x, y: arith.Compare(x, y, predicate), [element] * 2, [a, b])
    want = {
        "eq": wa == wb,
        "ne": wa != wb,
        "lt": wa < wb,
        "le": wa <= wb,
        "gt": wa > wb,
        "ge": wa >= wb,
    }
    assert np.array_equal(actual, want[predicate])


UNARY = [
    (arith.Exp, np.exp), (arith.Exp2, np.exp2), (arith.Log, np.log), (arith.Log2, np.log2),
    (arith.Sqrt, np.sqrt), (arith.SqrtRn, np.sqrt), (arith.Rsqrt, lambda x: 1 / np.sqrt(x)),
    (arith.Sin, np.sin), (arith.Cos, np.cos), (arith.Floor, np.floor), (arith.Ceil, np.ceil),
    (arith.Neg, np.negative), (arith.Abs, np.abs),
]  # fmt: skip


@pytest.mark.parametrize("element", WIDE_FLOATS, ids=str)
@pytest.mark.parametrize(("cls", "want"), UNARY, ids=lambda x: getattr(x, "opcode", ""))
def test_elementary_functions(cls, want, element) -> None:
    a = values(element)
    with np.errstate(all="ignore"):
        same(apply(cls, [element], [a]), want(a.astype(np.float64)).astype(a.dtype), ulps=16)


@pytest.mark.parametrize("element", WIDE_FLOATS, ids=str)
def test_fma_and_erf(element) -> None:
    a, b, c = values(element), values(element, 1), values(element, 2)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
        same(apply(arith.Fma, [element] * 3, [a, b, c]), exact.astype(a.dtype))
        erf = apply(arith.Erf, [element], [a])
    assert erf[2] == np.float64(0.8427007929497149).astype(a.dtype)


@pytest.mark.parametrize("op", [arith.MulHi, arith.Shl])
def test_meaningless_types_are_named(op) -> None:
    program = Program()
    x = program.load(FP32, LAYOUT)
    program.add(op(x, x))
    with pytest.raises(IRError, match="is undefined on fp32"):
        program.llvm_ir()


# ---- selections, booleans, bits ---------------------------------------------------------------


@pytest.mark.parametrize("element", list(SCALARS.values()), ids=str)
def test_select(element) -> None:
    condition, a, b = values(I1, 3), values(element), values(element, 1)
    actual = apply(arith.Select, [I1, element, element], [condition, a, b])
    same(actual, np.where(condition, a, b))


@pytest.mark.parametrize("cls", [arith.And, arith.Or, arith.Xor, arith.Add, arith.Mul])
def test_booleans(cls) -> None:
    a, b = values(I1), values(I1, 2)
    want = {"arith.and": a & b, "arith.or": a | b, "arith.xor": a ^ b, "arith.add": a ^ b}
    actual = apply(cls, [I1] * 2, [a, b])
    assert np.array_equal(actual, want.get(cls.opcode, a & b))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (FP32, I32),
        (I32, FP32),
        (BF16, FP16),
        (FP64, U64),
        (FP8E5, U8),
        (U8, FP8E4NV),
        (I32, SCALARS["u32"]),
    ],
    ids=str,
)
def test_bitcast_keeps_the_bits(source, target) -> None:
    a = values(source)
    actual = apply(lambda x: arith.Bitcast(x, target), [source], [a])
    assert np.array_equal(actual.view(np.uint8), a.view(np.uint8))


def test_pointers_round_trip_through_integers() -> None:
    program = Program()
    pointers = program.pointers(program.param(PointerType(FP32)), LAYOUT)
    bits = program.add(arith.Bitcast(pointers, U64)).out
    again = program.add(arith.Bitcast(bits, PointerType(FP32))).out
    program.store(program.add(arith.Bitcast(again, U64)).out)
    assert np.array_equal(program.run(4096)[0], 4096 + 4 * np.arange(N, dtype=np.uint64))


# ---- casts ------------------------------------------------------------------------------------


def rounded(exact: Any, element: ScalarType) -> Any:
    """Round float64 numbers to `element` once; fp8 saturates."""
    dtype = np.dtype(NUMPY[element.name])
    with np.errstate(all="ignore"):
        if element.bits == 8:
            largest = float(ml_dtypes.finfo(dtype).max)
            return np.clip(exact, -largest, largest).astype(np.float32).astype(dtype)
        if element == BF16:
            return _odd_single(exact).astype(dtype)
        return exact.astype(dtype)


def _odd_single(exact: Any) -> Any:
    """Return float32 numbers that round to bfloat16 as the doubles would."""
    single = exact.astype(np.float32)
    over = np.abs(single.astype(np.float64)) > np.abs(exact)
    bits = single.view(np.uint32) - over
    inexact = (bits.view(np.float32).astype(np.float64) != exact) & ~np.isnan(exact)
    return (
        np.where(np.isfinite(exact), bits | inexact, single.view(np.uint32))
        .astype(np.uint32)
        .view(np.float32)
    )


@pytest.mark.parametrize("target", [SM_80, SM_90], ids=str)
@pytest.mark.parametrize("destination", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_float_casts_round_once(source, destination, target) -> None:
    a = values(source)
    actual = apply(lambda x: arith.Cast(x, destination), [source], [a], target)
    same(actual, a if source == destination else rounded(a.astype(np.float64), destination))


@pytest.mark.parametrize("destination", [FP8E4NV, FP8E5], ids=str)
def test_fp8_in_software_is_the_instruction(destination) -> None:
    """Every bfloat16 there is, and every tie between neighbours of the format."""
    all_bf16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    numbers = np.arange(256, dtype=np.uint8).view(NUMPY[destination.name]).astype(np.float32)
    finite = np.sort(numbers[np.isfinite(numbers)])
    ties = np.repeat((finite[1:] + finite[:-1]) / 2, 1)
    near = np.concatenate(
        [ties, np.nextafter(ties, np.float32(1e9)), np.nextafter(ties, np.float32(-1e9))]
    )
    sample = np.concatenate([all_bf16, near]).astype(np.float32)
    sample = np.resize(sample, 1 << 17)
    program = Program(32)
    layout = row_layout(1 << 17, 32)
    program.store(program.add(arith.Cast(program.load(FP32, layout), destination)).out)
    software = program.run(sample, target=SM_80)[0].view(np.uint8)
    hardware = program.run(sample, target=SM_90)[0].view(np.uint8)
    assert np.array_equal(software, hardware)


@pytest.mark.parametrize("source", [FP8E4NV, FP8E5], ids=str)
def test_every_fp8_number_widens_exactly(source) -> None:
    numbers = np.arange(256, dtype=np.uint8).view(NUMPY[source.name])
    program = Program()
    program.store(program.add(arith.Cast(program.load(source, row_layout(256)), FP32)).out)
    for target in (SM_80, SM_90):
        same(program.run(numbers, target=target)[0], numbers)


@pytest.mark.parametrize("destination", [FP16, BF16, FP8E4NV, FP8E5], ids=str)
@pytest.mark.parametrize("source", [FP32, FP64], ids=str)
def test_rounding_towards_zero(source, destination) -> None:
    a = np.clip(np.nan_to_num(values(source)), -400, 400).astype(NUMPY[source.name])
    actual = apply(lambda x: arith.Cast(x, destination, "rtz"), [source], [a]).astype(np.float64)
    near = rounded(a.astype(np.float64), destination)
    assert (np.abs(actual) <= np.abs(a)).all()
    up = near.view(np.dtype(f"u{near.dtype.itemsize}"))
    down = (up - (np.abs(near.astype(np.float64)) > np.abs(a))).astype(up.dtype).view(near.dtype)
    np.testing.assert_array_equal(actual, down.astype(np.float64))


@pytest.mark.parametrize("destination", [kind for kind in SCALARS.values() if kind.is_int], ids=str)
@pytest.mark.parametrize("source", [kind for kind in SCALARS.values() if kind.is_int], ids=str)
def test_integer_casts_wrap_and_extend(source, destination) -> None:
    a = values(source)
    actual = apply(lambda x: arith.Cast(x, destination), [source], [a])
    assert np.array_equal(actual, a.astype(NUMPY[destination.name]))


@pytest.mark.parametrize("destination", [*INTS, I1], ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_to_integers_truncate(source, destination) -> None:
    a = values(source)
    low, high = (0, 100) if destination.kind == "uint" else (-100, 100)
    a = np.clip(np.nan_to_num(a.astype(np.float64)), low, high).astype(a.dtype)
    actual = apply(lambda x: arith.Cast(x, destination), [source], [a])
    want = a.astype(np.float64) != 0 if destination == I1 else np.trunc(a.astype(np.float64))
    same(actual, want)


@pytest.mark.parametrize("destination", FLOATS, ids=str)
@pytest.mark.parametrize("source", [*INTS, I1], ids=str)
def test_integers_to_floats(source, destination) -> None:
    a = values(source)
    actual = apply(lambda x: arith.Cast(x, destination), [source], [a])
    if destination == BF16:
        same(actual, np.array([_nearest(int(number), 8) for number in a]).astype(NUMPY["bf16"]))
        return
    single = a.astype(np.float64 if destination == FP64 else np.float32)
    same(actual, rounded(single.astype(np.float64), destination))


def _nearest(number: int, bits: int) -> float:
    """Return an integer rounded to nearest even, to so many bits."""
    size = abs(number)
    shift = max(0, size.bit_length() - bits)
    quotient, rest = size >> shift, size & (1 << shift) - 1
    half = 1 << shift >> 1
    quotient += int(shift > 0 and (rest > half or (rest == half and quotient % 2 == 1)))
    return math.copysign(float(quotient << shift), number)


# ---- every op on every target -----------------------------------------------------------------


def every_operation(element: ScalarType) -> list[Any]:
    """Return makers of all elementwise ops defined on `element`."""
    makers: list[Any] = []
    for cls in Op.registry.values():
        if issubclass(cls, arith.Compare):
            makers += [lambda x, y, p=p, c=cls: c(x, y, p) for p in ("eq", "ne", "lt", "ge")]
        elif issubclass(cls, arith.MinMax):
            makers += [lambda x, y, n=n, c=cls: c(x, y, n) for n in (False, True)]
        elif issubclass(cls, arith.Binary):
            if element.is_float and cls in (
                arith.And, arith.Or, arith.Xor, arith.Shl, arith.Shr, arith.MulHi,
            ):  # fmt: skip
                continue
            if element.is_int and cls is arith.DivRn:
                continue
            makers.append(lambda x, y, c=cls: c(x, y))
        elif issubclass(cls, arith.Unary):
            if element.is_int and cls not in (arith.Neg, arith.Abs, arith.Floor, arith.Ceil):
                continue
            makers.append(lambda x, _, c=cls: c(x))
    makers.append(lambda x, y: arith.Fma(x, y, x))
    for destination in SCALARS.values():
        makers.append(lambda x, _, w=destination: arith.Cast(x, w))
        if destination.is_float and element.is_float and element.bits > destination.bits:
            makers.append(lambda x, _, w=destination: arith.Cast(x, w, "rtz"))
    return makers


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_everything_assembles_everywhere(target) -> None:
    """All float ops, then all integer ops, in one kernel, to show refusals by LLVM or ptxas."""
    from aotc.backend import assemble, emit_ptx

    layout = row_layout(32)
    for is_float in (True, False):
        program = Program()
        for element in SCALARS.values():
            if element.is_bool or element.is_float != is_float:
                continue
            x, y = program.load(element, layout), program.load(element, layout)
            for make in every_operation(element):
                program.store(program.add(make(x, y)).out)
        ptx = emit_ptx(program.llvm_ir(target), target)
        assert "call" not in ptx.replace(".callprototype", "")
        assert assemble(ptx, target).spill_bytes == 0


@pytest.mark.parametrize(
    ("value", "element", "want", "fits"),
    [
        (-np.inf, I64, -(2**63), False),
        (np.inf, I32, 2**31 - 1, False),
        (np.nan, I32, 0, False),
        (-1.0, U8, 0, False),
        (-1.5, I32, -1, True),
        (-0.5, U8, 0, True),
        (255.5, U8, 255, True),
    ],
)
def test_a_constant_that_does_not_fit_an_integer_is_a_number(
    value: float, element: ScalarType, want: int, fits: bool
) -> None:
    """It is poison to LLVM: a load with it as `other` would get an unwritten register."""
    program = Program()
    constant = program.add(arith.Constant(value, FP32)).out
    cast = program.add(arith.Cast(constant, element)).out
    program.store(program.splat(cast, LAYOUT))
    assert ("fpto" in program.llvm_ir()) == fits
    (out,) = program.run()
    assert set(out.tolist()) == {want}


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("divisibility", [1, 16])
def test_columns_of_a_row_under_an_end_that_is_a_multiple_are_compared_once(
    divisibility: int, predicate: Any, mirrored: bool
) -> None:
    """A thread has 8 neighbours at a time, of 64."""
    layout = LinearLayout(
        {
            "register": [(1,), (2,), (4,), (256,), (512,), (1024,)],
            "lane": [(8,), (16,), (32,), (64,), (128,)],
            "warp": [],
        },
        (2048,),
    )
    program = Program()
    end = program.splat(program.param(I32, divisibility), layout)
    columns = program.add(tile.Arange(0, 2048, layout)).out
    operands = (end, columns) if mirrored else (columns, end)
    program.store(program.add(arith.Compare(*operands, predicate)).out)
    index = np.arange(2048)
    for value in (0, 16, 64, 1040, 2032, 2048, 4096, -16, 2**31 - 16, -(2**31)):
        compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
        pair = (value, index) if mirrored else (index, value)
        np.testing.assert_array_equal(program.run(value)[0], compare[predicate](*pair))
    is_floored = predicate in (("gt", "le") if mirrored else ("lt", "ge"))
    expected = (8 if is_floored else 16) if divisibility == 16 else 64
    assert program.llvm_ir().count("icmp s") == expected
