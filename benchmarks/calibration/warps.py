"""Warp-level instructions across lanes: shuffles, votes, matches, redux.

Masks are full, or random lanes after a divergent branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.calibration import inputs
from benchmarks.calibration.case import Argument, Case, Group, Output

_WARPS = 512
_THREADS = 128
_LANES = _WARPS * 32

# r2, r3 and r4 are operands, p1 is set in participating lanes, r5 is their mask.
_ENTRY = f"""
.visible .entry {{{{entry}}}}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 chosen, .param .u64 out)
.reqntid {_THREADS}
{{{{
    .reg .pred p<8>;
    .reg .b32 r<16>;
    .reg .b64 d<16>;
    mov.u32 r0, %tid.x;
    mov.u32 r1, %ctaid.x;
    mad.lo.u32 r0, r1, {_THREADS}, r0;
    ld.param.u64 d0, [a];
    mad.wide.u32 d0, r0, 4, d0;
    ld.global.b32 r2, [d0];
    ld.param.u64 d0, [b];
    mad.wide.u32 d0, r0, 4, d0;
    ld.global.b32 r3, [d0];
    ld.param.u64 d0, [c];
    mad.wide.u32 d0, r0, 4, d0;
    ld.global.b32 r4, [d0];
    ld.param.u64 d0, [chosen];
    mad.wide.u32 d0, r0, 4, d0;
    ld.global.b32 r5, [d0];
    setp.ne.b32 p1, r5, 0;
    setp.lt.s32 p2, r2, 0;
    vote.sync.ballot.b32 r5, p1, 0xFFFFFFFF;
    mov.b32 r6, 0xDEADBEEF;
    mov.b64 d1, {{{{r2, r3}}}};
    setp.eq.b32 p3, r0, r0;
    @!p1 bra DONE;
    {{body}}
DONE:
    selp.b32 r7, 1, 0, p3;
    ld.param.u64 d0, [out];
    mad.wide.u32 d0, r0, 8, d0;
    st.global.v2.b32 [d0], {{{{r6, r7}}}};
    ret;
}}}}
"""


def _draw(rng: np.random.Generator, *, whole: bool, few_values: bool) -> list[Argument]:
    a, b, c = inputs.draw(("b32",) * 3, rng, _LANES)
    if few_values:
        a = (a % 3).astype(np.uint32) * np.uint32(0x90000001)
        b = np.zeros_like(b)
        # Some warps agree.
        a.reshape(_WARPS, 32)[::4] = a.reshape(_WARPS, 32)[::4, :1]
    else:
        b, c = b % np.uint32(67), c & np.uint32(0x1F1F)
        share = rng.integers(0, 3, _WARPS)
        c.reshape(_WARPS, 32)[share == 0] = 0x1F
        c.reshape(_WARPS, 32)[share == 1] = 0
    chosen = np.ones(_LANES, np.uint32) if whole else rng.integers(0, 2, _LANES).astype(np.uint32)
    return [a, b, c, chosen, np.full(2 * _LANES, 0xA5, np.uint32)]


def _case(name: str, body: str, *, whole: bool, few_values: bool = False) -> Case:
    return Case(
        f"{name}{'' if whole else ' (some lanes)'}",
        _ENTRY.format(body=body),
        partial(_draw, whole=whole, few_values=few_values),
        (Output(4, "u32"),),
        grid=(_LANES // _THREADS,),
    )


def _cases() -> Iterator[Case]:
    # A shuffle from an inactive lane is undefined, so shuffles are of whole warps.
    for mode in ("up", "down", "bfly", "idx"):
        name = f"shfl.sync.{mode}.b32"
        yield _case(name, f"{name} r6|p3, r2, r3, r4, r5;", whole=True)
        yield _case(
            f"{name} 3", f"{name} r6|p3, r2, 3, {0 if mode == 'up' else 31}, -1;", whole=True
        )
    for whole in (True, False):
        for mode in ("all", "any", "uni"):
            name = f"vote.sync.{mode}.pred"
            yield _case(name, f"{name} p3, p2, r5;", whole=whole, few_values=True)
            yield _case(f"{name} !p", f"{name} p3, !p2, r5;", whole=whole, few_values=True)
        name = "vote.sync.ballot.b32"
        yield _case(name, f"{name} r6, p2, r5;", whole=whole)
        for bits, source in (("b32", "r2"), ("b64", "d1")):
            name = f"match.any.sync.{bits}"
            yield _case(name, f"{name} r6, {source}, r5;", whole=whole, few_values=True)
            name = f"match.all.sync.{bits}"
            yield _case(name, f"{name} r6|p3, {source}, r5;", whole=whole, few_values=True)
        for kind, operations in (
            ("s32", ("add", "min", "max")),
            ("u32", ("add", "min", "max")),
            ("b32", ("and", "or", "xor")),
        ):
            for operation in operations:
                name = f"redux.sync.{operation}.{kind}"
                yield _case(name, f"{name} r6, r2, r5;", whole=whole)
        yield _case("activemask.b32", "activemask.b32 r6;", whole=whole)
        yield _case("elect.sync", "elect.sync r6|p3, r5;", whole=whole)


GROUPS = (Group("warps", "shuffles, votes, matches, redux", tuple(_cases())),)
