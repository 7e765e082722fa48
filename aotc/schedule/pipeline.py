"""The ordered list of passes from tile IR to gpu IR, each with the reason for its place."""

from __future__ import annotations

from dataclasses import replace

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import IRError
from aotc.ir.passes import Observer, Pipeline
from aotc.schedule.cleanup.eliminate_common import eliminate_common
from aotc.schedule.cleanup.hoist_invariants import hoist_invariants
from aotc.schedule.cleanup.predicate_branches import predicate_branches
from aotc.schedule.cleanup.recompute_addresses import recompute_addresses
from aotc.schedule.cleanup.simplify import simplify
from aotc.schedule.cleanup.sink_into_branches import sink_into_branches
from aotc.schedule.cleanup.unroll_loops import unroll_loops
from aotc.schedule.context import RoleStrategy, Schedule
from aotc.schedule.epilogue.overlap_epilogue import overlap_epilogue
from aotc.schedule.epilogue.pipeline_tma_stores import pipeline_tma_stores
from aotc.schedule.epilogue.slice_epilogues import slice_epilogues
from aotc.schedule.layout.assign_layouts import assign_layouts
from aotc.schedule.layout.decompose_reductions import decompose_reductions
from aotc.schedule.layout.decompose_scans import decompose_scans
from aotc.schedule.layout.fit_copies import fit_copies
from aotc.schedule.layout.hoist_conversions import hoist_conversions
from aotc.schedule.layout.legalize_dots import legalize_dots
from aotc.schedule.layout.plan_conversions import plan_conversions
from aotc.schedule.layout.trim_dot_columns import trim_dot_columns
from aotc.schedule.pipelining.advance_loads import advance_loads
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.schedule.pipelining.interleave_copies import interleave_copies
from aotc.schedule.pipelining.overlap_wgmma import overlap_wgmma
from aotc.schedule.pipelining.pipeline_loads import pipeline_loads
from aotc.schedule.pipelining.pipeline_mma import pipeline_mma
from aotc.schedule.pipelining.prefetch_fragments import prefetch_fragments
from aotc.schedule.pipelining.slice_dots import slice_dots
from aotc.schedule.pipelining.trim_operand_loads import trim_operand_loads
from aotc.schedule.programs.make_persistent import make_persistent
from aotc.schedule.programs.split_across_cluster import split_across_cluster
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.check_resources import registers_of_thread
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.tensor_maps.bulk_loads import bulk_loads
from aotc.schedule.tensor_maps.bulk_stores import bulk_stores
from aotc.schedule.tensor_maps.hoist_maps import hoist_maps
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.schedule.tensor_maps.map_pointers import map_pointers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.specialize_warps import specialize_warps

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
        # Once equal values are one, addresses show what they share with their masks. Before loads
        # change places with anything, and are given layouts.
        map_pointers,
        # What comes through maps is known, and so whether copies could run ahead over programs.
        make_persistent,
        # While tiles still are the whole program's, and it is known which come through maps.
        split_across_cluster,
        # Once equal values are one, it shows when a masked load is what the other arm has.
        predicate_branches,
        # Invariant addresses leave the loop now, so that their layouts are decided outside it.
        hoist_invariants,
        # Addresses of maps are outside by now; what is copied by them is decided next.
        hoist_maps,
        # What is not looked at shows in tile IR, where parts of a sum are still reshapes and splits.
        trim_dot_columns,
        assign_layouts,
        # Where a conversion stands was decided value by value; now by what it moves.
        hoist_conversions,
        # Between two buffers that are given, all conversions are one choice.
        fit_copies,
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
        # Which buffers products read is known, and so what they do not; before there are rings of
        # them, and before anyone asks what shared memory is left.
        trim_operand_loads,
        # Layouts of loads are final, and what goes through shared memory anyway is known.
        bulk_loads,
        # What is fetched is known, and with it how much room there is.
        bulk_stores,
        # Which warp fetches decides who pipelines fetches; their loops turn slots from here on.
        choose_warp_roles,
        # Which loads go through shared memory, and how wide, is known now.
        pipeline_loads,
        # Slots are known now, and with them whether a product may run on.
        overlap_wgmma,
        # Buffers live until the parts of a product are read, so this is before they are placed.
        slice_dots,
        # Whole tiles of all that is stored are known now, and so what they take together.
        slice_epilogues,
        # Parts of products are what the copies of a loop and its next fragments go between.
        interleave_copies,
        prefetch_fragments,
        # Products are where they stay, so it shows what is read last of each slot.
        specialize_warps,
        # Slots are waited for and given back where they are read: what starts a product and what
        # looks at it are apart.
        pipeline_mma,
        # Who computes and who fetches is known now, and so what a loop of tiles waits for.
        overlap_epilogue,
        # Tensor copies stay whole until here, so that a pass can move or pipeline them.
        expand_tensor_loads,
        # The iterations before the loop have constant addresses, masks and slots.
        simplify,
        eliminate_common,
        # How much shared memory is left for stores to run on in shows when all else is known.
        pipeline_tma_stores,
        # Lives of buffers are final once all of them exist; barriers depend on shared bytes.
        allocate_shared,
        insert_barriers,
        # What is made twice on purpose is not to be merged again, so these are last.
        sink_into_branches,
        recompute_addresses,
    )
)


STRATEGIES = (
    RoleStrategy(),
    RoleStrategy(has_groups=False),
    RoleStrategy(has_producer=False, has_groups=False),
)
"""The roles that warps may have, from the fastest to the one that needs least shared memory."""


def schedule_kernel(kernel: Kernel, schedule: Schedule, observer: Observer | None = None) -> Kernel:
    """Lower `kernel` from tile IR to gpu IR; return the result and leave `kernel` as it is.

    A producer's buffers live for the whole kernel, and each consumer group has its own. How much
    shared memory that takes is known only when all passes have run, so each of `STRATEGIES` is
    tried whole, and the first whose kernel fits is taken.
    """
    lowered, reason = kernel, ""
    for strategy in STRATEGIES:
        if reason and strategy.allows(lowered):
            continue  # it would choose the same roles again
        remarks: list[str] = []
        attempt = replace(schedule, strategy=replace(strategy, reason=reason), remarks=remarks)
        lowered = _lower(kernel.clone(), attempt, observer)
        reason = _misfit(lowered, schedule)
        if not reason:
            schedule.remarks += remarks
            return lowered
    raise IRError(f"no strategy is left for {kernel.name}: {reason}")


def _lower(kernel: Kernel, schedule: Schedule, observer: Observer | None) -> Kernel:
    kernel.num_warps = schedule.config.num_warps
    kernel.num_ctas = schedule.config.num_ctas
    kernel.maxnreg = schedule.config.maxnreg or 0
    TILE_TO_GPU.run(kernel, schedule, observer)
    if kernel.maxnreg:
        # More than all threads of a block can have would be a kernel that none starts of.
        kernel.maxnreg = registers_of_thread(kernel, schedule.target)
    return kernel


def _misfit(kernel: Kernel, schedule: Schedule) -> str:
    """Return why other roles are to be tried; without roles, too large a kernel is the user's."""
    limit = schedule.target.max_shared_bytes
    if not kernel.producer_warps or kernel.shared_bytes <= limit:
        return ""
    groups = kernel.num_consumer_groups if kernel.num_consumer_groups > 1 else "one"
    needs = f"the kernel needs {kernel.shared_bytes} bytes of shared memory, of {limit}"
    return f"with {groups} {needs}"
