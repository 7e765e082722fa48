"""PTX of a warp-specialised matrix multiplication for Hopper, with or without a planted fault.

C[M, N] = A[M, K] @ B[N, K]^T in bf16: tiles of 64 x 128 x 64, two stages. A producer warp copies
boxes of A and B with 128-byte swizzle; one warpgroup multiplies them with `wgmma`, packs the sums
into shared memory through `stmatrix` and stores them as boxes. Persistent: CTAs take tiles in
turn, so the rings' phases carry on from tile to tile.

A fault is the replacement of one line; the emulator must find all of `FAULTS`.
`multiply` runs the kernel there.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.run import emulate

Array = npt.NDArray[Any]

BLOCK_M, BLOCK_N, BLOCK_K, STAGES = 64, 128, 64, 2
THREADS = 256  # a producer warpgroup with one working thread, and a consumer warpgroup
A_BYTES, B_BYTES = BLOCK_M * BLOCK_K * 2, BLOCK_N * BLOCK_K * 2
OFFSET_B = STAGES * A_BYTES
OFFSET_D = OFFSET_B + STAGES * B_BYTES
OFFSET_FULL = OFFSET_D + BLOCK_M * BLOCK_N * 2
OFFSET_EMPTY = OFFSET_FULL + 8 * STAGES
SHARED_BYTES = OFFSET_EMPTY + 8 * STAGES
SUMS = BLOCK_N // 2
SLICE_BYTES = BLOCK_M * 128  # 64 columns of the result

# Name: (line, replacement).
FAULTS = {
    "no proxy fence": ("fence.proxy.async.shared::cta;", ""),
    "producer waits for the wrong phase": ("mov.u32 pphase, 1;", "mov.u32 pphase, 0;"),
    "consumer waits for the wrong phase": ("mov.u32 cphase, 0;", "mov.u32 cphase, 1;"),
    "expects too few bytes": (
        f"_, [pfull], {A_BYTES + B_BYTES};",
        f"_, [pfull], {A_BYTES};",
    ),
    "expects too many bytes": (
        f"_, [pfull], {A_BYTES + B_BYTES};",
        f"_, [pfull], {A_BYTES + B_BYTES + 16};",
    ),
    "wrong swizzle": (f"{1 << 62 | 64 << 32 | 1 << 16}", f"{2 << 62 | 64 << 32 | 1 << 16}"),
    "no fence before wgmma": ("wgmma.fence.sync.aligned;", ""),
    "sums read in flight": ("wgmma.wait_group.sync.aligned 0;", ""),
    "stage released too early": (
        "wgmma.wait_group.sync.aligned 1;",
        "wgmma.wait_group.sync.aligned 2;",
    ),
    "result overwritten while it is stored": ("@clead cp.async.bulk.wait_group.read 0;", ""),
    "result not stored in the tile's turn": ("bar.sync 1, 128;  // stored", ""),
    "barriers not initialised in time": ("bar.sync 0;  // initialised", ""),
    "nobody says that a stage is empty": ("@release mbarrier.arrive.shared.b64 _, [cempty];", ""),
}


def _init() -> list[str]:
    lines: list[str] = []
    for stage in range(STAGES):
        lines += [
            f"mbarrier.init.shared.b64 [sm+{OFFSET_FULL + 8 * stage}], 1;",
            f"mbarrier.init.shared.b64 [sm+{OFFSET_EMPTY + 8 * stage}], 1;",
        ]
    return lines


def _wait(name: str, barrier: str, phase: str) -> list[str]:
    return [
        f"{name}:",
        f"mbarrier.try_wait.parity.shared.b64 done, [{barrier}], {phase};",
        f"@!done bra {name};",
    ]


def _advance(stage: str, phase: str) -> list[str]:
    return [
        f"add.u32 {stage}, {stage}, 1;",
        f"setp.eq.u32 wrap, {stage}, {STAGES};",
        f"@wrap xor.b32 {phase}, {phase}, 1;",
        f"@wrap mov.u32 {stage}, 0;",
    ]


def _tile(prefix: str) -> list[str]:
    """Rows and columns of the tile: columns count faster."""
    return [
        f"div.u32 {prefix}row, {prefix}tile, tiles_n;",
        f"rem.u32 {prefix}col, {prefix}tile, tiles_n;",
        f"mul.lo.u32 {prefix}row, {prefix}row, {BLOCK_M};",
        f"mul.lo.u32 {prefix}col, {prefix}col, {BLOCK_N};",
    ]


def _producer() -> list[str]:
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return [
        "PRODUCE:",
        "setmaxnreg.dec.sync.aligned.u32 40;",
        "@!first bra END;",
        "mov.u32 pstage, 0;",
        "mov.u32 pphase, 1;",
        "mov.u32 ptile, cta;",
        "PTILE:",
        "setp.ge.u32 over, ptile, tiles;",
        "@over bra END;",
        *_tile("p"),
        "mov.u32 pk, 0;",
        "PK:",
        f"mad.lo.u32 pempty, pstage, 8, base;\nadd.u32 pempty, pempty, {OFFSET_EMPTY};",
        f"mad.lo.u32 pfull, pstage, 8, base;\nadd.u32 pfull, pfull, {OFFSET_FULL};",
        *_wait("PWAIT", "pempty", "pphase"),
        f"mbarrier.arrive.expect_tx.shared.b64 _, [pfull], {A_BYTES + B_BYTES};",
        f"mul.lo.u32 pcol_k, pk, {BLOCK_K};",
        f"mad.lo.u32 pdst, pstage, {A_BYTES}, base;",
        f"{load} [pdst], [map_a, {{pcol_k, prow}}], [pfull];",
        f"mad.lo.u32 pdst, pstage, {B_BYTES}, base;\nadd.u32 pdst, pdst, {OFFSET_B};",
        f"{load} [pdst], [map_b, {{pcol_k, pcol}}], [pfull];",
        *_advance("pstage", "pphase"),
        "add.u32 pk, pk, 1;",
        "setp.lt.u32 over, pk, depth;",
        "@over bra PK;",
        "add.u32 ptile, ptile, num_ctas;",
        "bra PTILE;",
    ]


def _multiply() -> list[str]:
    sums = "{" + ", ".join(f"sum{i}" for i in range(SUMS)) + "}"
    multiply = f"wgmma.mma_async.sync.aligned.m64n{BLOCK_N}k16.f32.bf16.bf16"
    lines = ["wgmma.fence.sync.aligned;"]
    for step in range(BLOCK_K // 16):
        scale = "notfirst" if step == 0 else "1"
        lines += [
            f"add.u64 da, desc_a, {2 * step};",
            f"add.u64 db, desc_b, {2 * step};",
            f"{multiply} {sums}, da, db, {scale}, 1, 1, 0, 0;",
        ]
    return [*lines, "wgmma.commit_group.sync.aligned;"]


def _descriptor(name: str, stage_bytes: int, offset: int) -> list[str]:
    return [
        f"mad.lo.u32 address, cstage, {stage_bytes}, base;",
        f"add.u32 address, address, {offset};",
        "shr.u32 address, address, 4;",
        f"cvt.u64.u32 {name}, address;",
        f"or.b64 {name}, {name}, {1 << 62 | 64 << 32 | 1 << 16};",
    ]


def _consumer() -> list[str]:
    return [
        "CONSUME:",
        "setmaxnreg.inc.sync.aligned.u32 232;",
        "mov.u32 cstage, 0;",
        "mov.u32 cphase, 0;",
        "mov.u32 ctile, cta;",
        "CTILE:",
        "setp.ge.u32 over, ctile, tiles;",
        "@over bra DRAIN;",
        *_tile("c"),
        "mov.u32 ck, 0;",
        "CK:",
        f"mad.lo.u32 cfull, cstage, 8, base;\nadd.u32 cfull, cfull, {OFFSET_FULL};",
        *_wait("CWAIT", "cfull", "cphase"),
        *_descriptor("desc_a", A_BYTES, 0),
        *_descriptor("desc_b", B_BYTES, OFFSET_B),
        "setp.ne.u32 notfirst, ck, 0;",
        *_multiply(),
        "wgmma.wait_group.sync.aligned 1;",
        "and.pred release, clead, notfirst;",
        "@release mbarrier.arrive.shared.b64 _, [cempty];",
        f"mad.lo.u32 cempty, cstage, 8, base;\nadd.u32 cempty, cempty, {OFFSET_EMPTY};",
        *_advance("cstage", "cphase"),
        "add.u32 ck, ck, 1;",
        "setp.lt.u32 over, ck, depth;",
        "@over bra CK;",
        "wgmma.wait_group.sync.aligned 0;",
        *_epilogue(),
        "add.u32 ctile, ctile, num_ctas;",
        "bra CTILE;",
        # The last tile is read from shared memory before the block exits and frees it.
        "DRAIN:",
        "cp.async.bulk.wait_group.read 0;",
    ]


def _epilogue() -> list[str]:
    lines = [
        "@clead cp.async.bulk.wait_group.read 0;",
        "bar.sync 1, 128;  // stored",
        "@clead mbarrier.arrive.shared.b64 _, [cempty];",
    ]
    # Lane l gives the row l % 16 of its warp's 16 and the 16-byte chunk l / 16 of a pair.
    lines += [
        "and.b32 row, lane, 15;",
        "shr.u32 half, lane, 4;",
        "shr.u32 address, local, 5;",
        "mad.lo.u32 row, address, 16, row;",
        "and.b32 phase, row, 7;",
        f"mad.lo.u32 line, row, 128, base;\nadd.u32 line, line, {OFFSET_D};",
    ]
    for pair in range(BLOCK_N // 16):
        slice_, chunk = divmod(2 * pair, 8)
        lines += [
            f"or.b32 address, half, {chunk};",
            "xor.b32 address, address, phase;",
            "mad.lo.u32 address, address, 16, line;",
        ]
        first = 8 * pair
        for word in range(4):
            low, high = first + 2 * word, first + 2 * word + 1
            lines.append(f"cvt.rn.bf16x2.f32 word{word}, sum{high}, sum{low};")
        words = ", ".join(f"word{i}" for i in range(4))
        lines.append(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 "
            f"[address+{slice_ * SLICE_BYTES}], {{{words}}};"
        )
    lines += ["fence.proxy.async.shared::cta;", "bar.sync 1, 128;", "@!clead bra STORED;"]
    store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    for slice_ in range(BLOCK_N // 64):
        lines += [
            f"add.u32 address, base, {OFFSET_D + slice_ * SLICE_BYTES};",
            f"add.u32 column, ccol, {64 * slice_};",
            f"{store} [map_d, {{column, crow}}], [address];",
        ]
    return [*lines, "cp.async.bulk.commit_group;", "STORED:"]


_REGISTERS = """\
.reg .pred first, over, wrap, done, notfirst, clead, release;
.reg .b32 tid, local, lane, group, cta, num_ctas, base, tiles, tiles_n, depth;
.reg .b32 pstage, pphase, ptile, prow, pcol, pk, pcol_k, pdst, pfull, pempty;
.reg .b32 cstage, cphase, ctile, crow, ccol, ck, cfull, cempty;
.reg .b32 address, row, half, phase, line, column, word<4>;
.reg .b64 map_a, map_b, map_d, desc_a, desc_b, da, db;"""


def gemm_ptx(fault: str | None = None) -> str:
    """Return the kernel `gemm(map_a, map_b, map_d, k tiles, tiles, tiles along N)`."""
    lines = [
        "mov.b64 map_a, gemm_a;\ncvta.param.u64 map_a, map_a;",
        "mov.b64 map_b, gemm_b;\ncvta.param.u64 map_b, map_b;",
        "mov.b64 map_d, gemm_d;\ncvta.param.u64 map_d, map_d;",
        "ld.param.u32 depth, [gemm_depth];",
        "ld.param.u32 tiles, [gemm_tiles];",
        "ld.param.u32 tiles_n, [gemm_tiles_n];",
        "mov.u32 tid, %tid.x;",
        "mov.u32 cta, %ctaid.x;",
        "mov.u32 num_ctas, %nctaid.x;",
        "mov.u32 base, sm;",
        "setp.eq.u32 first, tid, 0;",
        "and.b32 local, tid, 127;",
        "and.b32 lane, tid, 31;",
        "shr.u32 group, tid, 7;",
        "setp.eq.u32 clead, local, 0;",
        "@!first bra READY;",
        *_init(),
        "fence.mbarrier_init.release.cluster;",
        "READY:",
        "bar.sync 0;  // initialised",
        "setp.eq.u32 over, group, 1;",
        "@over bra CONSUME;",
        *_producer(),
        *_consumer(),
        "END:",
        "ret;",
    ]
    if fault is not None:
        line, instead = FAULTS[fault]
        changed = [text.replace(line, instead) for text in lines]
        assert changed != lines, f"{line} is not in the kernel"
        lines = changed
    sums = ", ".join(f"sum{i}" for i in range(SUMS))
    body = "\n".join(lines)
    return f"""\
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry gemm(
.param .align 64 .b8 gemm_a[128],
.param .align 64 .b8 gemm_b[128],
.param .align 64 .b8 gemm_d[128],
.param .u32 gemm_depth,
.param .u32 gemm_tiles,
.param .u32 gemm_tiles_n
)
.reqntid {THREADS}
.minnctapersm 1
{{
{_REGISTERS}
.reg .f32 {sums};
{body}
}}
"""


def multiply(
    shape: tuple[int, int, int], ctas: int = 1, seed: int = 0, fault: str | None = None
) -> tuple[Array, Array]:
    """Return the kernel's product of random matrices, (M, N, K), and the one in float64.

    Raises:
        Fault: the kernel broke a rule of the hardware.
    """
    m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    a, b, d = _padded(m, k, rng), _padded(n, k, rng), _padded(m, n, None)
    tiles_n = _cdiv(n, BLOCK_N)
    emulate(
        gemm_ptx(fault),
        ctas,
        [
            TensorArgument(a, (BLOCK_M, BLOCK_K), 128),
            TensorArgument(b, (BLOCK_N, BLOCK_K), 128),
            TensorArgument(d, (BLOCK_M, 64), 128),
            _cdiv(k, BLOCK_K),
            _cdiv(m, BLOCK_M) * tiles_n,
            tiles_n,
        ],
        shared_bytes=SHARED_BYTES,
        seed=seed,
    )
    return d.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T


def largest_error(actual: Array, expected: Array, k: int) -> float:
    """Return the largest error of a product over K elements, 1 where it is just allowed.

    One rounding to bf16 beside the roundings of the sums.
    """
    allowed = 1e-5 * np.sqrt(k) + 2**-8 * np.abs(expected)
    return float(np.max(np.abs(actual - expected) / allowed))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _padded(rows: int, cols: int, rng: np.random.Generator | None) -> Array:
    """Return a matrix with rows a multiple of 16 bytes apart, random or all NaN."""
    whole = np.full((rows, _cdiv(cols, 8) * 8), np.nan, ml_dtypes.bfloat16)
    if rng is not None:
        whole[...] = rng.standard_normal(whole.shape)
    return whole[:, :cols]
