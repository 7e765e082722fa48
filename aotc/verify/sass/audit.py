"""Audit the text of a cubin: all rules on all of its functions."""

from __future__ import annotations

from collections.abc import Iterator

from aotc.verify.sass.apart import find_apart
from aotc.verify.sass.convergence import analyze
from aotc.verify.sass.findings import Finding
from aotc.verify.sass.flow import build_graph
from aotc.verify.sass.in_flight import find_touched
from aotc.verify.sass.spills import find_spills
from aotc.verify.sass.stack import find_overwritten_stack
from aotc.verify.sass.text import Function, SassError, parse
from aotc.verify.sass.warpgroups import find_dropped_registers, find_merged, find_serialized


def audit(sass: str, ptx: str = "") -> tuple[Finding, ...]:
    """Return the findings on a cubin, from nvdisasm's text.

    With the PTX it was assembled from, instructions dropped by ptxas show as well.
    """
    try:
        functions = parse(sass)
    except SassError as error:
        return (Finding("unreadable", 0, "", str(error)),)
    findings: list[Finding] = []
    for function in functions:
        findings += _audit_function(function)
    instructions = tuple(
        instruction for function in functions for instruction in function.instructions
    )
    findings += find_serialized(instructions, ptx)
    findings += find_merged(instructions, ptx)
    findings += find_dropped_registers(instructions, ptx)
    return tuple(sorted(findings, key=lambda finding: (finding.kind, finding.address)))


def _audit_function(function: Function) -> Iterator[Finding]:
    try:
        graph = build_graph(function)
    except SassError as error:
        yield Finding("unreadable", 0, function.name, str(error))
        return
    yield from find_apart(graph, analyze(graph))
    yield from find_touched(graph)
    yield from find_spills(graph)
    yield from find_overwritten_stack(function)
