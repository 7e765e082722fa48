"""Questions left open by the PTX ISA, each answered by a few reported values.

The emulator answers each in some way; where the GPU differs, the emulator is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.calibration.case import Argument, Case, Group
from benchmarks.calibration.elementwise import elementwise
from benchmarks.calibration.inputs import width_of
from benchmarks.calibration.staged import nothing, staged
from benchmarks.calibration.tensors import NARROW, Boxes, load, store

_COUNT = 256  # of a block: the probed operands come first, the last one fills the rest

# Three NaN of either sign: quiet, signalling, with a payload.
_NAN = {
    "f16": (0x7E00, 0x7C01, 0xFE55, 0x7FFF, 0xFC01),
    "bf16": (0x7FC0, 0x7F81, 0xFFD5, 0x7FFF, 0xFF81),
    "f32": (0x7FC00000, 0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0xFF800001),
    "f64": (0x7FF8 << 48, (0x7FF0 << 48) + 1, 0xFFF8_0000_1234_5678, (1 << 63) - 1),
}
_ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0 << 48}


def _given(
    operands: Sequence[tuple[str, Sequence[int]]], rng: np.random.Generator
) -> list[Argument]:
    del rng
    args: list[Argument] = []
    for kind, words in operands:
        padded = [*words, *[words[-1]] * (_COUNT - len(words))]
        args.append(np.array(padded, f"u{width_of(kind) // 8}"))
    return args


def _probe(name: str, text: str, result: str, *operands: tuple[str, Sequence[int]]) -> Case:
    """Return a case of an instruction on given operands."""
    case = elementwise(text, [kind for kind, _ in operands], result, name=name, count=_COUNT)
    out = np.full(_COUNT, 0xA5, f"u{max(width_of(result), 16) // 8}")

    def draw(rng: np.random.Generator) -> list[Argument]:
        return [*_given(operands, rng), out.copy()]

    return replace(case, draw=draw, is_probe=True)


def _nan() -> Iterator[Case]:
    for kind in ("f16", "f32", "f64"):
        for target in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
            result = "b16" if target[1:] == "8" else f"b{target[1:]}"
            name = f"NaN of {kind} to {target}"
            yield _probe(name, f"cvt.rzi.{target}.{kind}", result, (kind, _NAN[kind]))
    for kind in ("f16", "bf16", "f32", "f64"):
        one_words = [_ONE[kind]] * len(_NAN[kind])
        nan = (kind, _NAN[kind])
        for opcode in ("add.rn", "fma.rn", "min", "max", "neg", "abs"):
            count = {"neg": 0, "abs": 0, "fma.rn": 2}.get(opcode, 1)
            finite_operand = [(kind, one_words)] * count
            yield _probe(f"{opcode}.{kind} of NaN", f"{opcode}.{kind}", kind, nan, *finite_operand)
        if kind != "f64":
            opcode = "min.NaN"
            yield _probe(
                f"{opcode}.{kind} of NaN", f"{opcode}.{kind}", kind, nan, (kind, one_words)
            )
    for kind in ("f16x2", "bf16x2"):
        element = kind[:-2]
        pairs = [word << 16 | _ONE[element] for word in _NAN[element]]
        packed_ones = [_ONE[element] * 0x10001] * len(pairs)
        text = f"fma.rn.{kind}"
        yield _probe(
            f"{text} of NaN", text, kind, (kind, pairs), (kind, packed_ones), (kind, packed_ones)
        )
    yield _probe("cvt.f32.f16 of NaN", "cvt.f32.f16", "f32", ("f16", _NAN["f16"]))
    yield _probe("cvt.rn.f16.f32 of NaN", "cvt.rn.f16.f32", "f16", ("f32", _NAN["f32"]))
    yield _probe("cvt.rn.bf16.f32 of NaN", "cvt.rn.bf16.f32", "bf16", ("f32", _NAN["f32"]))
    yield _probe("cvt.f32.bf16 of NaN", "cvt.f32.bf16", "f32", ("bf16", _NAN["bf16"]))
    yield _probe("cvt.rn.f32.f64 of NaN", "cvt.rn.f32.f64", "f32", ("f64", _NAN["f64"]))
    yield _probe("cvt.f64.f32 of NaN", "cvt.f64.f32", "f64", ("f32", _NAN["f32"]))
    yield _probe("sqrt.rn.f64 of -1", "sqrt.rn.f64", "f64", ("f64", [0xBFF << 52]))


def _zero() -> Iterator[Case]:
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        word, bits = f"b{kind[1:]}", int(kind[1:])
        numerators = (word, [0, 1, 7, (1 << bits) - 1, 1 << (bits - 1)])
        for opcode in ("div", "rem"):
            name = f"{opcode}.{kind} by zero"
            yield _probe(name, f"{opcode}.{kind}", word, numerators, (word, [0] * 5))
        if kind[0] == "s":
            least = (word, [1 << (bits - 1)])
            for opcode in ("div", "rem"):
                name = f"{opcode}.{kind} of the least number by -1"
                yield _probe(name, f"{opcode}.{kind}", word, least, (word, [(1 << bits) - 1]))


def _flush() -> Iterator[Case]:
    # Products just below the least normal number, rounded up to it.
    almost = ("f32", [0x3F7FFFFF, 0x3F7FFFFF, 0xBF7FFFFF, 0x3F7FFFFE])
    least = ("f32", [0x00800000, 0x00800001, 0x00800000, 0x00800001])
    zero = ("f32", [0] * 4)
    yield _probe("mul.rn.ftz.f32 rounding up to normal", "mul.rn.ftz.f32", "f32", almost, least)
    yield _probe(
        "fma.rn.ftz.f32 rounding up to normal", "fma.rn.ftz.f32", "f32", almost, least, zero
    )
    halves = ("f16", [0x3BFF, 0x3BFF, 0xBBFF, 0x3BFE])
    tiny = ("f16", [0x0400, 0x0401, 0x0400, 0x0401])
    yield _probe("mul.rn.ftz.f16 rounding up to normal", "mul.rn.ftz.f16", "f16", halves, tiny)
    ends = ("f64", [0x380FFFFFF0000000, 0x380FFFFFFFFFFFFF, 0x380FFFFFE0000000])
    yield _probe("cvt.rn.ftz.f32.f64 rounding up to normal", "cvt.rn.ftz.f32.f64", "f32", ends)
    above = ("f32", [0x7E800001, 0xFE800001])
    yield _probe("rcp.rp.ftz.f32 rounding up to normal", "rcp.rp.ftz.f32", "f32", above)
    yield _probe("rcp.rm.ftz.f32 rounding up to normal", "rcp.rm.ftz.f32", "f32", above)
    yield _probe(
        "mul.rn.ftz.f32 of -subnormal",
        "mul.rn.ftz.f32",
        "f32",
        ("f32", [0x80000001]),
        ("f32", [0x3F800000]),
    )


def _spaces() -> Iterator[Case]:
    tests = (
        "isspacep.shared",
        "isspacep.shared::cta",
        "isspacep.shared::cluster",
        "isspacep.global",
    )
    for rank in (0, 1):
        lines = "".join(
            f"{test} p{2 + i}, d21; selp.b32 r{14 + i}, 1, 0, p{2 + i};"
            for i, test in enumerate(tests)
        )
        body = f"""
        mov.u32 r10, %cluster_ctarank; xor.b32 r11, r10, {rank};
        cvt.u64.u32 d20, r1; cvta.shared.u64 d20, d20; mapa.u64 d21, d20, r11;
        {lines}
        st.shared.v4.b32 [r2], {{r14, r15, r16, r17}};"""
        owner = "another" if rank else "the own"
        case = staged(
            f"isspacep of mapa of {owner} block", body, nothing, blocks=2, cluster=2, is_probe=True
        )
        yield replace(case, draw=partial(_blank, 2))
    body = "activemask.b32 r14; and.b32 r15, r0, 1; setp.eq.u32 p2, r15, 0; @p2 bra EVEN; activemask.b32 r14; EVEN: st.shared.b32 [r2], r14;"
    yield replace(
        staged("activemask in a branch", body, nothing, is_probe=True), draw=partial(_blank, 1)
    )


def _blank(blocks: int, rng: np.random.Generator) -> list[Argument]:
    del rng
    return [np.zeros(blocks * 4096, np.uint32)]


def _narrow() -> Iterator[Case]:
    for boxes in NARROW:
        rows = int(np.prod(boxes.box[:-1]))
        for layout, size in (("dense", boxes.size_bytes), ("padded", rows * boxes.swizzle)):
            name = f"bytes completed by a narrow box, {layout}: {boxes}"
            yield load(boxes, size_bytes=size, name=name, is_probe=True)


def _refused() -> Iterator[Case]:
    boxes = Boxes("float16", (20, 64), (16, 32), (2, 3), 64)
    yield load(boxes, name="load of rows that start at byte 6", is_probe=True)
    yield store(boxes, name="store of rows that start at byte 6", is_probe=True)
    before = replace(boxes, origin=(-1, 8))
    yield store(before, name="store of a box that starts before the tensor", is_probe=True)


GROUPS = (
    Group(
        "probes",
        "what PTX leaves open",
        (*_nan(), *_zero(), *_flush(), *_spaces(), *_narrow(), *_refused()),
    ),
)
