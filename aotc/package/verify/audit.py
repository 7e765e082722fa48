"""Audit the cubins of variants: does the SASS match the verified PTX?

An archive's PTX is assembled again: any difference from its cubin is an error.

A cubin is disassembled and its warps are followed (`aotc.verify.sass`). The audited bytes are the
shipped ones: an archive's own cubins, or those a build would store. To locate a finding in the
source, the kernel is assembled once more with line numbers. Its code may be scheduled a little
differently, so lines are used only where the findings are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from aotc.compiler import CompiledKernel, CompileRequest, compile_kernel, compile_ptx
from aotc.ir.diagnostics import CompileError, IRError, ResourceError
from aotc.package.archive.elf import toolchain_of
from aotc.package.builder.toolchain import toolchain_text
from aotc.package.builder.workers import compile_both_ways
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.package.verify.variants import VariantResult
from aotc.stages import disassemble, disassemble_located, reassembled_difference
from aotc.target import Target
from aotc.verify.sass.audit import audit
from aotc.verify.sass.findings import Finding

_TOOL_SECTION = ".note.nv.tkinfo"  # names the ptxas of a cubin; it comes before code


@dataclass(frozen=True, slots=True)
class _Cubin:
    """A cubin, its PTX, and a function for the PTX with line numbers."""

    content: bytes
    ptx: str
    target: Target
    located_ptx: Callable[[], str]


def verify_and_audit(
    subject: Subject,
    options: VerifyOptions,
    verify: Callable[[Subject, VerifyOptions], VariantResult],
) -> VariantResult:
    """Verify a variant and, if it fits its target, audit its cubins.

    A variant with too many spills is dropped, as by a build, though its PTX may be right.

    Raises: as `verify`, and CompileError if a cubin cannot be built.
    """
    result = verify(subject, options)
    if result.dropped:
        return result
    try:
        return replace(result, cubins=audit_variant(subject))
    except ResourceError as error:
        return replace(result, findings=(), fallback=None, dropped=error.message)


def audit_variant(subject: Subject) -> tuple[tuple[Finding, ...], ...]:
    """Return the findings in each cubin of a variant; the one with tensor maps comes first.

    Raises: ResourceError if none fits the target, and CompileError if a cubin cannot be built.
    """
    if subject.archived is None:
        return tuple(_audit(cubin) for cubin in _cubins(subject))
    return tuple((*_compare(cubin, subject.label), *_audit(cubin)) for cubin in _cubins(subject))


def _compare(cubin: _Cubin, label: str) -> Iterator[Finding]:
    """Yield a finding if the cubin differs from its assembled PTX.

    Raises: CompileError if another ptxas built it, or the PTX is invalid.
    """
    try:
        section = reassembled_difference(cubin.content, cubin.ptx, cubin.target)
    except (IRError, ValueError) as error:
        message = f"cannot compare the cubin of {label} with its PTX: {error}"
        raise CompileError(message, remedy="build the archive again") from None
    if section == _TOOL_SECTION:
        message = (
            f"expected the cubin of {label} to be of {toolchain_text(cubin.target.toolchain)}, "
            "another ptxas made it"
        )
        raise CompileError(message, remedy="verify it with the versions that `aotc inspect` shows")
    if section:
        meaning = "the cubin does other than the PTX that was verified: build the archive again"
        yield Finding("other code", 0, f"section {section}", meaning)


def _cubins(subject: Subject) -> Iterator[_Cubin]:
    target = subject.target
    if subject.archived is not None:
        assert subject.stored is not None
        content, ptx = subject.archived[1].cubin, subject.stored.ptx
        assembled_by = target.assembled_by(toolchain_of(content))
        yield _Cubin(content, ptx, assembled_by, lambda: ptx)
        return
    assert subject.request is not None
    compiled: dict[bytes, tuple[CompileRequest, str]] = {}

    def compiler(request: CompileRequest) -> CompiledKernel:
        kernel = compile_kernel(request)
        compiled[kernel.cubin] = request, kernel.asm["ptx"]
        return kernel

    kernel = compile_both_ways(compiler, subject.request)
    if kernel.is_misfit:
        raise ResourceError(kernel.misfit)
    limit = subject.target.max_shared_bytes
    while kernel is not None:
        if kernel.metadata.shared_bytes <= limit:
            request, ptx = compiled[kernel.cubin]
            yield _Cubin(kernel.cubin, ptx, target, partial(_located_ptx, request))
        kernel = kernel.fallback


def _located_ptx(request: CompileRequest) -> str:
    return compile_ptx(request).ptx


def _audit(cubin: _Cubin) -> tuple[Finding, ...]:
    findings = audit(disassemble(cubin.content), cubin.ptx)
    if not any(finding.is_failure and not finding.source for finding in findings):
        return findings
    ptx = cubin.located_ptx()
    located = audit(disassemble_located(ptx, cubin.target), ptx)
    if [_identity(finding) for finding in located] != [_identity(finding) for finding in findings]:
        return findings
    return tuple(
        replace(finding, source=other.source)
        for finding, other in zip(findings, located, strict=True)
    )


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.kind, finding.text
