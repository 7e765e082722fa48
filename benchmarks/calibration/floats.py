"""Floating-point instructions exact to the bit, NaN included, and comparisons."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.calibration.case import Case, Group
from benchmarks.calibration.elementwise import elementwise
from benchmarks.calibration.inputs import COUNT

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_FEW = 1 << 12  # for instructions the emulator computes one element at a time


def _single() -> Iterator[Case]:
    for rounding in _ROUNDINGS:
        for flush in ("", ".ftz"):
            for sat in ("", ".sat"):
                for opcode in ("add", "sub", "mul"):
                    yield elementwise(f"{opcode}.{rounding}{flush}{sat}.f32", ("f32",) * 2, "f32")
                yield elementwise(f"fma.{rounding}{flush}{sat}.f32", ("f32",) * 3, "f32")
            yield elementwise(f"div.{rounding}{flush}.f32", ("f32",) * 2, "f32")
            yield elementwise(f"rcp.{rounding}{flush}.f32", ("f32",), "f32")
            yield elementwise(f"sqrt.{rounding}{flush}.f32", ("f32",), "f32")
    for flush in ("", ".ftz"):
        yield elementwise(f"neg{flush}.f32", ("f32",), "f32")
        yield elementwise(f"abs{flush}.f32", ("f32",), "f32")
    yield elementwise("copysign.f32", ("f32",) * 2, "f32")
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        yield elementwise(f"testp.{test}.f32", ("f32",), "pred")
        yield elementwise(f"testp.{test}.f64", ("f64",), "pred")


def _double() -> Iterator[Case]:
    for rounding in _ROUNDINGS:
        slow = COUNT if rounding == "rn" else _FEW
        for opcode in ("add", "sub"):
            yield elementwise(f"{opcode}.{rounding}.f64", ("f64",) * 2, "f64")
        yield elementwise(f"mul.{rounding}.f64", ("f64",) * 2, "f64", count=slow)
        yield elementwise(f"fma.{rounding}.f64", ("f64",) * 3, "f64", count=_FEW * 2)
        yield elementwise(f"div.{rounding}.f64", ("f64",) * 2, "f64", count=slow)
        yield elementwise(f"rcp.{rounding}.f64", ("f64",), "f64", count=slow)
        yield elementwise(f"sqrt.{rounding}.f64", ("f64",), "f64", count=slow)
    yield elementwise("neg.f64", ("f64",), "f64")
    yield elementwise("abs.f64", ("f64",), "f64")
    yield elementwise("min.f64", ("f64",) * 2, "f64")
    yield elementwise("max.f64", ("f64",) * 2, "f64")
    yield elementwise("copysign.f64", ("f64",) * 2, "f64")


def _half() -> Iterator[Case]:
    for kind in ("f16", "f16x2"):
        for flush in ("", ".ftz"):
            for sat in ("", ".sat"):
                for opcode in ("add", "sub", "mul"):
                    for rounding in ("", ".rn"):
                        mnemonic = f"{opcode}{rounding}{flush}{sat}.{kind}"
                        yield elementwise(mnemonic, (kind,) * 2, kind)
                yield elementwise(f"fma.rn{flush}{sat}.{kind}", (kind,) * 3, kind)
            yield elementwise(f"fma.rn{flush}.relu.{kind}", (kind,) * 3, kind)
            yield elementwise(f"neg{flush}.{kind}", (kind,), kind)
            yield elementwise(f"abs{flush}.{kind}", (kind,), kind)
    for kind in ("bf16", "bf16x2"):
        for opcode in ("add", "sub", "mul"):
            yield elementwise(f"{opcode}.rn.{kind}", (kind,) * 2, kind)
        for relu in ("", ".relu"):
            yield elementwise(f"fma.rn{relu}.{kind}", (kind,) * 3, kind)
        yield elementwise(f"neg.{kind}", (kind,), kind)
        yield elementwise(f"abs.{kind}", (kind,), kind)


def _extremes() -> Iterator[Case]:
    for kind in ("f32", "f16", "f16x2", "bf16", "bf16x2"):
        for flush in ("",) if kind[0] == "b" else ("", ".ftz"):
            for nan in ("", ".NaN"):
                for sign in ("", ".xorsign.abs"):
                    for opcode in ("min", "max"):
                        yield elementwise(f"{opcode}{flush}{nan}{sign}.{kind}", (kind,) * 2, kind)


def _comparisons() -> Iterator[Case]:
    ordered = ["eq", "ne", "lt", "le", "gt", "ge"]
    names = [*ordered, *(f"{name}u" for name in ordered), "num", "nan"]
    for kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"):
        flushes = ("", ".ftz") if kind in ("f32", "f16", "f16x2") else ("",)
        result = "pred" if kind in ("f16", "bf16") else "pair"
        for name in names:
            for flush in flushes:
                yield elementwise(f"setp.{name}{flush}.{kind}", (kind,) * 2, result)
        yield elementwise(f"setp.lt.and.{kind}", (kind, kind, "pred"), result)
    for name in names:
        yield elementwise(f"set.{name}.u32.f32", ("f32",) * 2, "b32")
        yield elementwise(f"set.{name}.f32.f32", ("f32",) * 2, "b32")
        yield elementwise(f"set.{name}.f16x2.f16x2", ("f16x2",) * 2, "b32")


GROUPS = (
    Group("f32", "fp32 arithmetic, every rounding", tuple(_single())),
    Group("f64", "fp64 arithmetic, every rounding", tuple(_double())),
    Group("half", "fp16 and bf16 arithmetic", tuple(_half())),
    Group("extremes", "min and max of floats", tuple(_extremes())),
    Group("float-compare", "comparisons of floats", tuple(_comparisons())),
)
