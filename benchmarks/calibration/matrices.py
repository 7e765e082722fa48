"""`mma.sync` in every shape and type, and matrices between registers and shared memory.

On small integers and integer types one result is right, and both sides must match exactly. On
other numbers the hardware aligns the terms of a sum and truncates them. The distance is then
relative to the sum of the terms' magnitudes, computed by the emulator from operands without
signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.calibration import elements
from benchmarks.calibration.case import EXACT, Argument, Array, Bound, Case, Group, Output

_WARPS = 64
_THREADS = 128
_LANES = _WARPS * 32
FP8_BOUND = Bound(scaled=2**-9)
"""Of `wgmma`'s sums of products of 8-bit floats: 33 terms, of each 13 bits below the largest one."""
SUM_BOUND = Bound(scaled=2**-21)
"""Of other sums in fp32."""
DOUBLE_BOUND = Bound(scaled=2**-49)
"""Of sums in fp64: up to 16 terms are added one by one."""
HALF_BOUND = Bound(scaled=2**-10)
"""Of sums in fp16."""

_Draw = Callable[[str, int, np.random.Generator], Array]


def bound_of(opcode: str, a_type: str, result: str) -> Bound:
    """Return how far sums of floats may be from the emulator's.

    `mma.sync` of 8-bit floats is one of fp16.
    """
    if opcode == "wgmma" and elements.BITS[a_type] == 8:
        return FP8_BOUND
    return {"f16": HALF_BOUND, "f64": DOUBLE_BOUND}.get(result, SUM_BOUND)


def row_of(opcode: str, a_type: str, result: str) -> str:
    """Return the line of the table for products of a type."""
    kind = "fp8" if elements.BITS[a_type] == 8 else a_type
    return f"{opcode} of {kind}, sums in {result}"


# ---- mma --------------------------------------------------------------------------------------

# Types of A and B, of the result, and (M, K) of the shapes.
_FORMS: tuple[tuple[str, str, str, tuple[tuple[int, int], ...]], ...] = (
    ("f16", "f16", "f32", ((16, 8), (16, 16))),
    ("f16", "f16", "f16", ((16, 8), (16, 16))),
    ("bf16", "bf16", "f32", ((16, 8), (16, 16))),
    ("tf32", "tf32", "f32", ((16, 4), (16, 8))),
    ("f64", "f64", "f64", ((8, 4), (16, 4), (16, 8), (16, 16))),
    *(
        (a, b, result, ((16, 16), (16, 32)))
        for a in ("e4m3", "e5m2")
        for b in ("e4m3", "e5m2")
        for result in ("f32", "f16")
    ),
    *((a, b, "s32", ((8, 16), (16, 16), (16, 32))) for a in ("s8", "u8") for b in ("s8", "u8")),
    *((a, b, "s32", ((8, 32), (16, 32), (16, 64))) for a in ("s4", "u4") for b in ("s4", "u4")),
    ("b1", "b1", "s32", ((8, 128), (16, 128), (16, 256))),
)


def _registers(rows: int, cols: int, bits: int) -> int:
    """Return how many registers of a lane hold a matrix."""
    return rows * cols * bits // (32 * max(bits, 32))


def _names(letter: str, count: int) -> str:
    return "{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}" if count else ""


def _mma(
    a: str,
    b: str,
    result: str,
    m: int,
    k: int,
    draw: _Draw,
    draw_name: str,
    words: str = "",
    tail: str = "",
) -> Case:
    counts = [
        _registers(rows, cols, elements.BITS[kind])
        for rows, cols, kind in ((m, k, a), (k, 8, b), (m, 8, result))
    ]
    bits = 64 if a == "f64" else 32
    types = f"{result}.{a}.{b}.{result}"
    mnemonic = f"mma.sync.aligned.m{m}n8k{k}.row.col{words}.{types}{tail}"
    wide = draw is not elements.exact and a not in elements.INTEGERS
    return Case(
        f"{mnemonic} ({draw_name})",
        _mma_text(mnemonic, counts, bits),
        partial(_mma_operands, (a, b, result), tuple(counts), bits, draw),
        (Output(3, result, bound_of("mma.sync", a, result) if wide else EXACT),),
        grid=(_LANES // _THREADS,),
        magnitudes=partial(_magnitudes, (a, b, result)) if wide else None,
        row=row_of("mma.sync", a, result),
    )


def _mma_text(mnemonic: str, counts: Sequence[int], bits: int) -> str:
    lines = [
        ".visible .entry {entry}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 out)",
        f".reqntid {_THREADS}",
        "{",
        f".reg .b{bits} a<8>, b<8>, c<8>;",
        ".reg .b32 r<4>; .reg .b64 d<4>;",
        "mov.u32 r0, %tid.x; mov.u32 r1, %ctaid.x;",
        f"mad.lo.u32 r0, r1, {_THREADS}, r0;",
    ]
    size = bits // 8
    for letter, count in zip("abc", counts, strict=True):
        lines += [f"ld.param.u64 d0, [{letter}];", f"mad.wide.u32 d0, r0, {count * size}, d0;"]
        lines += [f"ld.global.b{bits} {letter}{i}, [d0+{i * size}];" for i in range(count)]
    names = [_names(letter, count) for letter, count in zip("abc", counts, strict=True)]
    lines.append(f"{mnemonic} {names[2]}, {names[0]}, {names[1]}, {names[2]};")
    lines += ["ld.param.u64 d0, [out];", f"mad.wide.u32 d0, r0, {counts[2] * size}, d0;"]
    lines += [f"st.global.b{bits} [d0+{i * size}], c{i};" for i in range(counts[2])]
    return "\n".join([*lines, "ret;", "}", ""])


def _mma_operands(
    kinds: Sequence[str], counts: Sequence[int], bits: int, draw: _Draw, rng: np.random.Generator
) -> list[Argument]:
    args: list[Argument] = []
    for kind, count in zip(kinds, counts, strict=True):
        num_elements = _LANES * count * bits // elements.BITS[kind]
        args.append(draw(kind, num_elements, rng).view(f"u{bits // 8}"))
    return [*args, np.full(_LANES * counts[2], 0xA5, f"u{bits // 8}")]


def _magnitudes(kinds: Sequence[str], args: Sequence[Argument]) -> list[Argument]:
    signless: list[Argument] = []
    for kind, arg in zip(kinds, args[:3], strict=True):
        assert isinstance(arg, np.ndarray)
        signless.append(elements.magnitude(kind, arg))
    return [*signless, args[3]]


def _exact() -> Iterator[Case]:
    for a, b, result, shapes in _FORMS:
        for m, k in shapes:
            if a == "b1":
                for operation in (".xor.popc", ".and.popc"):
                    yield _mma(a, b, result, m, k, elements.exact, "any", tail=operation)
                continue
            for words in ("", ".satfinite") if result == "s32" else ("",):
                yield _mma(a, b, result, m, k, elements.exact, "exact", words)


def _inexact() -> Iterator[Case]:
    draws = {"normal": elements.normal, "spread": elements.spread, "special": elements.special}
    for a, b, result, shapes in _FORMS:
        if a not in elements.INTEGERS:
            for m, k in shapes:
                for draw_name, draw in draws.items():
                    yield _mma(a, b, result, m, k, draw, draw_name)
                if a == "tf32":
                    yield _mma(a, b, result, m, k, elements.unrounded, "fp32 bits")


# ---- matrices in shared memory ------------------------------------------------------------------

_IMAGE_BYTES = 4096
_MOVE = """
.visible .entry {{entry}}(.param .u64 image, .param .u64 rows, .param .u64 words, .param .u64 out)
.reqntid 32
{{
    .reg .b32 r<24>;
    .reg .b64 d<8>;
    .shared .align 128 .b8 {{entry}}_shared[{size}];
    mov.u32 r0, %tid.x;
    mov.b32 r1, {{entry}}_shared;
    mad.lo.u32 r2, r0, 16, r1;
    ld.param.u64 d0, [image];
    mov.u32 r3, %ctaid.x;
    mad.wide.u32 d0, r3, {size}, d0;
    mad.wide.u32 d1, r0, 16, d0;
{fill}
    bar.warp.sync -1;
    mad.lo.u32 r3, r3, 32, r0;
    ld.param.u64 d2, [rows];
    mad.wide.u32 d2, r3, 4, d2;
    ld.global.b32 r4, [d2];
    add.u32 r4, r4, r1;
    ld.param.u64 d2, [words];
    mad.wide.u32 d2, r3, 16, d2;
    ld.global.v4.b32 {{r8, r9, r10, r11}}, [d2];
    {body}
    bar.warp.sync -1;
    ld.param.u64 d2, [out];
    mad.wide.u32 d2, r3, 16, d2;
    st.global.v4.b32 [d2], {{r8, r9, r10, r11}};
{drain}
    ret;
}}
"""


def _move(body: str) -> Case:
    offsets = range(0, _IMAGE_BYTES, 512)
    fill = "\n".join(
        f"    ld.global.v4.b32 {{r12, r13, r14, r15}}, [d1+{offset}];\n"
        f"    st.shared.v4.b32 [r2+{offset}], {{r12, r13, r14, r15}};"
        for offset in offsets
    )
    drain = "\n".join(
        f"    ld.shared.v4.b32 {{r12, r13, r14, r15}}, [r2+{offset}];\n"
        f"    st.global.v4.b32 [d1+{offset}], {{r12, r13, r14, r15}};"
        for offset in offsets
    )
    return Case(
        body.partition(" ")[0],
        _MOVE.format(size=_IMAGE_BYTES, fill=fill, drain=drain, body=body),
        _move_operands,
        (Output(0, "u32"), Output(3, "u32")),
        grid=(_WARPS,),
    )


def _move_operands(rng: np.random.Generator) -> list[Argument]:
    image = rng.integers(0, 1 << 32, _WARPS * _IMAGE_BYTES // 4, np.uint32)
    # Rows of a matrix anywhere, none twice: two stores would race.
    rows = np.stack([rng.permutation(_IMAGE_BYTES // 16)[:32] for _ in range(_WARPS)]) * 16
    words = rng.integers(0, 1 << 32, (_WARPS * 32, 4), np.uint32)
    return [image, rows.astype(np.uint32), words, np.zeros_like(words)]


def _moves() -> Iterator[Case]:
    for count in (1, 2, 4):
        names = _names("r", 8 + count).replace(_names("r", 8)[:-1] + ", ", "{")
        for trans in ("", ".trans"):
            head = f".sync.aligned.m8n8.x{count}{trans}.shared.b16"
            yield _move(f"ldmatrix{head} {names}, [r4];")
            yield _move(f"stmatrix{head} [r4], {names};")
    yield _move("movmatrix.sync.aligned.m8n8.trans.b16 r8, r9;")


GROUPS = (
    Group("mma-exact", "mma.sync on integers, every shape and type", tuple(_exact())),
    Group("mma", "mma.sync on floats", tuple(_inexact())),
    Group("matrix-moves", "ldmatrix, stmatrix, movmatrix", tuple(_moves())),
)
