"""Lowering rules, one module for each family of ops; importing this package registers them all."""

from __future__ import annotations

from aotc.backend.rules import (
    arith,
    assembly,
    async_copy,
    atomic,
    cast,
    control,
    convert,
    dot,
    grid,
    indexing,
    math,
    memory,
    printing,
    reduce,
    roles,
    scan,
    shape,
    shared,
    tensor,
    wgmma,
)

__all__ = [
    "arith",
    "assembly",
    "async_copy",
    "atomic",
    "cast",
    "control",
    "convert",
    "dot",
    "grid",
    "indexing",
    "math",
    "memory",
    "printing",
    "reduce",
    "roles",
    "scan",
    "shape",
    "shared",
    "tensor",
    "wgmma",
]
