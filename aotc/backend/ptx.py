"""LLVM IR text to PTX text.

Only the code generator runs: the rules emit none of the redundancy that LLVM's optimiser removes,
and ptxas optimises again. But unused values are removed before. A rule computes all registers of a
tile and its users may need few; strength reduction compares all with each other. Kernels that call
libdevice need passes besides, to inline it.
"""

from __future__ import annotations

import re

from aotc.backend.debug import LineTable
from aotc.backend.libdevice import resolve
from aotc.backend.llvm import parse, run_passes, target_machine
from aotc.backend.llvm_visits import bound_visits
from aotc.backend.ptx_constants import hide_constant_fragments
from aotc.backend.ptx_fragments import keep_fragments_apart
from aotc.backend.ptx_halves import split_by_shifts
from aotc.backend.result_cache import ResultCache
from aotc.target import TARGETS, Target

_BANNER = re.compile(r"\A(?://[^\n]*\n)+\n*")
_VERSION = re.compile(r"^\.version [0-9.]+", re.MULTILINE)
_TARGET = re.compile(r"^\.target \w+", re.MULTILINE)


_results: ResultCache[str] = ResultCache()


def emit_ptx(
    llvm_ir: str, target: Target, line_table: LineTable | None = None, *, reuses: bool = False
) -> str:
    """Return the PTX of a module of LLVM IR, with its line table.

    With `reuses` it may come from this process's cache for the same module.

    Raises: IRError if the text is invalid LLVM IR, or calls an unknown libdevice function.
    """
    sibling = TARGETS.get(target.lowered_as, target)
    ptx = _results.find(llvm_ir, sibling.name) if reuses else None
    if ptx is None:
        ptx = _emit(llvm_ir, sibling)
        if reuses:
            _results.keep(llvm_ir, sibling.name, ptx, len(ptx))
    if sibling is not target:
        ptx = _for_target(ptx, target)
    return ptx if line_table is None else line_table.placed(ptx)


def _for_target(ptx: str, target: Target) -> str:
    """Return the PTX of a sibling as that of a target, by its first two directives."""
    version = "{}.{}".format(*target.ptx_version)
    ptx = _VERSION.sub(f".version {version}", ptx, count=1)
    return _TARGET.sub(f".target {target.name}", ptx, count=1)


def _emit(llvm_ir: str, target: Target) -> str:
    resolved = resolve(llvm_ir, target.arch)
    module = parse(bound_visits(resolved))
    if resolved != llvm_ir:
        run_passes(module, ("always_inliner", "global_dead_code_eliminate"))
    run_passes(module, ("dead_code_elimination",))
    ptx = _BANNER.sub("", target_machine(target).emit_assembly(module))
    return keep_fragments_apart(hide_constant_fragments(split_by_shifts(ptx)))
