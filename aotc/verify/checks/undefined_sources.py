"""Name the op whose undefined values change a result, with a remedy at its line.

Invariant: an op is named only if changing its undefined elements alone changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aotc.ir.core import Kernel, Op
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import arith, tile
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.inputs import Inputs, prepared
from aotc.verify.checks.open_results import POISON_SEEDS, changed_buffer, depends_on_undefined
from aotc.verify.checks.reference import Reference, run_launch
from aotc.verify.interpreter.numerics import Poison
from aotc.verify.interpreter.program import InterpretError, Program, Rule, Rules
from aotc.verify.interpreter.run import RULES

_MAX_SUSPECTS = 16  # each takes a few interpretations
_ANY_SOURCE = (
    "the result in {} depends on undefined values: of lanes that are masked off without `other`, "
    "conversions that do not fit an integer, divisions of integers by zero, or shifts past the width"
)
_DIVISION = ("a division by zero", "say in [kernel.verify] what the divisor may be")
_SHIFT = ("a shift past the width", "say in [kernel.verify] what the amount may be")
# The undefined elements of an op, and the remedy.
_MEANINGS: Mapping[type[Op], tuple[str, str]] = {
    tile.Load: ("lanes that this load's mask leaves out", "give other="),
    tile.AtomicRmw: ("lanes that this atomic's mask leaves out", "mask what uses its result"),
    arith.Cast: (
        "floats that do not fit the integer they are converted to",
        "clamp them first, or say in [kernel.verify] what the arguments may be",
    ),
    arith.Div: _DIVISION,
    arith.Rem: _DIVISION,
    arith.Shl: _SHIFT,
    arith.Shr: _SHIFT,
}


def undefined_text(
    kernel: Kernel,
    roles: Roles,
    reference: Reference,
    inputs: Inputs,
    seeds: Sequence[int] = POISON_SEEDS,
) -> str:
    """Return a report if a launch's result depends on undefined values, else ""."""
    name = depends_on_undefined(kernel, roles, reference, inputs, seeds)
    if not name:
        return ""
    for op in _askers(kernel, roles, reference, inputs)[:_MAX_SUSPECTS]:
        buffer = _changed_by(op, kernel, roles, reference, inputs)
        if buffer:
            meaning, remedy = _MEANINGS[type(op)]
            message = f"the result in {buffer} depends on undefined values: {meaning}"
            return CompileError(message, op.loc, remedy=remedy).render()
    return _ANY_SOURCE.format(name)


def _askers(kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> Sequence[Op]:
    """Return the sources of undefined values at a launch, in program order."""
    askers: dict[Op, None] = {}

    def watching(base: Rule) -> Rule:
        def rule(program: Program, op: Op, *operands: Any) -> Any:
            before, program.poison.was_asked = program.poison.was_asked, False
            outs = base(program, op, *operands)
            if program.poison.was_asked:
                askers[op] = None
            program.poison.was_asked |= before
            return outs

        return rule

    launch = reference.launch
    memory, args = prepared(kernel, roles, launch, inputs)
    try:
        run_launch(kernel, launch, memory, args, _replaced(watching), 0)
    except InterpretError:
        return []
    return [op for op in kernel.walk() if op in askers]


def _changed_by(op: Op, kernel: Kernel, roles: Roles, reference: Reference, inputs: Inputs) -> str:
    """Return the buffer whose results change with the undefined values of one op, or ""."""
    names = list(reference.buffers)
    for seed in POISON_SEEDS:
        poison = Poison(seed)

        def changing(base: Rule, poison: Poison = poison) -> Rule:
            def rule(program: Program, other: Op, *operands: Any) -> Any:
                if other is not op:
                    return base(program, other, *operands)
                outer, program.poison = program.poison, poison
                try:
                    return base(program, other, *operands)
                finally:
                    program.poison = outer

            return rule

        rules = _replaced(changing)
        name = changed_buffer(kernel, roles, reference, inputs, names, rules=rules)
        if name:
            return name
    return ""


def _replaced(wrap: Callable[[Rule], Rule]) -> Rules:
    """Return the interpreter's rules, wrapped for sources of undefined values."""
    return {**RULES, **{kind: wrap(RULES[kind]) for kind in _MEANINGS}}
