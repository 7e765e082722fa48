"""The ordered list of passes from tile IR to gpu IR, each with the reason for its place."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.passes import Observer, Pipeline
from aotc.schedule.advance_loads import advance_loads
from aotc.schedule.allocate_shared import allocate_shared
from aotc.schedule.assign_layouts import assign_layouts
from aotc.schedule.carry_fragments import carry_fragments
from aotc.schedule.context import Schedule
from aotc.schedule.decompose_reductions import decompose_reductions
from aotc.schedule.decompose_scans import decompose_scans
from aotc.schedule.eliminate_common import eliminate_common
from aotc.schedule.expand_fetches import expand_fetches
from aotc.schedule.hoist_conversions import hoist_conversions
from aotc.schedule.hoist_invariants import hoist_invariants
from aotc.schedule.insert_barriers import insert_barriers
from aotc.schedule.legalize_dots import legalize_dots
from aotc.schedule.lower_descriptors import lower_descriptors
from aotc.schedule.overlap_wgmma import overlap_wgmma
from aotc.schedule.pipeline_loads import pipeline_loads
from aotc.schedule.plan_conversions import plan_conversions
from aotc.schedule.predicate_branches import predicate_branches
from aotc.schedule.simplify import simplify
from aotc.schedule.slice_dots import slice_dots
from aotc.schedule.spread_copies import spread_copies
from aotc.schedule.unroll_loops import unroll_loops

TILE_TO_GPU: Pipeline[Schedule] = Pipeline(
    (
        # What becomes of descriptors is arithmetic like any other, so it is first.
        lower_descriptors,
        # On tile IR: fewer ops before anything is asked of each. An unrolled iteration is more
        # of them, so it is simplified with the rest.
        unroll_loops,
        simplify,
        # Products that the target has, before anyone asks how wide their operands are.
        legalize_dots,
        eliminate_common,
        # Once equal values are one, it shows when a masked load is what the other arm has.
        predicate_branches,
        # Invariant addresses leave the loop now, so that their layouts are decided outside it.
        hoist_invariants,
        assign_layouts,
        # Where a conversion stands was decided value by value; now by what it moves.
        hoist_conversions,
        # Both write conversions of the tiny tiles that cross warps, so they come before planning.
        decompose_scans,
        decompose_reductions,
        # Layouts made copies of cheap ops, and the same conversion for several users.
        simplify,
        eliminate_common,
        # A conversion of an invariant tile leaves the loop while it is still one pure op.
        hoist_invariants,
        plan_conversions,
        # Before loops are pipelined, which puts loads in an order of their own.
        advance_loads,
        # Which loads go through shared memory, and how wide, is known now.
        pipeline_loads,
        # Slots are known now, and with them whether a product may run on.
        overlap_wgmma,
        # Buffers live until the parts of a product are read, so this is before they are placed.
        slice_dots,
        # Parts of products are what the copies of a loop and its next fragments go between.
        spread_copies,
        carry_fragments,
        # Tensor copies stay whole until here, so that a pass can move or pipeline them.
        expand_fetches,
        # The iterations before the loop have constant addresses, masks and slots.
        simplify,
        eliminate_common,
        # Lives of buffers are final once all of them exist; barriers depend on shared bytes.
        allocate_shared,
        insert_barriers,
    )
)


def schedule_kernel(kernel: Kernel, schedule: Schedule, observer: Observer | None = None) -> Kernel:
    """Lower `kernel` from tile IR to gpu IR in place, and return it."""
    kernel.num_warps = schedule.config.num_warps
    kernel.num_ctas = schedule.config.num_ctas
    kernel.maxnreg = schedule.config.maxnreg
    TILE_TO_GPU.run(kernel, schedule, observer)
    return kernel
