"""Choose the instruction of each dot, and the distribution of its tiles over the warps.

A dot is computed by wgmma if possible (see `wgmma_layouts`), else by `mma.sync` of its operand
types, or by FMAs on CUDA cores (fp32 at full precision, see `fma_layouts`). For `mma.sync`, warps
split the result so as to read the fewest bytes from shared memory: warps along N each read all of
A, warps along M all of B. Two things overrule the count:

- Chained dots, the result of one being operand A of the next, have all warps along M. Then every
  warp holds whole rows, and reductions along them stay inside it. The accumulator of the first
  dot is operand A of the second in the same registers of the same threads.
- Dots that add to one accumulator share its layout.

By wgmma, warpgroups that divide columns of a result all need operand A. An A computed from the
result of another dot, as weights from scores, goes through shared memory. But if dots stay in
flight meanwhile (`mma_stages = 2`), each warpgroup computes all of the first dot and holds its own
copy: more to multiply, and nothing to exchange or to wait for. An A merely converted from a loaded
tile is converted by each of two warpgroups for itself.

Warps along the batch read nothing twice, so batches are split first.

Invariant: layouts agree as `ir.fragments` requires; the accumulator of a loop keeps one layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import tile
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import is_elementwise, joins_of, tile_shape
from aotc.ir.types import FP8E4NV, FP8E5, FP32, FP64, element_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.fma_layouts import fma_layouts
from aotc.schedule.layout.layouts import dot_operand, mma_v2
from aotc.schedule.layout.operand_slices import is_converted, leaves_of
from aotc.schedule.layout.preferred_layouts import DotLayouts
from aotc.schedule.layout.wgmma_layouts import (
    is_computed,
    warpgroups_along_columns,
    wgmma_layouts,
)
from aotc.schedule.remarks import Remark
from aotc.target import Feature, Target

_MMA_ROWS = 16
_MMA_COLUMNS = 8
_K_LANES = 4
_WORD_BITS = 32
_MOST_CONVERSIONS = 2


def choose_dots(
    kernel: Kernel,
    anchors: Mapping[Op, LinearLayout],
    target: Target,
    *,
    in_flight: bool = False,
) -> dict[Op, DotLayouts]:
    """Return the layouts of every dot; `anchors` are the layouts of memory accesses.

    If dots are to be `in_flight` while threads compute, threads need not exchange their results.
    """
    dots = [op for op in kernel.walk() if isinstance(op, tile.Dot)]
    links = _links(kernel, dots)
    layouts: dict[Op, DotLayouts] = {}
    shapes = {op: instruction(op, target) for op in dots}
    warps: dict[Op, tuple[int, ...]] = {}
    for group in _connected(dots, [(op, user) for op, user, _ in links]):
        is_chain = any(op in group and as_a for op, _, as_a in links)
        largest = max(group, key=lambda op: prod(tile_shape(op.a)) * tile_shape(op.b)[-1])
        for op in group:
            warps[op] = divide_warps(largest, kernel.num_warps, along_m=is_chain)
    fed = [(op, user) for op, user, as_a in links if as_a and in_flight]
    for group in _connected(dots, [(op, user) for op, user, as_a in links if not as_a]):
        # Operand A of a chained dot has the next dot's order.
        users = [user for op, user in fed if op in group and user not in group]
        replicas = max(
            (warpgroups_along_columns(consumer, kernel.num_warps) for consumer in users), default=1
        )
        shares_a = all(_is_shared_by_few(op, kernel.num_warps) for op in group)
        holds_a = any(user in group for _, user in fed) or shares_a
        together = {
            op: wgmma_layouts(op, kernel.num_warps, target, replicas=replicas, holds_a=holds_a)
            for op in group
        }
        if all(together.values()):
            layouts.update(
                (op, op_layouts) for op, op_layouts in together.items() if op_layouts is not None
            )
            continue
        is_chain = any(as_a and (op in group or user in group) for op, user, as_a in links)
        widths = [_widths(op, warps[op], anchors) for op in group if shapes[op]]
        k_width = 1 if is_chain else max((k for k, _ in widths), default=1)
        feeds = any(as_a and op in group for op, _, as_a in links)
        n_width = 1 if feeds else max((n for _, n in widths), default=1)
        for op in group:
            if shapes[op]:
                layouts[op] = _mma(op, shapes[op], warps[op], k_width, n_width)
            else:
                layouts[op] = fma_layouts(op, kernel.num_warps, along_m=is_chain)
    return layouts


def remark_exchanged(dots: Mapping[Op, DotLayouts], kernel: Kernel, schedule: Schedule) -> None:
    """Remark computed operands A of wgmma that go through shared memory, and the reason."""
    for op, layouts in dots.items():
        if isinstance(op, tile.Dot) and layouts.wgmma and layouts.a is None and is_computed(op.a):
            count = warpgroups_along_columns(op, kernel.num_warps)
            schedule.remark(op.loc, Remark.A_EXCHANGED(count=count))


def _is_shared_by_few(op: tile.Dot, num_warps: int) -> bool:
    """Return whether warpgroups with the same A may each compute it.

    The loaded tile is narrower than A, so it is read and converted twice, and never written back.
    """
    return warpgroups_along_columns(op, num_warps) <= _MOST_CONVERSIONS and is_converted(op.a)


# ---- chained dots -----------------------------------------------------------------------------

_Link = tuple[tile.Dot, tile.Dot, bool]
"""A dot, one that uses its result, and whether as operand A; else as accumulator."""


def _links(kernel: Kernel, dots: Sequence[tile.Dot]) -> list[_Link]:
    flows: dict[Value, list[Value]] = {}
    if len(dots) > 1:
        for join in (join for op in kernel.walk() for join in joins_of(op)):
            for source in join.sources:
                flows.setdefault(source, []).extend(join.targets)
    return [(op, user, as_a) for op in dots for user, as_a in _next_products(op, flows)]


def _connected(
    dots: Sequence[tile.Dot], links: Sequence[tuple[tile.Dot, tile.Dot]]
) -> list[list[tile.Dot]]:
    """Return the connected groups of dots."""
    group_of = {op: [op] for op in dots}
    for op, user in links:
        if group_of[user] is not group_of[op]:
            group_of[op].extend(group_of[user])
            for member in group_of[user]:
                group_of[member] = group_of[op]
    return [group for op, group in group_of.items() if group[0] is op]


def _next_products(
    op: tile.Dot, flows: dict[Value, list[Value]]
) -> Iterator[tuple[tile.Dot, bool]]:
    """Yield the dots with the result of `op`, through elementwise ops, as A or accumulator."""
    worklist, seen = [op.out], {op.out: None}
    while worklist:
        value = worklist.pop()
        following = list(flows.get(value, ()))
        for user in value.users:
            if isinstance(user, tile.Dot) and user is not op and value is not user.b:
                yield user, value is user.a
            elif is_elementwise(user):
                following.append(user.results[0])
        for result in following:
            if result not in seen:
                seen[result] = None
                worklist.append(result)


# ---- warps ------------------------------------------------------------------------------------


def divide_warps(op: tile.Dot, num_warps: int, *, along_m: bool) -> tuple[int, ...]:
    """Return the number of warps along each axis of the result; their product is `num_warps`.

    Warps without room along any axis go along M as replicas.
    """
    *batch, m, n = tile_shape(op.acc)
    along_batch = min(num_warps, *batch) if batch else 1
    left = num_warps // along_batch
    most_m = min(left, max(1, m // _MMA_ROWS))
    most_n = min(left, max(1, n // _MMA_COLUMNS))
    choices = [(count, left // count) for count in (1 << bit for bit in range(left.bit_length()))]
    fitting = [choice for choice in choices if choice[0] <= most_m and choice[1] <= most_n]
    if not fitting:
        fitting = [(left // most_n, most_n)]
    a_bytes, b_bytes = (
        prod(tile_shape(value)) * element_of(value.type).size_bytes for value in (op.a, op.b)
    )
    if along_m:
        warps = max(fitting)
    else:
        # Among equals, warp tiles near a square: more room for wide reads on either side.
        warps = min(fitting, key=lambda w: (a_bytes * w[1] + b_bytes * w[0], -w[0]))
    return (*([along_batch] if batch else []), *warps)


# ---- tensor cores -----------------------------------------------------------------------------

# Bits of an operand -> the values of k of `mma.sync.m16n8k*`, the smallest first.
_MMA_K = {8: (16, 32), 16: (8, 16), 32: (4, 8), 64: (4, 8, 16)}
# Tiles of so few rows of fp64 take `m8n8k4`, half as fast (32.8 and 64.3 TFLOP/s on an H200), since
# it computes no copies of rows. Where a thread spills, ptxas 12.9 and 13.0 silently miscompile wide
# ones with copies, and later ones crash.
_FEW_ROWS = 8


def instruction(op: tile.Dot, target: Target) -> tuple[int, ...]:
    """Return the shape (m, n, k) of a dot's `mma.sync`, or ()."""
    element = element_of(op.a.type)
    if element == FP64 and (
        Feature.FP64_MMA not in target.features or tile_shape(op.a)[-2] <= _FEW_ROWS
    ):
        return (_FEW_ROWS, _MMA_COLUMNS, 4)
    if element == FP32 and op.input_precision != "tf32":
        return ()
    sizes = _MMA_K[element.bits]
    if element in (FP8E4NV, FP8E5):
        sizes = sizes[1:]  # the shorter one came with later versions of PTX
    k = next((size for size in sizes if size >= tile_shape(op.a)[-1]), sizes[-1])
    return (_MMA_ROWS, _MMA_COLUMNS, k)


def _mma(
    op: tile.Dot, shape: tuple[int, ...], warps: tuple[int, ...], k_width: int, n_width: int
) -> DotLayouts:
    bits = element_of(op.a.type).bits
    a_shape, b_shape, acc_shape = (tile_shape(value) for value in op.operands)
    width = max(_WORD_BITS // bits, min(k_width, a_shape[-1] // _K_LANES), 1)
    return DotLayouts(
        shape,
        dot_operand(0, a_shape, warps, bits, width),
        dot_operand(1, b_shape, warps, bits, width, n_width),
        mma_v2(acc_shape, warps, n_width),
    )


def _widths(
    op: tile.Dot, warps: tuple[int, ...], anchors: Mapping[Op, LinearLayout]
) -> tuple[int, int]:
    """Return the numbers of neighbours in a thread along K and along N, by the loads.

    Along K both operands have the number that fills a word of the narrowest contiguous one. Along
    N, bytes of a contiguous B have two, as moved by a transposing access.
    """
    usual = _mma(op, (), warps, 1, 1)
    k_width = n_width = 1
    for operand, layout in zip(op.operands[:2], (usual.a, usual.b), strict=True):
        assert layout is not None
        for leaf, reached in leaves_of(operand, layout).items():
            bits = max(8, element_of(leaf.type).bits)
            if leaf.op is None or leaf.op not in anchors:
                continue
            fastest = anchors[leaf.op].columns("register")[:1]
            if fastest == reached.layout.columns("register")[:1]:
                k_width = max(k_width, _WORD_BITS // bits * reached.spread)
            elif operand is op.b and bits == 8 and fastest == reached.layout.columns("lane")[2:3]:
                n_width = 2
    return k_width, n_width
