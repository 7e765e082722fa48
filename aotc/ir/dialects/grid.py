"""A CTA's place in its cluster, and programmatic dependent launch.

Under programmatic dependent launch a grid may start while the one before it still runs. What that
one writes is visible only after `grid.wait`, which the kernel itself places: a launch without the
overlap attribute waits anyway, and both ops then do nothing. They are the same in tile IR
and in gpu IR.

Invariant: no access to memory crosses a `grid.wait`, in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value, result
from aotc.ir.dialects import scf
from aotc.ir.effects import Resource, Trait, orders, writes
from aotc.ir.types import I32, Type


class CtaRank(Op, opcode="grid.cta_rank", pure=True, traits=(Trait.SOURCE,)):
    """Return the rank of this CTA in its cluster, an i32."""

    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (I32,)


class ClusterBarrier(
    Op,
    opcode="grid.cluster_barrier",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
    traits=(Trait.BARRIER,),
):
    """Wait for all threads of all CTAs of the cluster; what they wrote is then visible to all."""


class GridWait(
    Op,
    opcode="grid.wait",
    effects=(orders(Resource.GLOBAL),),
    traits=(Trait.DEPENDENT_LAUNCH,),
):
    """Wait until the grids before this one have ended and what they wrote can be seen."""


class LaunchDependents(
    Op,
    opcode="grid.launch_dependents",
    effects=(writes(Resource.CONTROL),),
    traits=(Trait.DEPENDENT_LAUNCH,),
):
    """Let the next grid start once all programs have come here or ended; it may see no writes yet.

    The first of a program counts. Nothing is ordered by it, since the next grid's wait is for the
    end of this one.
    """


def always_waits(kernel: Kernel) -> bool:
    """Return whether every path through the kernel goes through a `grid.wait`."""
    return _waits(kernel.body)


def _waits(block: Block) -> bool:
    """Return whether every path through a block waits; a loop may run no iteration."""
    return any(
        isinstance(op, GridWait) or (isinstance(op, scf.If) and all(map(_waits, op.blocks)))
        for op in block
    )
