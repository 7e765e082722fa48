"""Weights of 8 and 4 bits beside cuBLAS on the same weights in bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Array, Arrays, Wide
from benchmarks.harness.workload import Workload
from benchmarks.harness.workloads.matmul import Product, item, rows_times


def _weights(
    name: str, m: int, size: int, kernel: str, make: Callable[[Arrays], Arguments], bits: int
) -> Workload:
    return Product(
        *(f"{name} {m}", m, size, size, (kernel,), make),
        exact=rows_times("wide", "x"),
        library=torch_peers.matmul("x", "wide", "c"),
        read_bytes=size * size * bits / 8 + 4.0 * m * size,
    ).workload()


def _operands(arrays: Arrays, m: int, w: Array, wide: Array, **more: Array) -> Arguments:
    size, out = len(wide), arrays.empty(m, len(wide))
    args = {"x": arrays.normal(m, size), "w": w, "wide": wide, "c": out, "out_ptr": out, **more}
    return {**args, "M": m, "N": size, "K": size, "stride_om": size}


def _int8(size: int) -> Workload:
    def make(arrays: Arrays) -> Arguments:
        w = arrays.integers(-128, 128, size, size, dtype="i8")
        scale = arrays.uniform(size, low=0.5) / 64
        wide = arrays.cast(arrays.cast(w, "fp32") * scale[:, None], "bf16")
        return _operands(arrays, size, w, wide, scale_ptr=scale)

    return _weights("weight-only int8", size, size, "weight_only_int8", make, 8)


def _unpacked(arrays: Arrays, words: Array) -> Array:
    """Return the numbers of 0 to 15 in words, in the order of `aotc.weights`."""
    element = np.arange(8)
    shifts = arrays.array(element // 2 * 4 + element % 2 * 16)
    return (words[:, :, None] >> shifts & 15).reshape(len(words), -1)


def _scaled(arrays: Arrays, numbers: Array, scales: Array) -> Array:
    """Return numbers (N, K) times scales (groups, N), in bf16."""
    n, k = numbers.shape
    grouped = arrays.cast(numbers, "bf16").reshape(n, len(scales), -1)
    return (grouped * scales.T[:, :, None]).reshape(n, k)


def _int4(m: int, size: int = 8192, group: int = 128) -> Workload:
    def make(arrays: Arrays) -> Arguments:
        words = arrays.integers(-(2**31), 2**31, size, size // 8)
        scales = arrays.cast(arrays.uniform(size // group, size, low=0.5) / 8, "bf16")
        wide = _scaled(arrays, _unpacked(arrays, words) - 8, scales)
        return _operands(arrays, m, words, wide, scales=scales)

    return _weights("int4", m, size, "small_int4", make, 4)


@functools.cache
def _awq_words(size: int) -> Wide:
    """Return words of an AWQ checkpoint's weights, repacked."""
    from aotc.weights import repack_int4

    words = np.random.default_rng(0).integers(0, 1 << 32, (size, size // 8), np.uint32)
    return np.ascontiguousarray(repack_int4(words, "awq")).view(np.int32)


def _int4_zeros(m: int, size: int = 8192, group: int = 128) -> Workload:
    """Return rows times weights of 4 bits with zeros and scales, of an AWQ checkpoint."""

    def make(arrays: Arrays) -> Arguments:
        words = arrays.array(np.roll(_awq_words(size), np.random.randint(size), 0))  # noqa: NPY002
        zeros = arrays.cast(arrays.integers(0, 16, size // group, size), "bf16")
        scales = arrays.cast(arrays.uniform(size // group, size, low=0.5) / 8, "bf16")
        numbers = arrays.cast(_unpacked(arrays, words), "bf16").reshape(size, size // group, -1)
        wide = _scaled(arrays, (numbers - zeros.T[:, :, None]).reshape(size, size), scales)
        return _operands(arrays, m, words, wide, scales=scales, zeros=zeros)

    return _weights("int4 zeros", m, size, "small_int4_zeros", make, 4)


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _mxfp4(m: int, size: int = 8192) -> Workload:
    """Return rows times weights of mxfp4: bf16 holds their values exactly."""

    def make(arrays: Arrays) -> Arguments:
        table = arrays.array([*_E2M1, *(-value for value in _E2M1)], "bf16")
        powers = arrays.array([2.0 ** max(exponent - 127, -126) for exponent in range(255)], "bf16")
        w = arrays.integers(0, 256, size, size // 2, dtype="u8")
        exponents = arrays.integers(118, 126, size, size // 32, dtype="u8")
        numbers = arrays.empty(size, size // 2, 2)
        numbers[..., 0] = table[arrays.cast(w & 15, "i64")]
        numbers[..., 1] = table[arrays.cast(w >> 4, "i64")]
        scales = powers[arrays.cast(exponents, "i64")]
        wide = (numbers.reshape(size, -1, 32) * scales[:, :, None]).reshape(size, size)
        words = arrays.contiguous(arrays.view(exponents, "i32").T)
        return _operands(arrays, m, w, wide, scales=words)

    return _weights("mxfp4", m, size, "mxfp4" if m > 64 else "small_mxfp4", make, 4)


_ROWS = (1, 16, 64, 4096)
ITEMS = {
    "int8": item("Weights of 8 bits, rows in bf16", map(_int8, (4096, 8192))),
    "int4": item("Weights of 4 bits, rows in bf16", map(_int4, _ROWS[:3])),
    "int4-zeros": item("int4 weights with zeros", map(_int4_zeros, _ROWS)),
    "mxfp4": item("mxfp4 weights", map(_mxfp4, _ROWS)),
}
TINY = [
    _int8(128),
    _int4(3, 256),
    _int4_zeros(3, 256),
    _mxfp4(3, 256),
    _mxfp4(80, 256),
]
