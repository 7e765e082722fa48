"""Integer instructions: arithmetic, logic, shifts, bit fields, bytes, comparisons.

Results are compared to the bit, also where PTX leaves them to the machine, as a quotient by zero.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.calibration.case import Case, Group
from benchmarks.calibration.elementwise import elementwise

_WORDS = ("u16", "s16", "u32", "s32", "u64", "s64")
_FEW = 1 << 14


def _bits(kind: str) -> str:
    return "b" + kind[1:]


def _sums() -> Iterator[Case]:
    for kind in _WORDS:
        word = _bits(kind)
        for opcode in ("add", "sub", "div", "rem", "min", "max", "mul.lo", "mul.hi"):
            yield elementwise(f"{opcode}.{kind}", (word, word), word)
        for part in ("lo", "hi"):
            yield elementwise(f"mad.{part}.{kind}", (word,) * 3, word)
        yield elementwise(f"sad.{kind}", (word,) * 3, word)
        if kind[1:] != "64":
            wide = f"b{2 * int(kind[1:])}"
            yield elementwise(f"mul.wide.{kind}", (word, word), wide)
            yield elementwise(f"mad.wide.{kind}", (word, word, wide), wide)
        if kind[0] == "s":
            yield elementwise(f"neg.{kind}", (word,), word)
            yield elementwise(f"abs.{kind}", (word,), word)
    for name in ("add.sat.s32", "sub.sat.s32", "min.relu.s32", "max.relu.s32"):
        yield elementwise(name, ("b32", "b32"), "b32")
    yield elementwise("mad.hi.sat.s32", ("b32",) * 3, "b32")
    for kind in ("u16x2", "s16x2"):
        for opcode in ("add", "min", "max"):
            yield elementwise(f"{opcode}.{kind}", ("b16x2", "b16x2"), "b16x2")
    for opcode in ("min", "max"):
        yield elementwise(f"{opcode}.relu.s16x2", ("b16x2", "b16x2"), "b16x2")
    for kind in ("u32", "s32"):
        for part in ("lo", "hi"):
            yield elementwise(f"mul24.{part}.{kind}", ("b32",) * 2, "b32")
            yield elementwise(f"mad24.{part}.{kind}", ("b32",) * 3, "b32")
        for other in ("u32", "s32"):
            yield elementwise(f"dp4a.{kind}.{other}", ("b32",) * 3, "b32")
            for part in ("lo", "hi"):
                yield elementwise(f"dp2a.{part}.{kind}.{other}", ("b32",) * 3, "b32")


def _carries() -> Iterator[Case]:
    for kind in ("u32", "s32", "u64", "s64"):
        word = _bits(kind)
        for opcode in ("add", "sub"):
            text = f"{opcode}.cc.{kind} {{d}}, {{0}}, {{1}}; {opcode}c.{kind} {{d}}, {{2}}, {{d}};"
            yield elementwise(text, (word,) * 3, word, name=f"{opcode}.cc, {opcode}c.{kind}")
    for kind in ("u32", "s32", "u64", "s64"):
        word = _bits(kind)
        for first, second in (("lo", "hi"), ("hi", "lo")):
            text = (
                f"mad.{first}.cc.{kind} {{d}}, {{0}}, {{1}}, {{2}};"
                f" madc.{second}.{kind} {{d}}, {{0}}, {{1}}, {{d}};"
            )
            yield elementwise(text, (word,) * 3, word, name=f"mad.{first}.cc, madc.{second}.{kind}")


def _logic() -> Iterator[Case]:
    for bits in ("b16", "b32", "b64"):
        for opcode in ("and", "or", "xor"):
            yield elementwise(f"{opcode}.{bits}", (bits, bits), bits)
        yield elementwise(f"not.{bits}", (bits,), bits)
        yield elementwise(f"cnot.{bits}", (bits,), bits)
        yield elementwise(f"shl.{bits}", (bits, "amount"), bits)
        for letter in "bus":
            yield elementwise(f"shr.{letter}{bits[1:]}", (bits, "amount"), bits)
        yield elementwise(f"selp.{bits}", (bits, bits, "pred"), bits)
        yield elementwise(f"slct.{bits}.s32", (bits, bits, "b32"), bits)
    for opcode in ("and", "or", "xor"):
        yield elementwise(f"{opcode}.pred", ("pred", "pred"), "pred")
    yield elementwise("not.pred", ("pred",), "pred")
    for direction in ("l", "r"):
        for mode in ("wrap", "clamp"):
            yield elementwise(f"shf.{direction}.{mode}.b32", ("b32", "b32", "amount"), "b32")
    for table in (0x00, 0x1E, 0x2D, 0x80, 0x96, 0xE8, 0xFE, 0xFF):
        text = f"lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table};"
        yield elementwise(text, ("b32",) * 3, "b32", name=f"lop3.b32 {table:#04x}")


def _fields() -> Iterator[Case]:
    for kind in ("u32", "s32", "u64", "s64"):
        word = _bits(kind)
        yield elementwise(f"bfe.{kind}", (word, "amount", "amount"), word)
        yield elementwise(f"bfind.{kind}", (word,), "b32")
        yield elementwise(f"bfind.shiftamt.{kind}", (word,), "b32")
    for bits in ("b32", "b64"):
        yield elementwise(f"bfi.{bits}", (bits, bits, "amount", "amount"), bits)
        yield elementwise(f"popc.{bits}", (bits,), "b32")
        yield elementwise(f"clz.{bits}", (bits,), "b32")
        yield elementwise(f"brev.{bits}", (bits,), bits)
    for mode in ("clamp", "wrap"):
        yield elementwise(f"bmsk.{mode}.b32", ("amount", "amount"), "b32")
        for kind in ("u32", "s32"):
            yield elementwise(f"szext.{mode}.{kind}", ("b32", "amount"), "b32")
    yield elementwise("fns.b32", ("b32", "amount", "b32"), "b32", count=_FEW)
    yield elementwise("prmt.b32", ("b32",) * 3, "b32")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield elementwise(f"prmt.b32.{mode}", ("b32", "b32", "amount"), "b32")
    for selector in (0x5410, 0x7632, 0x0123, 0x8ACE, 0x4444):
        text = f"prmt.b32 {{d}}, {{0}}, {{1}}, {selector};"
        yield elementwise(text, ("b32", "b32"), "b32", name=f"prmt.b32 {selector:#06x}")


def _comparisons() -> Iterator[Case]:
    for kind in (*_WORDS, "b16", "b32", "b64"):
        word = _bits(kind)
        names = ["eq", "ne"]
        names += ["lt", "le", "gt", "ge"] if kind[0] != "b" else []
        names += ["lo", "ls", "hi", "hs"] if kind[0] == "u" else []
        for name in names:
            yield elementwise(f"setp.{name}.{kind}", (word, word), "pair")
            yield elementwise(f"set.{name}.u32.{kind}", (word, word), "b32")
        for combine in ("and", "or", "xor"):
            yield elementwise(f"setp.eq.{combine}.{kind}", (word, word, "pred"), "pair")
    yield elementwise("set.lt.f32.s32", ("b32", "b32"), "b32")


GROUPS = (
    Group("integer", "integer arithmetic", (*_sums(), *_carries())),
    Group("bits", "logic, shifts, bit fields, bytes", (*_logic(), *_fields())),
    Group("integer-compare", "comparisons of integers", tuple(_comparisons())),
)
