"""Bugs in shared memory, layout conversions, reductions and scans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from aotc.backend.rules import convert, reduce, scan, shape, shared
from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu
from aotc.schedule.layout import decompose_scans
from aotc.schedule.shared_memory import allocate_shared
from tests.support.mutations.plant import (
    Mutation,
    after_pass,
    each,
    entry,
    found,
    in_ptx,
    replacing,
    rule,
    without,
    wrapping,
)

_LAST = "insert_barriers"

# A kernel, the number of a barrier in it, and the accesses on both sides.
_BARRIERS = (
    ("turn", 0, "a tile is written and read transposed"),
    ("turn_two", 0, "the first of two tiles is written and read"),
    ("turn_two", 1, "one tile is read and the next written to the same bytes"),
    ("turn_two", 2, "the second of two tiles is written and read"),
    ("turn_all", 1, "a tile is written and read in a loop"),
    ("turn_all", 2, "a tile is read and written over in the next iteration"),
    ("turn_all_ahead", 0, "asynchronous copies have landed and are read"),
    ("multiply", 0, "the stages of a pipelined product are filled and read"),
    ("stack_sums", 0, "the warps' tile is written and read as columns"),
    ("shared_rows", 0, "the warps' sums are written and read"),
    ("shared_rows", 1, "the warps' maxima are written and read"),
    ("shared_rows", 2, "the warps' minima are written and read"),
    ("where_largest", 0, "a reduction of two values writes and reads both"),
    ("running_sum", 0, "the warps' totals of a scan are written and read"),
    ("swap_in", 1, "an atomic's result is written for all threads and read"),
)


def _earlier(kernel: Kernel) -> None:
    barrier, store = found(kernel, gpu.Barrier)[0], found(kernel, gpu.SharedStore)[0]
    barrier.remove()
    store.block.insert(barrier, before=store)


def _only_in(op_class: type, name: str, make: Any) -> Any:
    """Return a wrapper of a rule: replace a function of its module, for some ops."""

    @contextmanager
    def spoiled() -> Iterator[None]:
        with mock.patch.object(shared, name, make(getattr(shared, name))):
            yield

    def wrapped(lower: Any) -> Any:
        def made(ctx: Any, op: Any) -> Any:
            with spoiled():
                return lower(ctx, op)

        return made

    return rule(op_class, wrapped)


def _swapped(columns: Sequence[int], first: int, other: int) -> list[int]:
    out = list(columns)
    out[first], out[other] = out[other], out[first]
    return out


def _columns(change: Any) -> Any:
    return lambda thread_columns: lambda layout: change(thread_columns(layout))


def _without_phase(columns: Sequence[int]) -> list[int]:
    """Leave of each column the highest bit: rows keep their place and lose their swizzle."""
    return [1 << column.bit_length() - 1 if column else 0 for column in columns]


def _registers_swapped(span_table: Any) -> Any:
    return lambda columns, *rest: span_table([*columns[:-2], *columns[:-3:-1]], *rest)


def _other_rows(matrix_view: Any) -> Any:
    def made(layout: Any, element_bits: int, mode: Any) -> Any:
        view = matrix_view(layout, element_bits, mode)
        return view and view.with_columns("lane", _swapped(view.columns("lane"), 3, 4))

    return made


def _plan_without(field: str) -> Any:
    def change(op: gpu.ShuffleConvert) -> None:
        names = list(convert._Plan._fields)
        plan = list(op.plan)
        plan[names.index(field)] = ()
        op.plan = tuple(plan)

    return each(gpu.ShuffleConvert, change)


def _fewer_exchanges(find_steps: Any) -> Any:
    def made(op: Any, layout: Any) -> Any:
        steps = find_steps(op, layout)
        return reduce._Steps(steps.registers, steps.exchanges[1:])

    return made


def _farther(shuffled: Any) -> Any:
    return lambda ctx, inputs, row, lane_xor: shuffled(ctx, inputs, row, lane_xor ^ 1)


def _first_only(shuffled: Any) -> Any:
    return lambda ctx, inputs, row, lane_xor: [
        *shuffled(ctx, inputs[:1], row[:1], lane_xor),
        *row[1:],
    ]


def _opposite(name: str) -> Any:
    return each(gpu.Scan, lambda op: setattr(op, name, not getattr(op, name)))


MUTATIONS = (
    *(
        Mutation(
            f"no barrier {number} in {kernel}",
            f"a barrier is left out where {where}",
            kernel,
            after_pass(_LAST, without(gpu.Barrier, number)),
        )
        for kernel, number, where in _BARRIERS
    ),
    Mutation(
        "barrier too early",
        "a barrier stands before the store that it is to follow",
        "turn",
        after_pass(_LAST, _earlier),
    ),
    Mutation(
        "barrier for half of the threads",
        "the count of a barrier is not that of the threads that come to it",
        "turn",
        in_ptx(r"^\tbar\.sync \t0;", "\tbarrier.sync \t0, 64;"),
    ),
    Mutation(
        "buffers overlap",
        "two buffers that are alive together get the same bytes",
        "multiply",
        replacing(allocate_shared.Buffer, "overlaps_in_time", lambda *_: False),
    ),
    Mutation(
        "too little shared memory",
        "a launch is told of fewer bytes than buffers take",
        "turn",
        after_pass(
            "allocate_shared",
            lambda kernel: setattr(kernel, "shared_bytes", kernel.shared_bytes - 16),
        ),
    ),
    Mutation(
        "shared buffer out of line",
        "the offset of a buffer is not a multiple of its alignment",
        "turn",
        after_pass(
            "allocate_shared",
            each(gpu.SharedAlloc, lambda op: setattr(op, "offset_bytes", op.offset_bytes + 8)),
        ),
    ),
    Mutation(
        "swizzle without its phase",
        "loads from shared memory do not follow the swizzle of the stores",
        "turn_two",
        _only_in(gpu.SharedLoad, "thread_columns", _columns(_without_phase)),
    ),
    Mutation(
        "lane bases swapped",
        "two bits of the lane change places in the addresses of loads",
        "turn_two",
        _only_in(gpu.SharedLoad, "thread_columns", _columns(lambda c: _swapped(c, 3, 4))),
    ),
    Mutation(
        "warp bases swapped",
        "two bits of the warp change places in the addresses of stores",
        "turn_two",
        _only_in(gpu.SharedStore, "thread_columns", _columns(lambda c: _swapped(c, 5, 6))),
    ),
    Mutation(
        "register bases swapped",
        "registers take the accesses of others",
        "turn_two",
        _only_in(
            gpu.SharedLoad,
            "gf2",
            lambda gf2: mock.Mock(wraps=gf2, span_table=_registers_swapped(gf2.span_table)),
        ),
    ),
    Mutation(
        "matrices at other lanes' rows",
        "ldmatrix gets the addresses of rows from the wrong lanes",
        "multiply",
        wrapping(shared, "matrix_view", _other_rows),
    ),
    Mutation(
        "shuffle from the wrong lane",
        "a conversion takes words from the lane beside the right one",
        "turn_small",
        wrapping(
            convert,
            "_source_lane",
            lambda source: (
                lambda ctx, plan: ctx.emit.thread_value(f"xor i32 {source(ctx, plan)}, 1")
            ),
        ),
    ),
    Mutation(
        "no swap before a shuffle",
        "lanes offer the same registers though they are to offer different ones",
        "turn_small",
        after_pass("plan_conversions", _plan_without("send_swaps")),
    ),
    Mutation(
        "no swap after a shuffle",
        "what was received stays in the registers of other elements",
        "turn_small",
        after_pass("plan_conversions", _plan_without("receive_swaps")),
    ),
    Mutation(
        "registers renamed in the wrong order",
        "a reshape or broadcast gives each register its neighbour's element",
        "turn",
        wrapping(
            shape,
            "rename",
            lambda rename: (
                lambda op, registers, sources, targets: rename(
                    op, tuple(reversed(registers)), sources, targets
                )
            ),
        ),
    ),
    Mutation(
        "numbers of elements in another order",
        "two bits of the lane change places in a range",
        "running_sum",
        wrapping(shape, "thread_columns", _columns(lambda c: _swapped(c, 0, 1))),
    ),
    Mutation(
        "a stage of the butterfly missing",
        "a reduction across lanes stops one exchange too early",
        "where_largest",
        wrapping(reduce, "_find_steps", _fewer_exchanges),
    ),
    Mutation(
        "exchange with the wrong lane",
        "a reduction meets some lanes twice and others never",
        "where_largest",
        wrapping(reduce, "shuffled", _farther),
    ),
    Mutation(
        "index left behind",
        "a reduction of pairs exchanges the first of each alone",
        "where_largest",
        wrapping(reduce, "shuffled", _first_only),
    ),
    Mutation(
        "unsigned maximum across lanes",
        "the wrong form of redux.sync",
        "shared_rows",
        entry(reduce._REDUX, arith.Max, ("umax", "umax")),
    ),
    Mutation(
        "inclusive for exclusive",
        "a scan gives each element what the other kind of scan would",
        "running_sum",
        after_pass("decompose_scans", _opposite("exclusive")),
    ),
    Mutation(
        "scan in the wrong direction",
        "`reverse` is lost on the way",
        "running_sum_back",
        after_pass("decompose_scans", _opposite("reverse")),
    ),
    Mutation(
        "operands of a scan swapped",
        "what comes after is combined with what comes before in the wrong order",
        "recurrence",
        wrapping(
            scan,
            "combine_rows",
            lambda combine: lambda ctx, block, left, right: combine(ctx, block, right, left),
        ),
    ),
    Mutation(
        "first lane takes from the last",
        "a scan across lanes adds what stands before the first element",
        "running_sum",
        replacing(scan, "_has_before", lambda ctx, op, plan: "true"),
    ),
    Mutation(
        "first piece takes from the last",
        "the element where a scan starts is looked for at the wrong end",
        "running_sum",
        wrapping(
            decompose_scans,
            "_at",
            lambda address: (
                lambda layout, axis, index, build: address(layout, axis, index ^ 1, build)
            ),
        ),
    ),
    Mutation(
        "copies stored where others load",
        "all threads that hold an atomic's result write it, also those that have none",
        "swap_in",
        wrapping(shared, "is_first_holder", lambda _: lambda ctx, layout: ""),
    ),
)
