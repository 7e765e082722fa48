"""`cvt` between all types, in every rounding and with every way to saturate."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.calibration.case import Case, Group
from benchmarks.calibration.elementwise import elementwise

_INTEGERS = tuple(f"{letter}{bits}" for bits in (8, 16, 32, 64) for letter in "us")
_FLOATS = ("f16", "bf16", "f32", "f64")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_TO_INTEGRAL = ("rni", "rzi", "rmi", "rpi")


def _word(kind: str) -> str:
    return kind if kind in _FLOATS else f"b{kind[1:]}"


def _result(kind: str) -> str:
    """Return how to compare a result: bytes with the upper bits of their register."""
    return "b16" if kind[1:] == "8" else _word(kind)


def _holds(target: str, source: str) -> bool:
    """Return whether every integer of the source is one of the target: then `.sat` is refused."""
    target_bits, source_bits = int(target[1:]), int(source[1:])
    if target[0] == source[0]:
        return target_bits >= source_bits
    return target[0] == "s" and target_bits > source_bits


def _integers() -> Iterator[Case]:
    for target in _INTEGERS:
        for source in _INTEGERS:
            for sat in ("",) if _holds(target, source) else ("", ".sat"):
                mnemonic = f"cvt{sat}.{target}.{source}"
                yield elementwise(mnemonic, (_word(source),), _result(target))
    for kind in ("u16", "s16"):
        yield elementwise(f"cvt.pack.sat.{kind}.s32", ("b32", "b32"), "b32")
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield elementwise(f"cvt.pack.sat.{kind}.s32.b32", ("b32",) * 3, "b32")


def _integers_of(kind: str) -> tuple[str, ...]:
    """Return the integer types with conversions from and to a float."""
    return _INTEGERS[2:] if kind == "bf16" else _INTEGERS


def _float_to_integer() -> Iterator[Case]:
    for source in _FLOATS:
        for target in _integers_of(source):
            for mode in _TO_INTEGRAL:
                for flush in ("", ".ftz") if source == "f32" else ("",):
                    yield elementwise(
                        f"cvt.{mode}{flush}.{target}.{source}", (source,), _result(target)
                    )
            if source != "bf16":
                yield elementwise(f"cvt.rzi.sat.{target}.{source}", (source,), _result(target))


def _integer_to_float() -> Iterator[Case]:
    for target in _FLOATS:
        for source in _integers_of(target):
            for mode in _ROUNDINGS:
                yield elementwise(f"cvt.{mode}.{target}.{source}", (_word(source),), target)
    for target in ("f16", "f32", "f64"):
        for source in ("s32", "u64"):
            yield elementwise(f"cvt.rn.sat.{target}.{source}", (_word(source),), target)


def _floats() -> Iterator[Case]:
    for target, source in (("f16", "f32"), ("f16", "f64"), ("f32", "f64")):
        for mode in _ROUNDINGS:
            for sat in ("", ".sat"):
                yield elementwise(f"cvt.{mode}{sat}.{target}.{source}", (source,), target)
    for mode in ("rn", "rz", "rm", "rp"):
        yield elementwise(f"cvt.{mode}.ftz.f16.f32", ("f32",), "f16")
        yield elementwise(f"cvt.{mode}.ftz.f32.f64", ("f64",), "f32")
        yield elementwise(f"cvt.{mode}.bf16.f64", ("f64",), "bf16")
    for flush in ("", ".ftz"):
        for sat in ("", ".sat"):
            yield elementwise(f"cvt{flush}{sat}.f64.f32", ("f32",), "f64")
            yield elementwise(f"cvt{flush}{sat}.f32.f16", ("f16",), "f32")
            yield elementwise(f"cvt{flush}{sat}.f32.f32", ("f32",), "f32")
            for mode in _TO_INTEGRAL:
                yield elementwise(f"cvt.{mode}{flush}{sat}.f32.f32", ("f32",), "f32")
    yield elementwise("cvt.f32.bf16", ("bf16",), "f32")
    yield elementwise("cvt.f64.f16", ("f16",), "f64")
    for kind in ("f16", "f64"):
        for mode in _TO_INTEGRAL:
            yield elementwise(f"cvt.{mode}.{kind}.{kind}", (kind,), kind)
    for target in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            for relu in ("", ".relu"):
                for satfinite in ("", ".satfinite"):
                    mnemonic = f"cvt.{mode}{relu}{satfinite}.{target}"
                    if target == "bf16" or relu or satfinite:
                        yield elementwise(f"{mnemonic}.f32", ("f32",), target)
                    yield elementwise(f"{mnemonic}x2.f32", ("f32", "f32"), f"{target}x2")
    for mode in ("rna", "rna.satfinite", "rn", "rz", "rn.relu", "rz.relu"):
        yield elementwise(f"cvt.{mode}.tf32.f32", ("f32",), "f32")


def _small() -> Iterator[Case]:
    for kind in ("e4m3", "e5m2"):
        for relu in ("", ".relu"):
            mnemonic = f"cvt.rn.satfinite{relu}.{kind}x2"
            yield elementwise(f"{mnemonic}.f32", ("f32", "f32"), "b16")
            yield elementwise(f"{mnemonic}.f16x2", ("f16x2",), "b16")
            yield elementwise(f"cvt.rn{relu}.f16x2.{kind}x2", ("b16",), "f16x2")


GROUPS = (
    Group("cvt-integers", "conversions of integers", tuple(_integers())),
    Group("cvt-to-integers", "floats to integers", tuple(_float_to_integer())),
    Group("cvt-from-integers", "integers to floats", tuple(_integer_to_float())),
    Group("cvt-floats", "conversions of floats", (*_floats(), *_small())),
)
