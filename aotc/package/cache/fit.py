"""Check that a cached kernel belongs to its request.

Digests and names show that an entry is intact and in its place, not that its writer stored the
right kernel: a cache may be shared by many machines.
"""

from __future__ import annotations

from aotc.compiler import CompileRequest
from aotc.ir.params import GRID_SOURCES, SCRATCH_SOURCE
from aotc.package.archive.elf import check_cubin
from aotc.package.archive.index import ArchiveError
from aotc.package.cache.store import CachedKernel


def fit_problem(kernel: CachedKernel, request: CompileRequest) -> str:
    """Return why a kernel cannot be the result of compiling `request`, or an empty string."""
    metadata = kernel.metadata
    if (metadata.name, metadata.target) != (request.kernel, request.target):
        expected = f"{request.kernel} for {request.target}"
        return f"expected {expected}, got {metadata.name} for {metadata.target}"
    arguments = {name for name, _ in request.signature} | {*GRID_SOURCES, SCRATCH_SOURCE}
    for slot in metadata.params:
        if slot.argument not in arguments:
            return f"it takes {slot.argument!r}, which is no argument of {request.kernel}"
    if not kernel.is_misfit:
        try:
            check_cubin(
                kernel.cubin, metadata.target, metadata.symbol, metadata.static_shared_bytes
            )
        except ArchiveError as error:
            return error.message
    return "" if kernel.fallback is None else fit_problem(kernel.fallback, request)
