"""Find compiles in a cache, also those of a build that keeps more of a kernel.

A build `--with-ptx` has all that a plain one needs.
"""

from __future__ import annotations

from dataclasses import replace

from aotc.compiler import CompileRequest
from aotc.package.cache.store import Cache, CachedKernel


def find_shared(cache: Cache, request: CompileRequest) -> CachedKernel | None:
    """Return the cached result of a request, or None if there is none."""
    kernel = cache.find(request)
    if kernel is None and not request.with_ptx:
        kernel = cache.find(replace(request, with_ptx=True))
        return None if kernel is None else _without_ptx(kernel)
    return kernel


def has_shared(cache: Cache, request: CompileRequest) -> bool:
    """Return whether `find_shared` will probably succeed."""
    with_ptx = replace(request, with_ptx=True)
    return cache.has(request) or (not request.with_ptx and cache.has(with_ptx))


def _without_ptx(kernel: CachedKernel) -> CachedKernel:
    fallback = None if kernel.fallback is None else _without_ptx(kernel.fallback)
    return replace(kernel, ptx=None, fallback=fallback)
