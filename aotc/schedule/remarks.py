"""The schedule's messages to users: remarks, and reasons for omitted optimizations.

A remark reports an action or an omission with its reason. A reason names the obstacle and, where
the user can remove it, the remedy. Each is a template with named fields, in one place for
consistent wording and for listing.

Invariant: no two templates are alike, and a call fills all fields of a template.
"""

from __future__ import annotations

from enum import Enum, unique


class _Template(Enum):
    """A text with fields in braces; call it with their values."""

    def __call__(self, **fields: object) -> str:
        """Return the text with its fields filled in."""
        return str(self.value).format(**fields)


@unique
class Remark(_Template):
    """Report a pass's action on a kernel, or an omission and its `reason`."""

    # Program instances and CTAs.
    PERSISTENT = "the kernel is persistent, a CTA runs several program instances"
    REPLICATED = "every CTA of the cluster computes the whole program: {reason}"
    ONE_CTA = "the program runs in one CTA and no cluster: all of it uses the result of {op}"
    CLUSTER_REDUCED = "the {count} CTAs of the cluster exchange what each reduced its slice to"
    INDEX_LIMIT = (
        "this int32 product of an address overflows where {limit}: `.to(tl.int64)` on an operand"
    )
    # Loads and stores by hardware.
    TENSOR_COPY = "{name} is {done} by tensor copies"
    GUARDED_TENSOR_COPY = "{name} is {done} by tensor copies where {guards}"
    NO_TENSOR_COPY = "{name} is not {done} by tensor copies: {reason}"
    BULK_COPY = "{name} is {done} by bulk copies of {size} bytes"
    NO_BULK_COPY = "{name} is not {done} by bulk copies: {reason}"
    NO_TENSOR_MAP = "the launcher cannot make the map of this tensor: {reason}"
    DEVICE_MAP = "the kernel makes the map of this tensor, in scratch memory of the launch"
    NO_DEVICE_MAP = "tiles of this tensor go through pointers: {reason}"
    # Layouts.
    EXCHANGED = (
        "a tile of {shape} {element} is exchanged between threads "
        "through {size} bytes of shared memory"
    )
    LOAD_NARROWED = "{every} elements in a row are loaded alike: each is loaded once"
    A_EXCHANGED = (
        "operand A of wgmma is computed and goes through shared memory: {count} warpgroups divide the "
        "columns of the result, and each needs it; fewer warps or more rows leave it in registers"
    )
    DOT_TRANSPOSED = "the dot is computed transposed, with its right operand in registers"
    COLUMNS_TRIMMED = "{used} of {columns} columns are multiplied"
    REMATERIALIZED = (
        "tiles are computed again instead of kept while threads wait for each other: {after} registers "
        "of a thread instead of {before}"
    )
    PRODUCER_COPY = "threads of the producer copy {names}"
    NO_PRODUCER_COPY = "the threads that compute copy {names}: {reason}"
    # Pipelined loops.
    PIPELINED = "the loop is pipelined over {stages} stages through {way}: {names}"
    FEWER_STAGES = (
        "loops have at most {stages} stages, not {asked}: these need {bytes} bytes of shared memory, "
        "of {limit}"
    )
    LOAD_NOT_PIPELINED = "the load of {names} is not pipelined: {reason}"
    LOADS_NOT_PIPELINED = "the loads of {names} are not pipelined: {reason}"
    NO_CP_ASYNC = "{name} goes through registers, not by cp.async: {reason}"
    WGMMA_IN_FLIGHT = "the loop's dots are by wgmma and stay in flight across iterations"
    WGMMA_AWAITED = "the loop's dots are by wgmma and each is waited for in its iteration"
    DOTS_REORDERED = "dots are issued before others are waited for, where they do not need them"
    RESCALED_ALWAYS = (
        "the sums of the softmax are rescaled in every iteration; `conditional_rescaling = true` keeps the "
        "maximum of earlier ones while it serves, and rounds differently"
    )
    MMA_PIPELINED = "a dot is in flight while the result of the one before is used"
    MMA_NOT_PIPELINED = "no dot is issued an iteration ahead: {reason}"
    # Warp roles.
    PRODUCER_WARP = "a producer warp issues the loads, stages ahead"
    NO_PRODUCER_WARP = "no producer warp: {reason}"
    CONSUMER_GROUPS = "{groups} consumer groups of {warps} warps ping-pong over tiles"
    ONE_CONSUMER_GROUP = "one consumer group, not {wanted}: {reason}"
    ONE_BUFFER = "a tile that one dot of the loop reads has one buffer, not several: {reason}"
    REGISTER_SPLIT = "{consumer} registers for a consumer thread, {other} for any other"
    # Epilogues.
    EPILOGUE_OVERLAPPED = "the epilogue of a tile overlaps the mainloop of the next one"
    STORE_SLICED = (
        "the tile is stored in {slices} slices, through {buffers} buffers of {size} bytes: "
        "there is no room for the whole tile"
    )
    STORES_SLICED = (
        "{stores} tiles are stored in {slices} slices, through {buffers} buffers of {size} bytes: "
        "there is no room for whole tiles"
    )
    STORE_AWAITED = (
        "the store does not stay in flight: there is no room for a buffer of its own "
        "of {size} bytes"
    )


@unique
class Reason(_Template):
    """Name the obstacle to an optimization, for the `reason` field of a remark."""

    # Of a pipelined load.
    UNDER_BRANCH = "it is under a branch"
    UNKNOWN_TRIP_COUNT = "it is not known whether the loop goes on"
    VOLATILE = "it is volatile"
    FENCE_IN_LOOP = "{op} in the loop keeps all memory accesses in order"
    LOOP_WRITES = "the loop writes through {names}, too"
    LOOP_MAY_WRITE = (
        "the loop writes through {names}, which may be the same memory; "
        "num_stages of tl.range, or noalias in the signature, promises that it is not"
    )
    FOREIGN_BUFFER = "its buffer is not the loop's own"
    SHARED_BUFFER = "its buffer is used in other ways, too"
    GRID_WAIT = "the loop waits for other grids"
    TOO_MANY_REGISTERS = "loading it ahead would take too many registers of each thread"
    ADDRESS_NOT_PIPELINED = "its address depends on {names}, which is not pipelined"
    ADDRESS_OF_ITSELF = "its address depends on what it loaded an iteration before"
    ADDRESS_DEPENDS = "its address depends on the result of {op} in the loop"
    # Loads for a producer warp or an earlier iteration to issue.
    FENCE_BEFORE = "{op} before it keeps memory accesses in order"
    KERNEL_WRITES = "the kernel writes {name}, too"
    # Of a copy by cp.async.
    OTHER_NOT_ZERO = (
        "masked elements become something else than 0; load with other=0 and select afterwards"
    )
    OTHER_ORDER = "its elements lie in another order in shared memory than in global memory"
    NARROW = "an access moves {width} bytes a thread, cp.async at least 4: {cause}"
    FEW_ELEMENTS = "the tile has too few elements for its threads; fewer warps or a larger block"
    NOT_CONTIGUOUS = "no axis is known to be contiguous"
    SHORT_RUNS = "no more than {elems} neighbours are known to be contiguous"
    SIGN_UNKNOWN = "a quotient or remainder in its address may be of a negative number"
    ROWS_NOT_ALIGNED = "rows are not known to begin at multiples of {size} bytes"
    MASK_DIFFERS = "its mask may differ between neighbours"
    # Dots to issue an iteration ahead.
    TWO_RESULTS = "two results in flight take about {registers} registers of a thread"
    NO_FRESH_ACCUMULATOR = "none with a fresh accumulator is used in its iteration"
    OPERAND_IN_REGISTERS = "an operand is in registers"
    OPERAND_WRITTEN = "an operand is written in the loop"
    ONE_STAGE = "its operands have one stage"
    NO_STAGE_LEFT = (
        "it and the second dot of the iteration before would read both stages of what they share, "
        "so that nothing is loaded meanwhile"
    )
    STAGE_OF_LATER_STEPS = (
        "the stage of its operands depends on the iteration before in more than one step"
    )
    STAGE_DEPENDS = "the stage of its operands depends on {op}"
    NOT_REORDERED = "it would be reordered with {op}"
    # Of a producer warp.
    NO_COPIES = "the loop loads nothing by tensor or bulk copies"
    NO_ROOM_FOR_WARPS = "a CTA has no room for {warps} warps"
    SEVERAL_LOADS = "a buffer is loaded in several places"
    LOADS_NEED_TILE = "the loads depend on a tile, by {op}"
    LOADS_NEED_VOLATILE = "the loads depend on a volatile load"
    LOADS_NEED_OP = "the loads depend on {op}"
    LOADS_NEED_WRITTEN = "the loads depend on {names}, which the kernel writes"
    CLUSTER_BARRIER = "all threads of the cluster wait for each other"
    # Of several consumer groups.
    NO_PRODUCER = "the kernel has no producer warp"
    PARTIAL_WARPGROUPS = "{warps} warps are no whole warpgroups"
    MAKES_MAPS = "the producer makes tensor maps"
    EXCHANGES_TILES = "CTAs of the cluster exchange tiles, in one order"
    NO_TILE_LOOP = "no loop contains all tensor loads and a mainloop"
    TILE_LOOP_CARRIES = "the loop over tiles carries values from one to the next"
    OUTSIDE_TILE_LOOP = "{op} is outside of the loop over tiles"
    VOLATILE_TILES = "a volatile load keeps tiles in order"
    ORDERED_TILES = "{op} keeps tiles in order"
    SAME_PLACE = "{op} writes the same place in every tile"
    TILES_COMMUNICATE = "a tile may read what another one writes"
    # Tensor maps for a kernel to make.
    DEVICE_MAP_OVERLAPS = "its launches may overlap, which would share scratch memory"
    DEVICE_MAP_OF_ODD_ROWS = "its strides, or the rows that it stores, are no multiples of 16 bytes"
    DEVICE_MAP_LOADED_AND_STORED = (
        "the kernel loads and stores through this descriptor, and a map that it makes serves one of both; "
        "a descriptor that is an argument serves both"
    )
    DEVICE_MAP_IN_OTHER_WAYS = "the kernel accesses this tensor in other ways, too"
    # Tiles for the CTAs of a cluster to split.
    RESULT_IN_ONE_CTA = "the result of {op} would be in one CTA"
    MAP_IN_MEMORY = "tensor maps in memory are of whole boxes"
    SHORT_ROWS = "slices of {kind} would have too short rows"
    TOO_SMALL = "a tile of {shape} cannot be split into {slices} slices"
    CARRIED_TWO_WAYS = "a loop or branch would carry a tile split in two ways"
    BOX_TWO_WAYS = "the boxes of a descriptor would be split in two ways"
    NEEDS_OTHER_CTAS = "{op} needs elements of other CTAs"
