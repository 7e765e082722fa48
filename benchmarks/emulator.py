"""Speed of the PTX emulator: lane-instructions per second on one core.

Two programs, each the best of several runs: many CTAs of converged warps with loads, fused
multiply-adds, shared memory and barriers; and one warp with diverging lanes.

    python benchmarks/emulator.py [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from aotc.verify.emulator.run import emulate

REPEATS = 5
GOALS = {"in step": 20e6, "a lone diverged warp": 300e3}

# Each thread loads a number and evaluates a polynomial `trips` times. Each time it passes the
# result to its neighbour through shared memory. At the end it stores the result.
IN_STEP = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry in_step(.param .u64 x, .param .u64 out, .param .u32 trips)
.reqntid 256
{
    .reg .pred %p<2>;
    .reg .b32 %r<20>;
    .reg .f32 %f<20>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 tile[1024];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    ld.param.u32 %r1, [trips];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.s32 %r4, %r3, 256, %r2;
    mul.wide.s32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    mov.u32 %r5, tile;
    shl.b32 %r6, %r2, 2;
    add.s32 %r7, %r5, %r6;
    add.s32 %r8, %r2, 1;
    and.b32 %r9, %r8, 255;
    shl.b32 %r10, %r9, 2;
    add.s32 %r11, %r5, %r10;
    mov.b32 %r12, 0;
loop:
    mul.f32 %f2, %f1, %f1;
    add.f32 %f3, %f2, 0f3F800000;
    rcp.rn.f32 %f4, %f3;
    mul.f32 %f5, %f4, %f1;
    add.f32 %f6, %f5, 0f3F000000;
    fma.rn.f32 %f7, %f6, %f5, %f2;
    mul.f32 %f8, %f7, 0f3F000000;
    xor.b32 %r13, %r12, %r2;
    and.b32 %r14, %r13, 7;
    add.s32 %r15, %r14, %r4;
    cvt.rn.f32.s32 %f9, %r15;
    mul.f32 %f10, %f9, 0f38000000;
    add.f32 %f11, %f10, %f8;
    st.shared.f32 [%r7], %f11;
    bar.sync 0;
    ld.shared.f32 %f1, [%r11];
    bar.sync 0;
    add.s32 %r12, %r12, 1;
    setp.lt.s32 %p1, %r12, %r1;
    @%p1 bra loop;
    add.s64 %rd5, %rd2, %rd3;
    st.global.f32 [%rd5], %f1;
    ret;
}
"""

# Each lane counts the steps of the Collatz sequence of its own number.
DIVERGED = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry diverged(.param .u64 out, .param .u32 start)
.reqntid 32
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [start];
    mov.u32 %r2, %tid.x;
    add.s32 %r3, %r1, %r2;
    mov.b32 %r4, 0;
    bra test;
step:
    add.s32 %r4, %r4, 1;
    and.b32 %r5, %r3, 1;
    setp.eq.s32 %p1, %r5, 0;
    @%p1 bra even;
    mul.lo.s32 %r6, %r3, 3;
    add.s32 %r3, %r6, 1;
    bra test;
even:
    shr.u32 %r3, %r3, 1;
test:
    setp.gt.u32 %p2, %r3, 1;
    @%p2 bra step;
    mul.wide.s32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
"""


def in_step() -> tuple[float, float]:
    """Return lane-instructions and seconds of the program in step, over 512 CTAs."""
    ctas = 512
    x = np.random.default_rng(0).standard_normal(ctas * 256).astype(np.float32)
    out = np.zeros_like(x)
    start = time.perf_counter()
    statistics = emulate(IN_STEP, ctas, [x, out, 20])
    return statistics.lane_instructions, time.perf_counter() - start


def diverged() -> tuple[float, float]:
    """Return lane-instructions and seconds of the lone warp."""
    out = np.zeros(32, np.int32)
    start = time.perf_counter()
    statistics = emulate(DIVERGED, 1, [out, 77031])
    return statistics.lane_instructions, time.perf_counter() - start


def main() -> None:
    """Print the best of several runs of each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    rates: dict[str, float] = {}
    for name, run in (("in step", in_step), ("a lone diverged warp", diverged)):
        rates[name] = max(count / seconds for count, seconds in (run() for _ in range(REPEATS)))
        if not as_json:
            goal = GOALS[name]
            print(
                f"{name}: {rates[name] / 1e6:.2f} million lane-instructions/s (goal {goal / 1e6})"
            )
    if as_json:
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
