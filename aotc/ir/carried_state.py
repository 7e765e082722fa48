"""A state, a list of values, threaded through the loops and branches around the ops that update it.

What follows the program's order without being in memory, as the phase of a mbarrier, is a value
that each op which updates it replaces by another one. A loop around such an op carries the value,
a branch returns it. Regions that update none of a state are left as they are.

Invariant: on every path, an op that updates the state finds it as the last one before it left it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.rewrite import append_carried, pass_on

State = list[Value]


class CarriedState:
    """Walk ops in program order with a state; subclasses say which ops update it, and how."""

    def updated_by(self, op: Op, state: State) -> State | None:
        """Return the state after an op that updates it itself, or None for any other."""
        raise NotImplementedError

    def indices_in(self, op: Op) -> Sequence[int]:
        """Return the indices of the values that ops nested in `op` update."""
        raise NotImplementedError

    def hint(self, index: int) -> str:
        """Return the name of a value where a loop carries it."""
        raise NotImplementedError

    def visit(self, block: Block, state: State) -> State:
        """Thread the state through the ops of a block; return it as it is at the end."""
        for op in block:
            updated = self.updated_by(op, state)
            if updated is not None:
                state = updated
            elif op.blocks:
                state = self.through(op, state)
        return state

    def through(self, op: Op, state: State) -> State:
        """Thread the state through a loop or branch; return it as it comes out."""
        indices = self.indices_in(op)
        if not indices:
            return state
        is_loop, count = isinstance(op, scf.For | scf.While), len(op.results)
        for block in op.blocks:
            entry = list(state)
            for index in indices if is_loop else ():
                entry[index] = block.add_arg(state[index].type, self.hint(index))
            end = self.visit(block, entry)
            pass_on(block, [end[index] for index in indices])
        made = append_carried(op, [state[index] for index in indices] if is_loop else ())
        after = list(state)
        for index, value in zip(indices, made.results[count:], strict=True):
            after[index] = value
        return after
