"""A state, a list of values, threaded through loops and branches in program order.

The phase of a mbarrier is such a state: it follows the program's order and is not in memory. Each
op that updates the state replaces its values. A loop around such an op carries them, a branch
returns them. Regions without an update stay as they are.

Invariant: on every path, an op sees the state as the op before it on that path left it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.rewrite import append_carried, pass_on

State = list[Value]


class CarriedState:
    """Walk ops in program order with a state; subclasses define the updates."""

    def updated_by(self, op: Op, state: State) -> State | None:
        """Return the state after an op with an update of its own, or None for any other."""
        raise NotImplementedError

    def indices_in(self, op: Op) -> Sequence[int]:
        """Return the indices of the values updated by ops nested in `op`."""
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
        extended = append_carried(op, [state[index] for index in indices] if is_loop else ())
        after = list(state)
        for index, value in zip(indices, extended.results[count:], strict=True):
            after[index] = value
        return after
