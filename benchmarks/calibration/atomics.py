"""Atomic operations on a cell for each thread, with their results, and on shared cells.

Where several threads share a cell, only commutative operations run, and the final memory is
compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.calibration import inputs
from benchmarks.calibration.case import Argument, Case, Group, Output

_THREADS = 256
_COUNT = 1 << 13
_CELLS = 64  # shared by all threads

_ENTRY = """
.visible .entry {{entry}}(.param .u64 cells, .param .u64 a, .param .u64 b, .param .u64 out)
.reqntid 256
{{
    .reg .b16 h<8>;
    .reg .b32 r<8>;
    .reg .b64 d<8>;
    .shared .align 16 .b8 {{entry}}_shared[{shared}];
    mov.u32 r0, %tid.x;
    mov.u32 r1, %ctaid.x;
    mad.lo.u32 r1, r1, 256, r0;
    ld.param.u64 d0, [a];
    mad.wide.u32 d0, r1, {size}, d0;
    ld.global.b{bits} {letter}5, [d0];
    ld.param.u64 d0, [b];
    mad.wide.u32 d0, r1, {size}, d0;
    ld.global.b{bits} {letter}6, [d0];
    ld.param.u64 d0, [cells];
    {cell}
    mad.wide.u32 d0, r2, {size}, d0;
    {body}
    ld.param.u64 d1, [out];
    mad.wide.u32 d1, r1, {size}, d1;
    st.global.b{bits} [d1], {letter}7;
    ret;
}}
"""

# The block's cells are copied to shared memory and back.
_SHARED = """
    mov.b32 r3, {{entry}}_shared;
    mad.lo.u32 r3, r0, {size}, r3;
    ld.global.b{bits} {letter}7, [d0];
    st.shared.b{bits} [r3], {letter}7;
    bar.sync 0;
    {instruction}
    bar.sync 0;
    ld.shared.b{bits} {letter}4, [r3];
    st.global.b{bits} [d0], {letter}4;
"""


def _draw(kind: str, cells: int, rng: np.random.Generator) -> list[Argument]:
    memory, a, b = inputs.draw((kind,) * 3, rng, _COUNT)
    # Half of the comparisons of `cas` succeed.
    a = np.where(rng.integers(0, 2, _COUNT) == 0, a, memory) if cells == _COUNT else a
    out = np.full(_COUNT, 0xA5, a.dtype)
    return [memory[:cells].copy(), a, b, out]


_OPERATIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}
_ORDERLESS = ("add", "min", "max", "and", "or", "xor")


def _case(operation: str, kind: str, space: str, *, together: bool) -> Case:
    drawn = kind if kind[0] in "fb" else f"b{kind[1:]}"
    bits = inputs.width_of(drawn)
    letter = {16: "h", 32: "r", 64: "d"}[bits]
    noftz = ".noftz" if kind in ("f16", "f16x2", "bf16", "bf16x2") else ""
    head = "red" if together else "atom"
    mnemonic = f"{head}.{space}.{operation}{noftz}.{kind}"
    operands = f"{letter}5, {letter}6" if operation == "cas" else f"{letter}5"
    returned = "" if together else f"{letter}7, "
    address = "d0" if space == "global" else "r3"
    instruction = f"{mnemonic} {returned}[{address}], {operands};"
    facts = {"size": bits // 8, "bits": bits, "letter": letter}
    if space == "shared":
        instruction = _SHARED.format(instruction=instruction, **facts)
    elif together:
        instruction += f"\n    mov.b{bits} {letter}7, 0;"
    cell = f"and.b32 r2, r1, {_CELLS - 1};" if together else "mov.b32 r2, r1;"
    text = _ENTRY.format(cell=cell, body=instruction, shared=256 * bits // 8, **facts)
    return Case(
        mnemonic,
        text,
        partial(_draw, drawn, _CELLS if together else _COUNT),
        (Output(0, drawn), Output(3, drawn)),
        grid=(_COUNT // _THREADS,),
    )


def _cases() -> Iterator[Case]:
    for operation, kinds in _OPERATIONS.items():
        for kind in kinds:
            for space in ("global", "shared"):
                yield _case(operation, kind, space, together=False)
            if operation in _ORDERLESS and "f" not in kind:
                yield _case(operation, kind, "global", together=True)


GROUPS = (Group("atomics", "atomics on global and shared memory", tuple(_cases())),)
