"""Accesses to global memory: their layouts, vector widths and costs.

Coalescing rests on two facts: the neighbours of an element in memory (axis analysis) and the thread
of each element (the layout). The best layout gives each thread as many neighbours as one
instruction moves and neighbouring threads the neighbouring runs.

Invariant: a vector width from here is safe: all its elements are consecutive in memory, aligned to
the whole access, in consecutive registers of one thread, under one mask value.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from math import gcd, prod

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import is_uniform
from aotc.ir.types import PointerType, TileType, element_of
from aotc.schedule.analysis.axis import AxisAnalysis, AxisInfo
from aotc.schedule.analysis.costs import GLOBAL_ACCESS_COST, SECTOR_COST
from aotc.schedule.analysis.global_order import accessed_pointer
from aotc.schedule.layout.layouts import WARP_LANES, blocked_for
from aotc.target import Feature, Target

MAX_ACCESS_BYTES = 16
_SECTOR_BYTES = 32
BURST_BYTES = 64
"""Bytes of a memory transaction."""
_LINE_BYTES = 128
_DOT_BYTES, _WORD_BYTES, _WORDS_BYTES = 2, 4, 8
_VECTOR_ATOMIC_BYTES = 4  # the widest float of vector atomics


def pointee_bytes(pointer: Value) -> int:
    """Return the element size in bytes behind a pointer or a tile of pointers."""
    element = element_of(pointer.type)
    assert isinstance(element, PointerType)
    return element.pointee.size_bytes


def max_access_elems(op: Op, target: Target) -> int:
    """Return the widest legal vector of `op`, an access through pointers, in elements.

    Atomic additions of floats are the only atomics with vectors: pairs of 16 bits everywhere, and
    16 bytes where the target has them.
    """
    pointer = accessed_pointer(op)
    assert pointer is not None
    element_bytes = pointee_bytes(pointer)
    if not op.has(Trait.ATOMIC):
        return MAX_ACCESS_BYTES // element_bytes
    if getattr(op, "kind", "") != "add" or not _is_float(pointer):
        return 1
    if element_bytes <= _VECTOR_ATOMIC_BYTES and Feature.RED_VECTOR in target.features:
        return MAX_ACCESS_BYTES // element_bytes
    return max(1, _VECTOR_ATOMIC_BYTES // element_bytes)


def _is_float(pointer: Value) -> bool:
    element = element_of(pointer.type)
    return isinstance(element, PointerType) and element.pointee.is_float


def memory_order(info: AxisInfo, likely: AxisInfo | None = None) -> tuple[int, ...]:
    """Return the axes by contiguity in memory, the most contiguous first; later axes win ties.

    Of axes without contiguity those with likely runs are first.
    """

    def key(axis: int) -> tuple[int, int, int]:
        run = info.contiguity[axis]
        return -run, 0 if likely is None or run > 1 else -likely.contiguity[axis], -axis

    return tuple(sorted(range(info.rank), key=key))


def vector_width(
    layout: LinearLayout,
    pointer: AxisInfo,
    mask: AxisInfo | None,
    element_bytes: int,
    max_elems: int,
) -> int:
    """Return how many elements one access of a thread can move, 1 to `max_elems`."""
    order = memory_order(pointer)
    fast = order[0]
    width = min(
        layout.num_consecutive("register", order),
        pointer.contiguity[fast],
        max(1, pointer.divisibility[fast] // element_bytes),
        max_elems,
    )
    return width if mask is None else min(width, mask.constancy[fast])


def in_memory_order(layout: LinearLayout, order: tuple[int, ...]) -> LinearLayout:
    """Return a layout with the registers of each thread in the order of memory; copies come last."""
    columns = layout.columns("register")
    memory_columns = layout.transpose(tuple(reversed(order))).columns("register")
    bits = sorted(range(len(columns)), key=lambda bit: (not columns[bit], memory_columns[bit]))
    return layout.with_columns("register", [columns[bit] for bit in bits])


def prefetch_bytes(pointer: AxisInfo, width: int, element_bytes: int) -> int:
    """Return the L2 prefetch size of a load: a whole line of a long run, else 0.

    A line read whole by neighbouring threads is one request to memory instead of two.
    """
    run_bytes = max(pointer.contiguity) * element_bytes
    is_wide = width * element_bytes == MAX_ACCESS_BYTES
    return _LINE_BYTES if is_wide and run_bytes >= _LINE_BYTES else 0


def repeated_run(
    load: tile.Load, layout: LinearLayout | None, infos: AxisAnalysis
) -> tuple[int, ...]:
    """Return the runs along each axis that a thread loads alike; nothing if they save no access."""
    if layout is None or load.volatile or not (load.other is None or is_uniform(load.other)):
        return ()
    runs = infos[load.pointer].constancy
    if load.mask is not None:
        runs = tuple(map(gcd, runs, infos[load.mask].constancy))
    for basis in layout.bases("register"):
        if any(basis) and all(along < run for along, run in zip(basis, runs, strict=True)):
            return runs
    return ()


# Shape and memory order of an access, whether it is atomic, and whether it loads an operand of dots.
_Kind = tuple[tuple[int, ...], tuple[int, ...], bool, bool]


def choose_layouts(kernel: Kernel, infos: AxisAnalysis, target: Target) -> dict[Op, LinearLayout]:
    """Return the coalesced layout for each access to a tile by pointers.

    Accesses of one shape and memory order share a layout, made for the access with the most
    elements per instruction. So a tile loaded, computed on and stored stays in its threads. Atomics
    share theirs among each other, since most of them move one element at a time. Operands of dots
    do not stay in a thread, so narrow operands are no reason to store results in equally long runs.

    Loads of narrower elements than those stored right after are narrower accesses, of a word at
    least. Otherwise, a thread would store its run in several accesses, each of which fills sectors
    in part.

    Where a tile is transposed between two accesses, threads hold boxes, runs of the one access by
    runs of the other: the exchange through shared memory then moves several elements at once on
    both sides.
    """
    num_warps = kernel.num_warps
    transposed: dict[_Kind, int] = {}
    widths: dict[_Kind, int] = {}
    operand_bytes: dict[_Kind, int] = {}
    keys: dict[Op, _Kind] = {}
    near_transposes = _near_transposes(kernel)
    for op in kernel.walk():
        pointer = accessed_pointer(op)
        if pointer is None or not isinstance(pointer.type, TileType):
            continue
        info = infos[pointer]
        is_operand = _is_operand(op)
        order = memory_order(info, infos.likely(pointer))
        key = (pointer.type.shape, order, op.has(Trait.ATOMIC), is_operand)
        keys[op] = key
        if is_operand and pointee_bytes(pointer) < _WORD_BYTES:
            operand_bytes[key] = pointee_bytes(pointer)
        width = _useful_width(pointer, info, num_warps, max_access_elems(op, target))
        for width_key in (key,) if is_operand else (key, (*key[:-1], True)):
            widths[width_key] = max(widths.get(width_key, 1), width)
        # Dots take operands of 16 bits as they are, rows or columns first: nothing is exchanged.
        if _is_transposed(op, near_transposes) and not (
            is_operand and pointee_bytes(pointer) == _DOT_BYTES
        ):
            transposed[key] = pointee_bytes(pointer)
    for key, width in _widening_widths(keys, infos, num_warps, target).items():
        widths[key] = min(widths[key], width)
    layouts = {
        key: _in_boxes(key, width, num_warps, transposed[key])
        if key in transposed
        else _coalesced(key, width, num_warps, operand_bytes.get(key, 0))
        for key, width in widths.items()
    }
    return {op: layouts[key] for op, key in keys.items()}


def _widening_widths(
    keys: Mapping[Op, _Kind], infos: AxisAnalysis, num_warps: int, target: Target
) -> dict[_Kind, int]:
    """Return the elements a store moves at once, by kind, where all loads are widened for it.

    Loads in a loop are not narrowed for a store after it.
    """
    accesses: dict[_Kind, list[Op]] = {}
    for op, key in keys.items():
        accesses.setdefault(key, []).append(op)
    widths: dict[_Kind, int] = {}
    for key, ops in accesses.items():
        stores = [op for op in ops if isinstance(op, tile.Store)]
        loads = [op for op in ops if isinstance(op, tile.Load)]
        if not stores or not loads or any(op.block is not stores[0].block for op in ops):
            continue
        if not any(_widened(store, loads) for store in stores):
            continue
        stored_elems = max(
            _useful_width(
                store.pointer, infos[store.pointer], num_warps, max_access_elems(store, target)
            )
            for store in stores
        )
        word_elems = _WORD_BYTES // min(pointee_bytes(load.pointer) for load in loads)
        widths[key] = max(stored_elems, word_elems)
    return widths


def _widened(store: tile.Store, loads: Sequence[tile.Load]) -> list[tile.Load]:
    """Return the loads of narrower elements whose values a store gets, computed on one by one."""
    worklist, seen = [store.value], {store.value: None}
    while worklist:
        op = worklist.pop().op
        if op is not None and op.has(Trait.ELEMENTWISE):
            worklist += [value for value in op.operands if value not in seen]
            seen.update(dict.fromkeys(op.operands))
    stored_bytes = pointee_bytes(store.pointer)
    return [
        load for load in loads if load.out in seen and pointee_bytes(load.pointer) < stored_bytes
    ]


def gathers(kernel: Kernel, infos: AxisAnalysis) -> list[Op]:
    """Return the loads at addresses computed from data, element by element, and without runs.

    They are as fast in any layout, so that of the data is best.
    """
    return [
        op
        for op in kernel.walk()
        if isinstance(op, tile.Load)
        and isinstance(op.pointer.type, TileType)
        and max(infos[op.pointer].contiguity) == max(infos.likely(op.pointer).contiguity) == 1
        and _is_of_data(op.pointer)
    ]


def _is_of_data(pointer: Value) -> bool:
    """Return whether an address is computed from tiles other than index arithmetic."""
    worklist, seen = [pointer], {pointer: None}
    while worklist:
        op = worklist.pop().op
        if isinstance(op, arith.Constant | tile.Arange) or (op and op.has(Trait.SHAPE_ONLY)):
            continue
        if op is None or not op.has(Trait.ELEMENTWISE):
            return True
        for value in op.operands:
            if isinstance(value.type, TileType) and value not in seen:
                seen[value] = None
                worklist.append(value)
    return False


def _useful_width(pointer: Value, info: AxisInfo, num_warps: int, max_elems: int) -> int:
    assert isinstance(pointer.type, TileType)
    element_bytes = pointee_bytes(pointer)
    fast = memory_order(info)[0]
    share = max(1, pointer.type.num_elems // (WARP_LANES * num_warps))
    return min(
        info.contiguity[fast],
        max(1, info.divisibility[fast] // element_bytes),
        max_elems,
        share,
    )


def _is_operand(op: Op) -> bool:
    """Return whether an op loads an operand of dots, and nothing else."""
    worklist = list(op.results) if isinstance(op, tile.Load) else []
    users: list[Op] = []
    while worklist:
        for user in worklist.pop().users:
            if user.has(Trait.VIEW):
                worklist += user.results
            else:
                users.append(user)
    return bool(users) and all(user.has(Trait.DOT) for user in users)


def _near_transposes(kernel: Kernel) -> dict[Value, None]:
    """Return the tiles separated from a transpose by elementwise ops alone."""
    near: dict[Value, None] = {}
    transposes = [op for op in kernel.walk() if isinstance(op, tile.Trans)]
    for is_ahead in (True, False):
        worklist = [
            value for op in transposes for value in (op.operands if is_ahead else op.results)
        ]
        seen: dict[Value, None] = {}
        while worklist:
            value = worklist.pop()
            if value in seen:
                continue
            seen[value] = None
            for other in [value.op] if is_ahead else list(value.users):
                if other is not None and other.has(Trait.ELEMENTWISE):
                    worklist += other.operands if is_ahead else other.results
        near.update(seen)
    return near


def _is_transposed(op: Op, near_transposes: Container[Value]) -> bool:
    """Return whether rows of an access are columns beyond a transpose.

    Only elementwise ops may be in between. No other tiles are visited: each of many loads in a sum
    would lead to all partial sums.
    """
    loads = bool(op.results)
    stored = None if loads else getattr(op, "value", None)
    worklist: list[Value] = list(op.results) if stored is None else [stored]
    seen: dict[Value, None] = {}
    while worklist:
        value = worklist.pop()
        if value in seen or value not in near_transposes or not isinstance(value.type, TileType):
            continue
        seen[value] = None
        for other in list(value.users) if loads else [value.op]:
            if isinstance(other, tile.Trans):
                return other.order[-1] != len(other.order) - 1
            if other is not None and other.has(Trait.ELEMENTWISE):
                worklist += other.results if loads else other.operands
    return False


def _coalesced(kind: _Kind, width: int, num_warps: int, operand_bytes: int) -> LinearLayout:
    """Return a coalesced layout, with runs of `width` elements in a thread.

    Of operands loaded one by one, of `operand_bytes` each, a thread has neighbours along the second
    axis: it stores them to shared memory at once. Words are copied there one by one.
    """
    shape, order, *_ = kind
    elems = [1] * len(shape)
    elems[order[0]] = width
    if operand_bytes and width == 1 and len(shape) > 1:
        share = max(1, prod(shape) // (WARP_LANES * num_warps))
        elems[order[1]] = min(share, MAX_ACCESS_BYTES // operand_bytes, shape[order[1]])
    return blocked_for(shape, tuple(elems), num_warps, order)


def _in_boxes(kind: _Kind, width: int, num_warps: int, element_bytes: int) -> LinearLayout:
    """Return a coalesced layout with neighbours in a thread along the second axis as well.

    If these fill no whole word, accesses are of 8 bytes instead of 16: an exchange of words is
    worth it.
    """
    shape, order, *_ = kind
    share = max(1, prod(shape) // (WARP_LANES * num_warps))
    while width * element_bytes > _WORDS_BYTES and share // width * element_bytes < _WORD_BYTES:
        width //= 2
    elems = [1] * len(shape)
    elems[order[0]] = width
    elems[order[1]] = max(1, min(width, share // width, shape[order[1]]))
    return blocked_for(shape, tuple(elems), num_warps, order)


def access_cost(
    layout: LinearLayout,
    pointer: AxisInfo,
    likely: AxisInfo,
    mask: AxisInfo | None,
    element_bytes: int,
    max_elems: int,
    sector_bytes: int = _SECTOR_BYTES,
) -> int:
    """Return the cost of accessing a tile under `layout`, in the units of a conversion's cost."""
    width = vector_width(layout, pointer, mask, element_bytes, max_elems)
    order = memory_order(pointer, likely)
    run_elems = max(pointer.contiguity[order[0]], likely.contiguity[order[0]])
    return _cost(layout, order, run_elems, width, element_bytes, sector_bytes)


@lru_cache(maxsize=4096)
def _cost(
    layout: LinearLayout,
    order: tuple[int, ...],
    run_elems: int,
    width: int,
    element_bytes: int,
    sector_bytes: int,
) -> int:
    free = layout.free_variable_masks()
    in_memory = layout.transpose(tuple(reversed(order)))
    lanes = [
        offset
        for lane, offset in enumerate(in_memory.table("lane"))
        if not lane & free.get("lane", 0)
    ]
    sectors: dict[tuple[int, int], None] = {}
    for offset in lanes:
        for elem in range(offset, offset + width):
            sectors[elem // run_elems, elem % run_elems * element_bytes // sector_bytes] = None
    registers = layout.in_bits("register") - free.get("register", 0).bit_count()
    warps = layout.in_bits("warp") - free.get("warp", 0).bit_count()
    instructions = max(1, (1 << registers) // width) << warps
    return instructions * (GLOBAL_ACCESS_COST + SECTOR_COST * len(sectors))
