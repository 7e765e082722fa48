"""Emit ops during translation, and report users' mistakes.

The builtins of the language (`operators.py`, `memory.py`, …) take an `Emitter`. They place ops
in its current block and are independent of Python syntax. Ops and errors get the compiler's
current location: the expression under translation.

Invariant: `block` is the innermost block being filled; it has no terminator yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from aotc.frontend.values import Operand
from aotc.ir.core import Block, Op, OpT, Value
from aotc.ir.diagnostics import CompileError, Loc, current_loc
from aotc.ir.dialects import tile

_MAX_DEPTH = 64  # later passes walk nested blocks by recursion


def mistake(
    message: str, *, remedy: str = "", loc: Loc | None = None, feature: str = ""
) -> CompileError:
    """Return the error for a user's mistake at `loc`, or at the current location."""
    return CompileError(message, loc or current_loc(), remedy=remedy, feature=feature)


class Emitter:
    """Emitter of ops at the end of `block`, with the kernel's remarks, prints and hints."""

    def __init__(
        self,
        block: Block,
        call: Callable[[Operand, Sequence[Operand]], Operand],
        *,
        debug: bool,
        num_warps: int,
        max_ops: int,
        num_ctas: int = 1,
    ) -> None:
        self.block = block
        self.call = call
        """Call a function of the kernel's source, or of the language, with operands."""
        self.debug = debug
        self.num_warps = num_warps
        self.num_ctas = num_ctas
        self.runs_by_cta = False
        """True if the source distinguishes the CTAs of a cluster."""
        self.remarks: list[str] = []
        self.prints: list[str] = []
        self.hints: dict[tuple[Block, Value], tile.Hint] = {}
        """The kernel's promises about values, by block and operand."""
        self.num_ops = 0
        self.max_ops = max_ops
        self._unrolled: list[tuple[Loc, int]] = []
        self.depth = 0

    def __call__(self, op: OpT, before: Op | None = None) -> OpT:
        """Place `op` in the current block, at its end or before another, and return it."""
        self.num_ops += 1
        if self.num_ops > self.max_ops:
            self._refuse_size()
        self.block.insert(op, before)
        return op

    def _refuse_size(self) -> NoReturn:
        message = f"the kernel expands to more than {self.max_ops} operations"
        outermost = next(iter(self._unrolled), None)
        if outermost is not None:
            message += f", most of them in a loop whose body stands here {outermost[1]} times"
        raise mistake(
            message,
            loc=outermost[0] if outermost else None,
            remedy="use `range` where `tl.static_range` repeats a long body, or raise "
            "`operations` in [kernel.limits]",
        )

    @contextmanager
    def unrolling(self, loc: Loc, num_times: int) -> Generator[None]:
        """Record the loop at `loc` as unrolled `num_times` inside the `with` statement."""
        self._unrolled.append((loc, num_times))
        try:
            yield
        finally:
            self._unrolled.pop()

    @contextmanager
    def into(self, block: Block) -> Generator[Block]:
        """Place ops in `block` inside the `with` statement."""
        if self.depth >= _MAX_DEPTH:
            raise mistake(
                f"run-time loops and branches are nested more than {_MAX_DEPTH} deep",
                remedy="assign parts to variables, or use tl.where",
            )
        outer, self.block = self.block, block
        self.depth += 1
        try:
            yield block
        finally:
            self.block = outer
            self.depth -= 1

    def remark(self, text: str) -> None:
        """Record a remark for the user at the current location, without repeats."""
        loc = current_loc()
        line = f"{loc}: {text}"
        if line not in self.remarks:
            self.remarks.append(line)


class HostEmitter(Emitter):
    """Emitter of host code: refuse ops, since host code has no run-time values."""

    def __init__(self) -> None:
        super().__init__(Block(), self._no_call, debug=False, num_warps=0, max_ops=0)

    def __call__(self, op: Op, before: Op | None = None) -> NoReturn:
        del before
        op.set_slots(())  # drop the uses of the discarded op
        raise mistake(
            "this is known at run time only, and code around kernels computes with constants",
            remedy="move it into a kernel, or write the value out",
        )

    @staticmethod
    def _no_call(callee: Operand, args: Sequence[Operand]) -> NoReturn:
        del callee, args
        raise mistake("only kernels call functions of tl with functions of their own")
