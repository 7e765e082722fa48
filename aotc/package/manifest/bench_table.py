"""Read the `[kernel.bench]` table: the work of a launch, and equivalent library calls.

    [kernel.bench]
    flops = "2 * M * N * K"                     # of one launch
    bytes = "(M * K + N * K + M * N) * T"       # a type variable is the bytes of an element
    matmul = ["M", "N", "K"]                    # cuBLAS multiplies M x K by K x N
    attention = ["B", "H", "M", "N", "D", "CAUSAL"]  # cuDNN: N keys for M queries of D elements

Invariant: every name in an expression is an integer argument, a constant or a type variable.
"""

from __future__ import annotations

from collections.abc import Mapping

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.expression_table import read_expression
from aotc.package.manifest.parameters import Function
from aotc.package.manifest.spec import BenchSpec, ManifestExpression
from aotc.package.manifest.toml_table import Table

PEERS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("M", "N", "K"),
    "attention": ("batch", "heads", "queries", "keys", "head size", "causal"),
}
"""Library operations by key, and the names of their extents."""

BENCH_KEYS = ("flops", "bytes", *PEERS)


def read_bench(
    table: Table,
    function: Function,
    signature: Mapping[str, ArgumentType],
    types: Mapping[str, tuple[str, ...]],
) -> BenchSpec:
    """Read the `bench` section of a `[[kernel]]` table. Raises: ManifestError."""
    if not table.has("bench"):
        return BenchSpec()
    section = table.table("bench", BENCH_KEYS)
    sizes = {name: ArgumentType("scalar", "i32") for name in types if name not in signature}
    names = {**signature, **sizes}

    def read(name: str) -> ManifestExpression | None:
        if not section.has(name):
            return None
        return read_expression(section.string(name), section.value_loc(name), function, names)

    peers: dict[str, tuple[ManifestExpression, ...]] = {}
    for name, extents in PEERS.items():
        if section.has(name):
            texts = section.strings(name)
            if len(texts) != len(extents):
                message = (
                    f"expected {len(extents)} extents ({', '.join(extents)}), got {len(texts)}"
                )
                raise ManifestError(message, section.value_loc(name))
            peers[name] = tuple(
                read_expression(text, section.element(name, index), function, names)
                for index, text in enumerate(texts)
            )
    return BenchSpec(read("flops"), read("bytes"), peers)
