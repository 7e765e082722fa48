"""The ordered list of passes from tile IR to gpu IR, each with the reason for its place."""

from __future__ import annotations

from dataclasses import replace

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import gpu
from aotc.ir.passes import Observer, Pipeline
from aotc.ir.types import SharedType
from aotc.schedule.analysis.register_budget import registers_of_thread, remark_registers
from aotc.schedule.cleanup.branch_on_masks import branch_on_masks
from aotc.schedule.cleanup.eliminate_common import eliminate_common
from aotc.schedule.cleanup.fold_masks import fold_masks
from aotc.schedule.cleanup.hoist_invariants import hoist_invariants
from aotc.schedule.cleanup.mark_references import mark_references
from aotc.schedule.cleanup.merge_carried import merge_carried
from aotc.schedule.cleanup.narrow_loads import narrow_loads
from aotc.schedule.cleanup.peel_last_iteration import peel_last_iteration
from aotc.schedule.cleanup.predicate_branches import predicate_branches
from aotc.schedule.cleanup.recompute_addresses import recompute_addresses
from aotc.schedule.cleanup.rematerialize_tiles import rematerialize_tiles
from aotc.schedule.cleanup.rescale_lazily import rescale_lazily
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
from aotc.schedule.layout.expand_cluster_reductions import expand_cluster_reductions
from aotc.schedule.layout.fit_copies import fit_copies
from aotc.schedule.layout.guard_signs import guard_signs
from aotc.schedule.layout.hoist_conversions import hoist_conversions
from aotc.schedule.layout.legalize_dots import legalize_dots
from aotc.schedule.layout.plan_conversions import plan_conversions
from aotc.schedule.layout.sink_fragments import sink_fragments
from aotc.schedule.layout.transpose_dots import transpose_dots
from aotc.schedule.layout.trim_dot_columns import trim_dot_columns
from aotc.schedule.pipelining.advance_loads import advance_loads
from aotc.schedule.pipelining.carry_partial_sums import carry_partial_sums
from aotc.schedule.pipelining.drain_in_loop import drain_in_loop
from aotc.schedule.pipelining.expand_cluster_exchanges import expand_cluster_exchanges
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.schedule.pipelining.interleave_copies import interleave_copies
from aotc.schedule.pipelining.join_sums import join_sums
from aotc.schedule.pipelining.order_dots import order_dots
from aotc.schedule.pipelining.overlap_wgmma import overlap_wgmma
from aotc.schedule.pipelining.pipeline_loads import pipeline_loads
from aotc.schedule.pipelining.pipeline_mma import pipeline_mma
from aotc.schedule.pipelining.prefetch_fragments import prefetch_fragments
from aotc.schedule.pipelining.reuse_accumulators import reuse_accumulators
from aotc.schedule.pipelining.rotate_exchanges import rotate_exchanges
from aotc.schedule.pipelining.slice_dots import slice_dots
from aotc.schedule.pipelining.stage_prefetches import stage_prefetches
from aotc.schedule.pipelining.take_turns import take_turns
from aotc.schedule.pipelining.trim_operand_loads import trim_operand_loads
from aotc.schedule.programs.choose_occupancy import choose_occupancy
from aotc.schedule.programs.make_persistent import make_persistent
from aotc.schedule.programs.split_across_cluster import split_across_cluster
from aotc.schedule.remarks import Remark
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.schedule.tensor_maps.bulk_loads import bulk_loads
from aotc.schedule.tensor_maps.bulk_stores import bulk_stores
from aotc.schedule.tensor_maps.hoist_maps import hoist_maps
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.schedule.tensor_maps.map_pointers import map_pointers
from aotc.schedule.warp_roles.choose_warp_roles import choose_warp_roles
from aotc.schedule.warp_roles.delay_reads import delay_reads
from aotc.schedule.warp_roles.release_early import release_early
from aotc.schedule.warp_roles.specialize_warps import specialize_warps

TILE_TO_GPU: Pipeline[Schedule] = Pipeline(
    (
        # Descriptors need to become address arithmetic first. Otherwise, the passes on tile IR
        # neither simplify nor hoist the address arithmetic of loads and stores.
        lower_descriptors,
        # Unrolling needs to run before simplification. Otherwise, the constants of each iteration
        # are not folded.
        unroll_loops,
        simplify,
        # Legalization needs to run before layouts are assigned. Otherwise, they are chosen for
        # operand types without an MMA instruction on the target.
        legalize_dots,
        eliminate_common,
        # Needs to run before pipelining and layouts. Otherwise, the ops of an iteration are spread
        # over several, and the ops of a row over threads.
        mark_references,
        # Needs to run after unrolling, simplification and CSE. Otherwise, a step, a bound and the
        # operands compared with them are not recognized as equal. It needs to run before
        # `predicate_branches`, which puts the loads of both arms in each iteration.
        peel_last_iteration,
        # Needs to run before pointers are mapped and layouts assigned. Otherwise, words unpacked by
        # a dot are loaded, held and carried once for each of their numbers.
        narrow_loads,
        # Mapping pointers needs to run after CSE. Otherwise, an address and its mask do not share
        # the values that prove them one box. It needs to run before loads are reordered and given
        # layouts: a tensor load gets neither.
        map_pointers,
        # Needs to run after `map_pointers`. Otherwise, tensor loads are not yet known, nor whether
        # they could run ahead across program instances.
        make_persistent,
        # Needs to run after `map_pointers`, which decides on multicast, and before layouts are
        # assigned. Otherwise, tiles of the whole program have layouts unlike any CTA's slice.
        split_across_cluster,
        # Needs to run after CSE. Otherwise, a masked load and the value of the other arm are not
        # seen to be the same.
        predicate_branches,
        # Needs to run before layouts are assigned. Otherwise, invariant addresses get the layouts
        # of their users in the loop, and are converted there.
        hoist_invariants,
        # Needs to run after LICM. Otherwise, a tensor map's address, still computed in the loop,
        # keeps the map there. The form of the map's loads is decided next.
        hoist_maps,
        # Needs to run before layouts are assigned. Otherwise, slices of an accumulator are no
        # longer reshapes and splits, by which unused columns are recognized.
        trim_dot_columns,
        # Needs to run after `split_across_cluster` and `trim_dot_columns`, which count rows and
        # columns of dots as in the source.
        transpose_dots,
        # Needs to run after accesses have become tensor copies: the extents of their tensors are read
        # off masks, decided or not. It needs to run before layouts are assigned, and conditions of
        # pipelined iterations added to masks.
        fold_masks,
        # Needs to run right before `assign_layouts`, which chooses widths by the signs, and after
        # accesses have become tensor copies. Otherwise, these would be guarded for no width.
        guard_signs,
        assign_layouts,
        # `assign_layouts` places conversions value by value; this pass moves them to where the
        # fewest bytes are converted.
        hoist_conversions,
        # Needs to run after `hoist_conversions`. Otherwise, conversions between two shared buffers,
        # combined here, are not yet at their final place.
        fit_copies,
        # Needs to run before reductions are decomposed. Otherwise, the exchange of one reduction is
        # several ops.
        carry_partial_sums,
        # Decomposition needs to run before `plan_conversions`. Otherwise, the inserted conversions
        # of small tiles across warps are not planned.
        decompose_scans,
        decompose_reductions,
        # Needs to run after `hoist_invariants` has seen these reductions whole, and before shared
        # memory is allocated. Otherwise, their buffers have no place.
        expand_cluster_reductions,
        # Layout assignment clones cheap ops, and inserts one conversion for each user.
        simplify,
        eliminate_common,
        # Needs to run before `plan_conversions`. Otherwise, the conversion of an invariant tile is
        # several ops with effects, and LICM leaves them in the loop.
        hoist_invariants,
        plan_conversions,
        # Needs to run after `plan_conversions`, which decides on reads from shared memory. No
        # hoisting pass may run after it.
        sink_fragments,
        # Needs to run before loops are pipelined: pipelining orders loads anew.
        advance_loads,
        # Needs to run after `plan_conversions`, which chooses the buffers read by dots, and before
        # rings are built. Otherwise, each stage holds rows unread by any dot.
        trim_operand_loads,
        # Needs to run after layouts of loads are final, and after staging through shared memory is
        # planned. Otherwise, loads that end in a buffer anyway are not yet known.
        bulk_loads,
        # Needs to run after `bulk_loads`. Otherwise, stores may take the shared memory of loads.
        bulk_stores,
        # Needs to run after `bulk_loads`, since the buffers are read again, and before
        # `specialize_warps`. Otherwise, a stage is released before its last reader.
        rematerialize_tiles,
        # Needs to run before `pipeline_loads`. Otherwise, tensor loads meant for a producer warp
        # are pipelined by the loop as well.
        choose_warp_roles,
        # Needs to run after `choose_warp_roles`. Otherwise, loads meant for a producer are staged
        # by the threads that compute.
        stage_prefetches,
        # Needs to run after staging is planned. Otherwise, loads through shared memory and their
        # widths are not yet known.
        pipeline_loads,
        # Needs to run before waits are deferred, and before stages are released after them.
        # Otherwise, operands of a sum's dots are released while the dots are in flight.
        join_sums,
        # Needs to run after stages are assigned. Otherwise, operands of a dot are not known to
        # outlive the iteration, and the dot may not stay in flight.
        overlap_wgmma,
        # Needs to run before shared memory is allocated. Otherwise, the live range of a buffer
        # ends before the last slice of a dot has read it.
        slice_dots,
        # Needs to run after all stores are staged. Otherwise, the shared memory of whole tiles
        # together is underestimated.
        slice_epilogues,
        # Both need to run after `slice_dots`: copies and the next fragments are placed between the
        # slices of a dot.
        interleave_copies,
        prefetch_fragments,
        delay_reads,
        # Needs to run after dots have their final places. Otherwise, a stage is released before
        # its last reader.
        specialize_warps,
        # Both need to run after `specialize_warps`. Otherwise, the waits that fill a stage and the
        # arrivals that release it do not exist yet, and cannot move with the dots. Dots issued an
        # iteration ahead are the first ones of the iteration.
        order_dots,
        pipeline_mma,
        # Needs to run after all passes that move dots, and with them the last readers of buffers.
        release_early,
        # Needs to run before stores are expanded. Otherwise, these take the shared memory first.
        rotate_exchanges,
        # Needs to run after `specialize_warps`. Otherwise, the warps that compute and the waits of
        # a loop over tiles are not yet known.
        overlap_epilogue,
        # Needs to run after dots have their final order. Otherwise, a dot that could be ahead of
        # computations on the last result needs this result's registers.
        reuse_accumulators,
        # Needs to run after dots are scheduled. Otherwise, computations on their results are in
        # branches, and no pass looks into these.
        branch_on_masks,
        # Needs to run after `branch_on_masks`, which leaves scales to the computations in this
        # branch.
        rescale_lazily,
        # Needs to run after loops are pipelined and roles are specialized, which give each ring a
        # count of its own.
        merge_carried,
        # Needs to run after all passes that move or pipeline tensor loads: to them a load is one
        # op, not an issue and a wait.
        expand_tensor_loads,
        # Needs to run after all passes that move or pipeline ops of loops: to them an exchange is
        # one op, reached by all CTAs.
        expand_cluster_exchanges,
        # Peeled iterations have constant addresses, masks and stage indices.
        simplify,
        eliminate_common,
        # Needs to run after all other buffers exist. Otherwise, the shared memory left for stores
        # to stay in flight is overestimated.
        pipeline_tma_stores,
        # Allocation needs all buffers with their final live ranges. Barriers need to be inserted
        # after it. Otherwise, hazards between buffers that share bytes are missed.
        allocate_shared,
        insert_barriers,
        # Needs to run after all passes that move dots, or look for ops between them.
        take_turns,
        # Needs to run after all passes that handle counted loops.
        drain_in_loop,
        # These two duplicate ops on purpose, so no CSE may run after them.
        sink_into_branches,
        recompute_addresses,
        # Needs to run last. Otherwise, tiles are live across exchanges that other passes still
        # shorten.
        choose_occupancy,
    )
)


STRATEGIES = (
    RoleStrategy(),
    RoleStrategy(has_groups=False),
    RoleStrategy(has_groups=False, has_full_rings=False),
    RoleStrategy(has_producer=False, has_groups=False),
)
"""The allowed roles of warps, from the fastest to the one with the least shared memory."""


def schedule_kernel(kernel: Kernel, schedule: Schedule, observer: Observer | None = None) -> Kernel:
    """Lower `kernel` from tile IR to gpu IR; return the result and leave `kernel` as it is.

    A producer's buffers live for the whole kernel, and each consumer group has its own. The shared
    memory is known only after all passes, so each of `STRATEGIES` is tried whole. The first with a
    kernel that fits is taken. If none does, loops get fewer stages than configured.
    """
    limit = schedule.target.max_shared_bytes
    lowered, remarks = _lower_by_roles(kernel, schedule, observer)
    most_stages, used_bytes, num_stages = (
        _most_stages(lowered),
        lowered.shared_bytes,
        _most_stages(lowered),
    )
    while lowered.shared_bytes > limit and num_stages > 1:
        num_stages = _fewer_stages(lowered, num_stages, limit)
        lowered, remarks = _lower_by_roles(kernel, schedule, observer, num_stages)
        text = Remark.FEWER_STAGES(
            stages=num_stages, asked=most_stages, bytes=used_bytes, limit=limit
        )
        remarks.append(f"{kernel.loc}: {text}")
    schedule.remarks += remarks
    return lowered


def _lower_by_roles(
    kernel: Kernel, schedule: Schedule, observer: Observer | None, max_stages: int = 0
) -> tuple[Kernel, list[str]]:
    """Return the kernel of the first strategy that fits, else of the last, and its remarks."""
    lowered, attempt, reason = kernel, schedule, ""
    for roles in STRATEGIES:
        if reason and roles.allows(lowered, can_shorten_rings=attempt.can_shorten_rings):
            continue  # it would choose the same roles again
        remarks: list[str] = []
        strategy = replace(roles, reason=reason, max_stages=max_stages)
        attempt = replace(schedule, strategy=strategy, remarks=remarks)
        lowered = _lower(kernel.clone(), attempt, observer)
        reason = _misfit(lowered, schedule)
        if not reason:
            return lowered, remarks
    raise IRError(f"no strategy is left for {kernel.name}: {reason}")


def _lower(kernel: Kernel, schedule: Schedule, observer: Observer | None) -> Kernel:
    kernel.num_warps = schedule.config.num_warps
    kernel.num_ctas = schedule.config.num_ctas
    kernel.maxnreg = schedule.config.maxnreg or 0
    TILE_TO_GPU.run(kernel, schedule, observer)
    remark_registers(kernel, schedule)
    if kernel.maxnreg:
        # With more registers than all threads of a CTA can have, no launch succeeds.
        kernel.maxnreg = registers_of_thread(kernel, schedule.target)
    return kernel


def _rings(kernel: Kernel) -> list[SharedType]:
    """Return the types of all buffers of several stages."""
    types = [op.out.type for op in kernel.walk() if isinstance(op, gpu.SharedAlloc)]
    return [kind for kind in types if isinstance(kind, SharedType) and kind.num_stages > 1]


def _most_stages(kernel: Kernel) -> int:
    return max((ring.num_stages for ring in _rings(kernel)), default=1)


def _fewer_stages(kernel: Kernel, num_stages: int, limit: int) -> int:
    """Return the most stages below `num_stages` that may fit, at least 1."""
    rings = _rings(kernel)
    for most in range(num_stages - 1, 1, -1):
        # No more than this is saved: rings of different loops may share bytes.
        saved = sum(
            ring.size_bytes // ring.num_stages * max(0, ring.num_stages - most) for ring in rings
        )
        if kernel.shared_bytes - saved <= limit:
            return most
    return 1


def _misfit(kernel: Kernel, schedule: Schedule) -> str:
    """Return why other roles are to be tried; without roles, too large a kernel is the user's."""
    limit = schedule.target.max_shared_bytes
    if not kernel.producer_warps or kernel.shared_bytes <= limit:
        return ""
    groups = kernel.num_consumer_groups if kernel.num_consumer_groups > 1 else "one"
    needs = f"the kernel needs {kernel.shared_bytes} bytes of shared memory, of {limit}"
    return f"with {groups} {needs}"
