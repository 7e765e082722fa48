"""Bugs in accesses to global memory and in atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotc.backend import integers
from aotc.backend.rules import atomic, memory
from aotc.ir.core import Op
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, TileType
from aotc.schedule.analysis import axis
from aotc.schedule.cleanup import predicate_branches
from aotc.schedule.layout import atomics
from aotc.schedule.pipelining import load_pipeline
from tests.support.mutations.plant import (
    Mutation,
    after_pass,
    each,
    entry,
    in_ptx,
    replacing,
    without,
    wrapping,
)

_LAST = "insert_barriers"


def _without_slots(count: int) -> Callable[[Op], None]:
    return lambda op: op.set_slots([*op.slots[:count], *[None] * (len(op.slots) - count)])


def _one_fewer(op: arith.Compare) -> None:
    if op.predicate == "lt" and isinstance(op.lhs.type, TileType):
        build = Builder.before_op(op)
        unit = build(arith.Constant(1, op.lhs.type)).out
        op.set_slots([build(arith.Add(op.lhs, unit)).out, op.rhs])


def _one_more(op: arith.Compare) -> None:
    if op.predicate == "lt" and isinstance(op.lhs.type, TileType):
        op.predicate = "le"


def _other_is_one(op: gpu.Load) -> None:
    build = Builder.before_op(op)
    op.set_slots([op.pointer, op.mask, build(arith.Constant(1, op.out.type)).out])


def _first_part(op: arith.And) -> None:
    if isinstance(op.out.type, TileType) and op.out.type.element == I1:
        op.set_slots([op.lhs, op.lhs])


def _promised(init: Any) -> Any:
    def made(self: axis.AxisAnalysis, kernel: Any) -> None:
        with_promises = [(info, info.divisibility) for info in kernel.params]
        for info, _ in with_promises:
            object.__setattr__(info, "divisibility", 16)
        init(self, kernel)
        for info, divisibility in with_promises:
            object.__setattr__(info, "divisibility", divisibility)

    return made


def _constant_mask(_: Op, infos: list[axis.AxisInfo]) -> axis.AxisInfo:
    facts = axis.unknown(_.results[0].type)
    return axis.AxisInfo(facts.contiguity, facts.divisibility, infos[0].contiguity)


def _contiguous_product(product: Any) -> Any:
    def made(op: Op, left: axis.AxisInfo, right: axis.AxisInfo) -> axis.AxisInfo:
        facts = product(op, left, right)
        runs = tuple(map(max, left.contiguity, right.contiguity))
        return axis.AxisInfo(runs, facts.divisibility, facts.constancy)

    return made


def _wrapping(mul: Any) -> Any:
    def made(self: integers.Integers, left: Any, right: Any, bits: int) -> Any:
        out = mul(self, left, right, bits)
        if bits != 64:
            return out
        cut = self.emit.value(f"trunc i64 {self.materialize(out, 64)} to i32")
        return self.emit.value(f"sext i32 {cut} to i64")

    return made


def _scaling_first(add: Any) -> Any:
    def made(
        self: integers.Integers, pointer: Any, offset: Any, bits: int, size: int, **how: bool
    ) -> Any:
        scaled = self.mul(offset, integers.Affine("", size), bits)
        return add(self, pointer, scaled, bits, 1, **how)

    return made


def _extending(extend: Any, signed: bool) -> Any:
    def made(self: Any, value: Any, source: int, bits: int, **_: bool) -> Any:
        return extend(self, value, source, bits, signed=signed)

    return made


def _without_offset(global_address: Any) -> Any:
    def made(ctx: Any, pointer: Any) -> Any:
        base, _ = ctx.ints.split(pointer)
        return global_address(ctx, base)

    return made


def _unmasked(masked: Any) -> Any:
    def made(op: Any, mapping: Any, condition: Any, build: Builder) -> Op:
        always = build(arith.Constant(value=True, type=condition.type)).out
        return masked(op, mapping, always, build)

    return made


def _merge_loads(kernel: Any) -> None:
    first: dict[object, tile.Load] = {}
    for op in [op for op in kernel.walk() if isinstance(op, tile.Load)]:
        earlier = first.setdefault((op.pointer, op.mask), op)
        if earlier is not op:
            op.replace_with([earlier.out])


MUTATIONS = (
    Mutation(
        "store without its mask",
        "the predicate of a store is lost in lowering",
        "add",
        after_pass(_LAST, each(gpu.Store, _without_slots(2))),
    ),
    Mutation(
        "load without its mask",
        "the predicate of a load is lost in lowering",
        "add",
        after_pass(_LAST, each(gpu.Load, _without_slots(1))),
    ),
    Mutation(
        "mask one too far",
        "`<` became `<=` when a comparison was rewritten",
        "add_any_length",
        after_pass("legalize_dots", each(arith.Compare, _one_more)),
    ),
    Mutation(
        "mask one too short",
        "a bound was lowered by one and not taken back",
        "add_any_length",
        after_pass("legalize_dots", each(arith.Compare, _one_fewer)),
    ),
    Mutation(
        "wrong other",
        "masked-off lanes are given another number than asked for",
        "shared_rows",
        after_pass(_LAST, each(gpu.Load, _other_is_one)),
    ),
    Mutation(
        "other forgotten",
        "masked-off lanes are zero whatever was asked for",
        "largest",
        after_pass(_LAST, each(gpu.Load, _without_slots(2))),
    ),
    Mutation(
        "register not initialised",
        "a masked load does not fill the registers of lanes that are off",
        "largest",
        in_ptx(r"^\tmov\.b32 \t%r\d+, -1000;$", ""),
    ),
    Mutation(
        "vector wider than the promise",
        "pointers are taken for multiples of 16 though nobody said so",
        "turn_two_anywhere",
        wrapping(axis.AxisAnalysis, "__init__", _promised),
    ),
    Mutation(
        "vector under a mask that changes",
        "the first element's mask is taken for the whole vector's",
        "add_any_length",
        entry(axis._RULES, arith.Compare, _constant_mask),
    ),
    Mutation(
        "vector of elements that are apart",
        "a multiple of consecutive numbers is taken for consecutive",
        "every_second",
        wrapping(axis, "_product", _contiguous_product),
    ),
    Mutation(
        "vector packed backwards",
        "a store packs the registers of a vector in the wrong order",
        "add_aligned",
        wrapping(
            memory, "pack", lambda pack: lambda emit, vs, kind: pack(emit, list(vs)[::-1], kind)
        ),
    ),
    Mutation(
        "constant part of an address lost",
        "the immediate of an access is dropped",
        "add",
        wrapping(memory, "global_address", _without_offset),
    ),
    Mutation(
        "address in wrong units",
        "pointer arithmetic takes an element for twice its size",
        "add",
        wrapping(
            integers.Integers,
            "add_pointer",
            lambda add: (
                lambda self, pointer, offset, bits, size, **how: add(
                    self, pointer, offset, bits, 2 * size, **how
                )
            ),
        ),
    ),
    Mutation(
        "product of 64 bits wraps at 32",
        "an index is computed in 32 bits after a cast to 64",
        "spread",
        wrapping(integers.Integers, "mul", _wrapping),
    ),
    Mutation(
        "far rows in 32 bits",
        "an offset that needs 64 bits only for large tensors is computed in 32",
        "far_rows",
        wrapping(integers.Integers, "mul", _wrapping),
    ),
    Mutation(
        "bytes of a long vector in 32 bits",
        "an index of 32 bits is multiplied by the size of an element before it is extended",
        "add",
        wrapping(integers.Integers, "add_pointer", _scaling_first),
    ),
    Mutation(
        "unsigned index extended with its sign",
        "an index of u8 above 127 goes backwards",
        "pick",
        wrapping(integers.Integers, "extend", lambda extend: _extending(extend, signed=True)),
    ),
    Mutation(
        "signed index extended with zeros",
        "a negative index goes far forwards",
        "flip",
        wrapping(integers.Integers, "extend", lambda extend: _extending(extend, signed=False)),
    ),
    Mutation(
        "load that should not run",
        "a load taken out of its branch does not keep the branch's condition",
        "above",
        wrapping(predicate_branches, "_masked", _unmasked),
    ),
    Mutation(
        "atomic by every copy",
        "all threads that hold an element update it",
        "count",
        replacing(atomic, "is_first_holder", lambda ctx, layout: ""),
    ),
    Mutation(
        "pair of halves at an odd address",
        "a packed atomic goes to pointers that are promised nothing",
        "accumulate",
        wrapping(axis.AxisAnalysis, "__init__", _promised),
    ),
    Mutation(
        "atomic minimum of negative floats",
        "negative numbers are compared as if their bits had the order of positive ones",
        "least",
        entry(atomic._REVERSED, "min", "min"),
    ),
    Mutation(
        "atomic's result for one thread only",
        "copies of the element do not get what the update has found",
        "swap_in",
        replacing(atomics, "_has_copies", lambda layout: False),
    ),
    Mutation(
        "atomic maximum in place of a minimum",
        "the wrong row of a table of instructions",
        "least",
        after_pass(_LAST, each(gpu.AtomicRmw, lambda op: setattr(op, "kind", "max"))),
    ),
    Mutation(
        "half of a mask lost",
        "the conjunction of two masks is its first part",
        "turn",
        after_pass("legalize_dots", each(arith.And, _first_part)),
    ),
    Mutation(
        "no barrier between threads' accesses to memory",
        "a barrier of the user's is left out",
        "through_memory",
        after_pass(_LAST, without(tile.Barrier, 0)),
    ),
    Mutation(
        "load ahead of a store to the same memory",
        "two arguments are taken for different memory, and the kernel is launched in place",
        "next_rows",
        replacing(load_pipeline, "load_disorder", lambda loop, load, barriers: ""),
    ),
    Mutation(
        "atomic does not release",
        "the fence in front of an atomic is left out",
        "last_adds_up",
        after_pass(_LAST, without(gpu.Fence, 0)),
    ),
    Mutation(
        "atomic does not acquire",
        "the fence after an atomic is left out",
        "last_adds_up",
        after_pass(_LAST, without(gpu.Fence, 1)),
    ),
    Mutation(
        "fences of too small a scope",
        "the scope of an atomic's fences is its CTA",
        "last_adds_up",
        in_ptx(r"fence\.acq_rel\.gpu", "fence.acq_rel.cta"),
    ),
    Mutation(
        "atomic of too small a scope",
        "an atomic counts among the threads of its CTA",
        "last_adds_up",
        in_ptx(r"atom\.relaxed\.gpu", "atom.relaxed.cta"),
    ),
    Mutation(
        "counter is no atomic",
        "an atomic operation is a load and a store",
        "last_adds_up",
        in_ptx(
            r"@(%p\d+) atom\.relaxed\.gpu\.global\.add\.u32 (%r\d+), (\[.*?\]), (%r\d+);",
            r"@\1 ld.relaxed.gpu.global.b32 \2, \3;\n@\1 add.u32 \4, \2, \4;\n"
            r"@\1 st.relaxed.gpu.global.b32 \3, \4;",
        ),
    ),
    Mutation(
        "released before the barrier",
        "no barrier stands between the stores of a CTA and the fence of the thread that counts",
        "last_adds_up",
        in_ptx(r"bar\.sync\s+0;(?=(?:(?!bar\.sync)[\s\S])*?fence\.acq_rel)", "", 1),
    ),
    Mutation(
        "wrong program",
        "axes of the grid are swapped",
        "turn",
        in_ptx(r"%ctaid\.x", "%ctaid.y"),
    ),
    Mutation(
        "load moved over a store",
        "two loads of one address are merged though something is stored between them",
        "add_one_in_place",
        after_pass("eliminate_common", _merge_loads),
    ),
)
