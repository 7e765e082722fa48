"""Kernels running one instruction on arrays: a thread an element, operands in, result out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.calibration import inputs
from benchmarks.calibration.case import EXACT, Argument, Bound, Case, Output

_THREADS = 256

_ENTRY = """
.visible .entry {{entry}}({params})
.reqntid {threads}
{{
    .reg .pred p<8>;
    .reg .b16 h<16>;
    .reg .b32 r<16>;
    .reg .b64 d<16>;
    mov.u32 r0, %tid.x;
    mov.u32 r1, %ctaid.x;
    mad.lo.u32 r0, r1, {threads}, r0;
{loads}
    {body}
{store}
    ret;
}}
"""
_LETTERS = {16: "h", 32: "r", 64: "d"}


def elementwise(
    text: str,
    sources: Sequence[str],
    result: str,
    *,
    name: str = "",
    bound: Bound = EXACT,
    count: int = inputs.COUNT,
) -> Case:
    """Return a case of an instruction, or several, on drawn operands.

    `text` names the operands `{0}`, `{1}`, … and the result `{d}`; without any it is the
    mnemonic alone. `sources` are kinds of `inputs.draw`; "pred" is a predicate. `result` is the
    type of the comparison, or "pred" or "pair" for one or two predicates.
    """
    mnemonic = text.partition(" ")[0]
    if "{d}" not in text:
        text += " {d}, " + ", ".join(f"{{{i}}}" for i in range(len(sources))) + ";"
    params = ", ".join(f".param .u64 a{i}" for i in range(len(sources) + 1))
    loads = "\n".join(_load(i, kind) for i, kind in enumerate(sources))
    names = [
        f"p{i}" if kind == "pred" else _register(kind, 2 + i) for i, kind in enumerate(sources)
    ]
    target = {"pred": "p6", "pair": "p6|p7"}.get(result) or _register(result, 8)
    body = text.format(*names, d=target)
    compared = "u32" if result in ("pred", "pair") else result
    entry = _ENTRY.format(
        params=params, threads=_THREADS, loads=loads, body=body, store=_store(len(sources), result)
    )
    return Case(
        name or mnemonic,
        entry,
        partial(_arguments, tuple(sources), inputs.width_of(compared), count),
        (Output(len(sources), compared, bound),),
        grid=(count // _THREADS,),
    )


def _arguments(
    sources: tuple[str, ...], bits: int, count: int, rng: np.random.Generator
) -> list[Argument]:
    drawn = inputs.draw(sources, rng, count)
    return [*drawn, np.full(count, 0xA5, f"u{max(bits, 16) // 8}")]


def _register(kind: str, number: int) -> str:
    return f"{_LETTERS[max(inputs.width_of(kind), 16)]}{number}"


def _load(index: int, kind: str) -> str:
    bits = inputs.width_of(kind)
    address = f"    ld.param.u64 d0, [a{index}];\n    mad.wide.u32 d1, r0, {bits // 8}, d0;\n"
    if kind == "pred":
        return address + f"    ld.global.b32 r1, [d1];\n    setp.ne.b32 p{index}, r1, 0;"
    return address + f"    ld.global.b{bits} {_register(kind, 2 + index)}, [d1];"


def _store(index: int, result: str) -> str:
    if result in ("pred", "pair"):
        second = "selp.b32 r10, 2, 0, p7;\n    or.b32 r9, r9, r10;" if result == "pair" else ""
        head, register = f"    selp.b32 r9, 1, 0, p6;\n    {second}\n", "r9"
    else:
        head, register = "", _register(result, 8)
    bits = {"h": 16, "r": 32, "d": 64}[register[0]]
    return (
        f"{head}    ld.param.u64 d0, [a{index}];\n    mad.wide.u32 d1, r0, {bits // 8}, d0;\n"
        f"    st.global.b{bits} [d1], {register};"
    )
