"""Fragments: the matrix elements in each register of each lane of a warp.

All of `mma.sync` and `wgmma` share three patterns, one per operand, which differ only in element
size. A quad of lanes lies along a row, and eight quads are eight rows. Registers go first over the
halves of 16 rows, then along the row. So three constructors make every table of the PTX ISA
("Matrix Fragments for mma.m16n8k16", …). They follow that text, independent of the compiler's
layouts, which they check.

Invariant: a fragment is a bijection between (register, lane, part) and the elements of its matrix.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from aotc.verify.arrays import Array, reshape, view

WARP_LANES = 32


class Fragment:
    """Hold one warp's share of a matrix: `positions` maps (register, lane, part) to row-major."""

    def __init__(self, rows: int, cols: int, element_bits: int, positions: Array) -> None:
        self.rows = rows
        self.cols = cols
        self.element_bits = element_bits
        self.positions = positions

    @property
    def num_registers(self) -> int:
        """Registers a lane holds."""
        return self.positions.shape[0]

    @property
    def register_bits(self) -> int:
        """Width of each register: 64 for fp64, else 32."""
        return self.positions.shape[2] * self.element_bits

    @cached_property
    def _sources(self) -> Array:
        """For each element, row-major, its index in (register, lane, part) order."""
        return np.argsort(self.positions, axis=None)

    def gather(self, registers: Array) -> Array:
        """Return the elements' bits (n, rows, cols) held in registers (n, registers, 32)."""
        parts = split_bits(registers, self.element_bits)
        return reshape(reshape(parts, len(parts), -1)[:, self._sources], -1, self.rows, self.cols)

    def scatter(self, elements: Array) -> Array:
        """Return registers (n, registers, 32) with the elements' bits (n, rows, cols)."""
        parts = reshape(elements, len(elements), -1)[:, self.positions]
        return join_bits(parts, self.element_bits)


def split_bits(words: Array, element_bits: int) -> Array:
    """Cut unsigned words into elements, the low bits first, along a new last axis."""
    words = np.ascontiguousarray(words)
    if element_bits >= 8:
        dtype = np.dtype(f"u{element_bits // 8}")
        return reshape(view(words, dtype), *words.shape, -1)
    octets = reshape(view(words, np.uint8), *words.shape, -1, 1)
    shifts = np.arange(0, 8, element_bits, dtype=np.uint8)
    parts = octets >> shifts & np.uint8((1 << element_bits) - 1)
    return reshape(parts, *words.shape, -1)


def join_bits(parts: Array, element_bits: int) -> Array:
    """Undo `split_bits` for elements of whole bytes: words as wide as the last axis."""
    parts = np.ascontiguousarray(parts)
    dtype = np.dtype(f"u{parts.shape[-1] * element_bits // 8}")
    return view(parts, dtype)[..., 0]


def _grid(num_registers: int, width: int) -> tuple[Array, Array, Array]:
    """Return the coordinates register, lane and part, ready to broadcast."""
    register, lane, part = np.ogrid[:num_registers, :WARP_LANES, :width]
    return register, lane, part


def _per_register(element_bits: int) -> int:
    return max(1, 32 // element_bits)


@lru_cache(maxsize=256)
def operand_a(rows: int, k: int, element_bits: int) -> Fragment:
    """Return the fragment of A (rows x k), `rows` being 8 or 16.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k…", "Register Fragments for wgmma…": A.
    """
    width, halves = _per_register(element_bits), rows // 8
    register, lane, part = _grid(rows * k // (WARP_LANES * width), width)
    row = (lane >> 2) + 8 * (register % halves)
    col = (lane & 3) * width + part + 4 * width * (register // halves)
    return Fragment(rows, k, element_bits, row * k + col)


@lru_cache(maxsize=256)
def operand_b(k: int, element_bits: int) -> Fragment:
    """Return the fragment of B (k x 8).

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k…": B.
    """
    width = _per_register(element_bits)
    register, lane, part = _grid(8 * k // (WARP_LANES * width), width)
    row = (lane & 3) * width + part + 4 * width * register
    return Fragment(k, 8, element_bits, row * 8 + (lane >> 2))


@lru_cache(maxsize=256)
def accumulator(rows: int, n: int, element_bits: int) -> Fragment:
    """Return the fragment of C and D (rows x n), `rows` being 8 or 16 and `n` a multiple of 8.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k…", "Register Fragments for wgmma…": D.
    """
    width, halves = _per_register(element_bits), rows // 8
    register, lane, part = _grid(rows * n // (WARP_LANES * width), width)
    element = register * width + part
    row = (lane >> 2) + 8 * (element // 2 % halves)
    col = (lane & 3) * 2 + element % 2 + 8 * (element // (2 * halves))
    return Fragment(rows, n, element_bits, row * n + col)
