"""Calls, clusters, random numbers, pipelines, prints and microscaling formats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.oracle.ptx_cases_elementwise import DTYPES
from tests.oracle.ptx_cases_tiles import TILE_STORE, tile_case
from tests.oracle.triton_ptx import Arrays, Case

_CALLED = """@triton.jit(noinline=True)
def helper(a, b):
    return a * 2 + b


"""
_SCAN = """@triton.jit
def helper(a, b):
    return tl.maximum(a, b)


"""


def _called() -> list[Case]:
    return [
        tile_case("noinline-scalar", "i32", "k = helper(tl.program_id(0) + 5, 7)\n" + TILE_STORE.format("v + k"),
                  lambda x: x + 17, before=_CALLED),
        tile_case("noinline-twice", "i32", "k = helper(helper(3, 1), tl.program_id(0))\n"
                  + TILE_STORE.format("v + k"), lambda x: x + 14, before=_CALLED),
        tile_case("associative-scan", "fp32", TILE_STORE.format("tl.associative_scan(v, 1, helper)"),
                  lambda x: np.maximum.accumulate(x, axis=1), before=_SCAN),
        tile_case("reduce", "i32", "tl.store(out + tl.arange(0, M), tl.reduce(v, 1, helper))",
                  lambda x: x.max(axis=1), before=_SCAN),
    ]  # fmt: skip


def _gemm(kind: str, arch: int, stages: int, warps: int, num_ctas: int = 1) -> Case:
    m, n, k, step = 64, 64, 128, 32
    body = """
r = tl.arange(0, M)
c = tl.arange(0, N)
s = tl.arange(0, STEP)
acc = tl.zeros((M, N), tl.float32)
for at in tl.range(0, K, STEP):
    a = tl.load(x + r[:, None] * K + at + s[None, :])
    b = tl.load(y + (at + s)[:, None] * N + c[None, :])
    acc = tl.dot(a, b, acc)
tl.store(out + r[:, None] * N + c[None, :], acc)"""
    return _product(f"gemm-{kind}-sm{arch}-stages{stages}-warps{warps}-ctas{num_ctas}", kind, body,
                    (m, n, k), {"STEP": step}, arch,
                    {"num_stages": stages, "num_warps": warps, "num_ctas": num_ctas})  # fmt: skip


def _gemm_described(kind: str, stages: int, *, is_specialized: bool = False) -> Case:
    body = f"""
da = tl.make_tensor_descriptor(x, [M, K], [K, 1], [M, STEP])
db = tl.make_tensor_descriptor(y, [K, N], [N, 1], [STEP, N])
do = tl.make_tensor_descriptor(out, [M, N], [N, 1], [M, N])
acc = tl.zeros((M, N), tl.float32)
for at in tl.range(0, K, STEP, warp_specialize={is_specialized}):
    acc = tl.dot(da.load([0, at]), db.load([at, 0]), acc)
do.store([0, 0], acc)"""
    name = f"gemm-descriptors-{kind}-stages{stages}" + "-specialized" * is_specialized
    return _product(name, kind, body, (64, 64, 128), {"STEP": 32}, 90, {"num_stages": stages})


def _product(
    name: str,
    kind: str,
    body: str,
    shape: tuple[int, int, int],
    consts: dict[str, Any],
    arch: int,
    options: dict[str, Any],
) -> Case:
    m, n, k = shape

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x, y = (rng.integers(-4, 5, size).astype(np.float32) for size in (m * k, k * n))
        dtype = DTYPES[kind]
        return {"x": x.astype(dtype), "y": y.astype(dtype), "out": np.zeros(m * n, np.float32)}

    def expected(arrays: Arrays) -> dict[str, Any]:
        x, y = arrays["x"].astype(np.float64), arrays["y"].astype(np.float64)
        return {"out": (x.reshape(m, k) @ y.reshape(k, n)).astype(np.float32)}

    types = {"x": f"*{kind}", "y": f"*{kind}", "out": "*fp32"}
    consts = {"M": m, "N": n, "K": k, **consts}
    return Case(name, body, types, inputs, expected, consts, arch=arch, options=options)


def _philox(seed: int, offsets: Any) -> Any:
    """Return Philox 4x32-10's first word, as Salmon et al. define it."""
    counter = [offsets.astype(np.uint64), *(np.zeros_like(offsets, np.uint64) for _ in range(3))]
    key = [np.uint64(seed), np.uint64(0)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, third = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (third >> np.uint64(32)) ^ counter[1] ^ key[0],
            third & low,
            (first >> np.uint64(32)) ^ counter[3] ^ key[1],
            first & low,
        ]
        key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
    return counter[0].astype(np.uint32)


def _towards_zero(x: Any) -> Any:
    """Return numbers rounded to fp16 towards zero."""
    rounded = x.astype(np.float16)
    beyond = np.abs(rounded.astype(np.float64)) > np.abs(x)
    return np.where(beyond, np.nextafter(rounded, np.float16(0)), rounded).astype(np.float64)


def _rest() -> list[Case]:
    cases = [
        tile_case("philox", "i32", TILE_STORE.format("tl.randint(1234, r * N + c)"),
                  lambda x: _philox(1234, np.arange(x.size)).view(np.int32)),
        tile_case("cdiv", "i32", TILE_STORE.format("tl.cdiv(tl.abs(v), 7)"), lambda x: -(-np.abs(x) // 7)),
        tile_case("umulhi", "u32", TILE_STORE.format("tl.umulhi(v * 77777777, v * 99999)"),
                  lambda x: ((x * np.uint32(77777777)).astype(np.uint64)
                             * (x * np.uint32(99999)) >> np.uint64(32))),
        tile_case("bitcast", "fp32", TILE_STORE.format("v.to(tl.int32, bitcast=True)"),
                  lambda x: x.astype(np.float32).view(np.int32), "i32"),
        tile_case("rtz", "fp32", TILE_STORE.format("v.to(tl.float16, fp_downcast_rounding='rtz').to(tl.float32)"),
                  _towards_zero, shape=(8, 32)),
        tile_case("print", "i32", "tl.device_print('v', v)\n" + TILE_STORE.format("v"), lambda x: x),
        tile_case("assert", "i32", "tl.device_assert(v < 1000)\n" + TILE_STORE.format("v"), lambda x: x, debug=True),
        tile_case("clusters", "fp32", TILE_STORE.format("v - tl.max(v, 1)[:, None]"),
                  lambda x: x - x.max(axis=1)[:, None], num_ctas=2),
        tile_case("pack", "fp16", "w = tl.inline_asm_elementwise('add.f16x2 $0, $1, $1;', '=r,r', [v], "
                  "dtype=tl.float16, is_pure=True, pack=2)\n" + TILE_STORE.format("w"), lambda x: x * 2),
        tile_case("barrier", "i32", TILE_STORE.format("v") + "\ntl.debug_barrier()\n"
                  "w = tl.load(out + r * N + (N - 1 - c))\ntl.debug_barrier()\n" + TILE_STORE.format("w"),
                  lambda x: x[:, ::-1]),
        tile_case("programs-wait", "i32", "tl.atomic_add(out, tl.sum(tl.sum(v, 1), 0), sem='release', scope='gpu')",
                  lambda x: np.array([x.sum() * 3]), grid=(3,)),
    ]  # fmt: skip
    if hasattr(ml_dtypes, "float8_e8m0fnu"):
        cases.append(_scaled())
    return cases


def _scaled() -> Case:
    m, n, k = 64, 64, 64
    body = """
a = tl.load(x + tl.arange(0, M)[:, None] * K + tl.arange(0, K)[None, :])
b = tl.load(y + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])
e = tl.load(s + tl.arange(0, M)[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :])
d = tl.dot_scaled(a, e, 'e4m3', b, None, 'bf16')
tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], d)"""

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.integers(-4, 5, m * k).astype(np.float32).astype(ml_dtypes.float8_e4m3fn),
            "y": rng.integers(-4, 5, k * n).astype(np.float32).astype(ml_dtypes.bfloat16),
            "s": rng.integers(124, 131, m * k // 32).astype(np.uint8),
            "out": np.zeros(m * n, np.float32),
        }

    def expected(arrays: Arrays) -> dict[str, Any]:
        scale = np.exp2(arrays["s"].astype(np.float64).reshape(m, -1) - 127).repeat(32, axis=1)
        x = arrays["x"].astype(np.float64).reshape(m, k) * scale
        return {"out": (x @ arrays["y"].astype(np.float64).reshape(k, n)).astype(np.float32)}

    types = {"x": "*fp8e4nv", "y": "*bf16", "s": "*u8", "out": "*fp32"}
    return Case("dot-scaled", body, types, inputs, expected, {"M": m, "N": n, "K": k}, 1e-6)


MORE = [
    *_called(),
    *(
        _gemm(kind, arch, stages, warps)
        for kind in ("fp16", "bf16", "fp32")
        for arch in (80, 90)
        for stages, warps in ((1, 4), (3, 4), (4, 8))
    ),
    _gemm("fp16", 90, 3, 4, num_ctas=2),
    *(_gemm_described(kind, stages) for kind in ("fp16", "bf16") for stages in (1, 3)),
    _gemm_described("fp16", 3, is_specialized=True),
    *_rest(),
]
