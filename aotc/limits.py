"""Limits of one variant: the compiler's time and memory, and a thread's registers.

A kernel out of bounds is refused with its reason, if possible before the time is spent. A limit
refuses or does not: within it, the result is the same whatever its value. Limits of time and memory
are far off, so no result depends on the speed of a machine.

Spilled registers are a price, not a fault: their limit decides between configs, and refuses a
kernel only if it is strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from aotc.ir.diagnostics import CompileError, did_you_mean

SPILL_BYTES = "spill_bytes"
"""The limit of what is shipped, not of what is compiled: spilled registers of a thread."""
DEFAULT_SPILL_BYTES = 256
HOPELESS_REGISTERS = 2 * 255
"""With more live registers than these a kernel is sure to spill: a thread has half of them."""
HOPELESS_SPILL_BYTES = 4 * (HOPELESS_REGISTERS - 255)
STRICT = "strict"
"""Whether a kernel is refused if all its configs spill beyond the limit."""


@dataclass(frozen=True)
class CompileLimits:
    """Bound the compile of one variant.

    `operations` counts the source's once its calls and static loops are expanded. `live_registers`
    is the estimate of a thread's registers for live tiles, before code is generated. `instructions`
    counts the generated ones. `ptxas_seconds` and `ptxas_mebibytes` bound each run of ptxas. A
    thread has at most 255 registers; with sixteen times as many live ones ptxas takes minutes.
    """

    operations: int = 30_000
    live_registers: int = 4080
    instructions: int = 100_000
    ptxas_seconds: int = 300
    ptxas_mebibytes: int = 8192


DEFAULT_LIMITS = CompileLimits()
COMPILE_LIMITS = tuple(field.name for field in fields(CompileLimits))
LIMITS = (SPILL_BYTES, *COMPILE_LIMITS)
LIMIT_KEYS = (*LIMITS, STRICT)
# ptxas needs some 100 MiB for the smallest kernel; with less it crashes without a clear reason.
_LEAST = {SPILL_BYTES: 0, "ptxas_mebibytes": 256}


def limit_problem(name: str, value: object) -> str:
    """Return the problem of a limit's value, or an empty string."""
    if name == STRICT:
        return (
            "" if isinstance(value, bool) else f"expected true or false for {name}, got {value!r}"
        )
    least = _LEAST.get(name, 1)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return ""
    return f"expected an integer from {least} on for {name}, got {value!r}"


def split_limits(limits: Mapping[str, object]) -> tuple[int | None, dict[str, object]]:
    """Return how many bytes may be spilled, None for any, and the given limits of the compile.

    Raises: CompileError.
    """
    of_compile = dict(limits)
    spill_bytes = of_compile.pop(SPILL_BYTES, DEFAULT_SPILL_BYTES)
    strict = of_compile.pop(STRICT, False)
    problem = limit_problem(SPILL_BYTES, spill_bytes) or limit_problem(STRICT, strict)
    if problem:
        raise CompileError(problem)
    return int(str(spill_bytes)) if strict else None, of_compile


def compile_limits(limits: Mapping[str, object]) -> CompileLimits:
    """Return the given limits, defaults elsewhere. Raises: CompileError."""
    for name, value in limits.items():
        if name not in COMPILE_LIMITS:
            listed = ", ".join(LIMIT_KEYS)
            remedy = did_you_mean(name, LIMIT_KEYS)
            raise CompileError(f"expected a limit ({listed}), got {name!r}", remedy=remedy)
        problem = limit_problem(name, value)
        if problem:
            raise CompileError(problem)
    return CompileLimits(**{name: int(str(value)) for name, value in limits.items()})
