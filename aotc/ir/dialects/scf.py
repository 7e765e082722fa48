"""Structured control flow: loops and branches as nested blocks.

A loop carries values: its init operands enter as block arguments, `yield` hands them to the next
iteration, and the values carried out of the last one are the results. There is no break and no
branch out, so a kernel is a tree and every pass is a walk over it.

Invariant: a carried value has one type through init, block argument, yield and result.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value, attribute, block, operand, operands, results
from aotc.ir.effects import Resource, Trait, writes
from aotc.ir.types import I1, ScalarType, Type

NEVER_UNROLLED = 1
"""The `unroll` of a loop that LLVM and ptxas are to leave as it is."""


class Yield(Op, opcode="scf.yield", pure=True, traits=(Trait.TERMINATOR,)):
    """End a block and hand its values to the enclosing op."""

    values: Sequence[Value] = operands()


class Return(
    Op, opcode="scf.return", effects=(writes(Resource.CONTROL),), traits=(Trait.TERMINATOR,)
):
    """End the kernel."""


class Condition(Op, opcode="scf.condition", pure=True, traits=(Trait.TERMINATOR,)):
    """End the `before` block of a while loop: go on with `values` if `proceed`, else leave."""

    proceed: Value = operand()
    values: Sequence[Value] = operands()


class For(Op, opcode="scf.for", pure=True, traits=(Trait.CONTROL_FLOW, Trait.LOOP)):
    """Run `body` for the induction variable from `lower` up to but without `upper`.

    `body` takes the induction variable and the carried values. `step` is positive. Attributes
    are the source's hints; 0 or False leaves the choice to the compiler.
    """

    lower: Value = operand()
    upper: Value = operand()
    step: Value = operand()
    init: Sequence[Value] = operands()
    body: Block = block()
    num_stages: int = attribute(default=0)
    unroll: int = attribute(default=0)
    flatten: bool = attribute(default=False)
    warp_specialize: bool = attribute(default=False)
    disallow_acc_multi_buffer: bool = attribute(default=False)
    outs: Sequence[Value] = results()

    @property
    def induction(self) -> Value:
        """The induction variable."""
        return self.body.args[0]

    @property
    def carried(self) -> list[Value]:
        """The block arguments of the carried values."""
        return self.body.args[1:]

    def infer(self) -> Sequence[Type]:
        kind = self.lower.type
        self.expect(isinstance(kind, ScalarType) and kind.is_int, f"bounds are {kind}")
        self.expect(
            self.upper.type == kind and self.step.type == kind, "bounds and step differ in type"
        )
        types = [value.type for value in self.init]
        _expect_types(self, "block arguments", self.body.args, [kind, *types])
        _expect_types(self, "yielded values", self.body.terminator.operands, types)
        return types


class If(Op, opcode="scf.if", pure=True, traits=(Trait.CONTROL_FLOW,)):
    """Run `then` if the condition holds, else `orelse`; both yield values of the same types."""

    condition: Value = operand()
    then: Block = block()
    orelse: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        self.expect(self.condition.type == I1, f"the condition is {self.condition.type}, not i1")
        types = [value.type for value in self.then.terminator.operands]
        _expect_types(self, "values yielded by `else`", self.orelse.terminator.operands, types)
        return types


class While(
    Op,
    opcode="scf.while",
    effects=(),
    traits=(Trait.CONTROL_FLOW, Trait.LOOP, Trait.MAY_NOT_END),
):
    """Run `before`; while its condition holds, run `after`; results come from `before`.

    Never pure: it may not end.
    """

    init: Sequence[Value] = operands()
    before: Block = block()
    after: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        condition = self.before.terminator
        self.expect(isinstance(condition, Condition), "`before` must end in scf.condition")
        passed = [value.type for value in condition.operands[1:]]
        _expect_types(self, "arguments of `before`", self.before.args, [v.type for v in self.init])
        _expect_types(self, "arguments of `after`", self.after.args, passed)
        _expect_types(
            self,
            "values yielded by `after`",
            self.after.terminator.operands,
            [value.type for value in self.init],
        )
        return passed


def _expect_types(op: Op, role: str, values: Sequence[Value], types: Sequence[Type]) -> None:
    actual = [value.type for value in values]
    if actual != list(types):
        shown = ", ".join(map(str, actual)), ", ".join(map(str, types))
        op.error(f"{role} are ({shown[0]}), expected ({shown[1]})")
