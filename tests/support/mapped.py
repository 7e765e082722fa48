"""A kernel over pointers, also compiled with a tensor map without the compiler's proof.

The second form is written by hand, over a descriptor, and stands in for the compiler's rewrite of
the first. It tests how a build, an archive, a launch and `aotc verify` handle such a pair,
independently of the analysis. In a module of its own because worker processes import the compiler
by name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aotc.compiler import (
    CompiledKernel,
    CompileRequest,
    PtxKernel,
    compile_kernel,
    compile_ptx,
)
from aotc.metadata import ParamSlot

KERNELS = """import triton
import triton.language as tl


@triton.jit
def twice(x_ptr, out_ptr, rows, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    m = row + tl.arange(0, BLOCK)
    for column in range(0, cols, 32):
        n = column + tl.arange(0, 32)
        inside = (m[:, None] < rows) & (n[None, :] < cols)
        x = tl.load(x_ptr + m[:, None] * stride + n[None, :], mask=inside, other=0.0)
        tl.store(out_ptr + m[:, None] * stride + n[None, :], x * 2, mask=inside)


@triton.jit
def twice_mapped(x_ptr, out_ptr, rows, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    m = row + tl.arange(0, BLOCK)
    for column in range(0, cols, 32):
        n = column + tl.arange(0, 32)
        inside = n[None, :] < cols
        x = x_ptr.load([row, column])
        tl.store(out_ptr + m[:, None] * stride + n[None, :], x * 2, mask=inside)
"""
MANIFEST = """
[package]
name = "mapped"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernel.py:twice"
grid = ["cdiv(rows, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
out_ptr = "*fp32:16"
rows = "i32"
cols = "i32"
stride = "i32:16"
[kernel.configs]
BLOCK = [16, 32]
"""

_EXTENTS = ("max(1, rows)", "max(1, cols)")


def condition(block: int) -> str:
    """Return the guards and driver conditions not implied by the signature's promises."""
    return f"rows % {block} == 0 and stride >= 0"


def written(folder: Path) -> Path:
    """Write the kernels and the manifest into a folder and return the manifest's path."""
    (folder / "kernel.py").write_text(KERNELS, encoding="utf-8")
    path = folder / "kernels.toml"
    path.write_text(MANIFEST, encoding="utf-8")
    return path


def compile_mapped(request: CompileRequest) -> CompiledKernel:
    """Compile like `compile_kernel`, with the load turned into a tensor copy."""
    if not _is_mapped(request):
        return compile_kernel(request)
    compiled_kernel = compile_kernel(_by_hand(request))
    params = tuple(map(_from_pointer, compiled_kernel.metadata.params))
    metadata = replace(compiled_kernel.metadata, params=params, guards=_guards(request))
    if not request.with_ptx:
        return replace(compiled_kernel, metadata=metadata)
    plain = compile_kernel(replace(request, map_pointers=False))
    return replace(
        compiled_kernel, metadata=metadata, asm={**compiled_kernel.asm, "tile": plain.asm["tile"]}
    )


def compile_mapped_ptx(request: CompileRequest) -> PtxKernel:
    """Compile as `compile_ptx` would, likewise."""
    plain = compile_ptx(replace(request, map_pointers=False))
    if not _is_mapped(request):
        return plain
    compiled_kernel = compile_ptx(_by_hand(request))
    params = tuple(map(_from_pointer, compiled_kernel.params))
    return replace(compiled_kernel, tile_ir=plain.tile_ir, params=params, guards=_guards(request))


def _is_mapped(request: CompileRequest) -> bool:
    return request.map_pointers and request.target == "sm_90a"


def _guards(request: CompileRequest) -> tuple[str, ...]:
    block = dict(request.constants)["BLOCK"]
    return (f"rows % {block} == 0",)


def _by_hand(request: CompileRequest) -> CompileRequest:
    block = dict(request.constants)["BLOCK"]
    types = {**dict(request.signature), "x_ptr": f"tensordesc<fp32[{block},32]>"}
    signature = tuple(types.items())
    return replace(request, kernel="twice_mapped", signature=signature, map_pointers=False)


def _from_pointer(slot: ParamSlot) -> ParamSlot:
    spec = slot.tensor_map
    if spec is None:
        return slot
    return replace(slot, tensor_map=replace(spec, shape=_EXTENTS, strides=("stride",)))
