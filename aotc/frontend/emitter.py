"""Where ops go while a kernel is translated, and how mistakes are reported from there.

The functions of the language (`operators.py`, `memory.py`, …) get an `Emitter`: they place ops in
its current block and know nothing of Python syntax. The location of the expression being
translated is the compiler's current location, so an op and an error need not be told theirs.

Invariant: `block` is the innermost block being filled; it has no terminator yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from aotc.frontend.values import Operand
from aotc.ir.core import Block, OpT
from aotc.ir.diagnostics import CompileError, Loc, current_loc

_MAX_OPS = 400_000
_MAX_DEPTH = 64  # later passes walk nested blocks by recursion


def mistake(message: str, *, remedy: str = "", loc: Loc | None = None) -> CompileError:
    """Return the error to raise for a user's mistake at `loc`, or where translation stands."""
    return CompileError(message, loc or current_loc(), remedy=remedy)


class Emitter:
    """Place ops at the end of `block`; hold what the whole kernel gathers on the way."""

    def __init__(
        self,
        block: Block,
        call: Callable[[Operand, Sequence[Operand]], Operand],
        *,
        debug: bool,
        num_warps: int,
    ) -> None:
        self.block = block
        self.call = call
        """Call a function of the kernel's source, or of the language, with operands."""
        self.debug = debug
        self.num_warps = num_warps
        self.remarks: list[str] = []
        self.prints: list[str] = []
        self.num_ops = 0
        self.depth = 0

    def __call__(self, op: OpT) -> OpT:
        """Place `op` at the end of the current block and return it."""
        self.num_ops += 1
        if self.num_ops > _MAX_OPS:
            raise mistake(
                f"the kernel expands to more than {_MAX_OPS} operations",
                remedy="use `range` where `tl.static_range` repeats a long body",
            )
        self.block.insert(op)
        return op

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
        """Note something the user may want to know, once."""
        loc = current_loc()
        line = f"{loc}: {text}"
        if line not in self.remarks:
            self.remarks.append(line)
