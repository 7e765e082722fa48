"""Bugs in 64-bit offsets cut to 32 bits, with or without sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotc.backend import integers
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import arith
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, I64, U32, ScalarType, element_of
from tests.support.mutations.plant import Edit, Mutation, after_pass, in_llvm, in_ptx, wrapping


def _cut(self: Any, value: Any, extend: str) -> Any:
    """Return an i64 operand truncated to 32 bits."""
    short = self.emit.value(f"trunc i64 {self.materialize(value, 64)} to i32")
    return self.emit.value(f"{extend} i32 {short} to i64")


def _added(extend: str) -> Callable[[Any], Any]:
    def make(add: Any) -> Any:
        def added(
            self: Any, pointer: Any, offset: Any, bits: int, size: int, *, signed: bool
        ) -> Any:
            wide = self.extend(offset, bits, 64, signed=signed)
            return add(self, pointer, _cut(self, wide, extend), 64, size, signed=signed)

        return added

    return make


def _moved(extend: str) -> Callable[[Any], Any]:
    def make(distance: Any) -> Any:
        def moved(self: Any, *how: Any) -> Any:
            bytes_ = distance(self, *how)
            return _cut(self, bytes_, extend) if bytes_ else bytes_

        return moved

    return make


def _narrow(cls: type[Op], short: ScalarType) -> Edit:
    """Return an edit: compute all i64 results of a class in 32 bits."""

    def edit(kernel: Kernel) -> None:
        for op in [op for op in kernel.walk() if isinstance(op, cls)]:
            if element_of(op.results[0].type) != I64:
                continue
            build = Builder.before_op(op)
            sides = [build(arith.Cast(side, short)).out for side in op.operands]
            narrow = build(cls(*sides)).results[0]
            op.replace_with([build(arith.Cast(narrow, I64)).out])

    return edit


def _step(kernel: Kernel) -> None:
    """Cut offsets of tiles of pointers to 32 bits."""
    for op in [op for op in kernel.walk() if isinstance(op, arith.AddPtr)]:
        if element_of(op.offset.type) == I64:
            build = Builder.before_op(op)
            short = build(arith.Cast(op.offset, I32)).out
            op.replace_operand(op.offset, short)


def _compare_short(kernel: Kernel) -> None:
    """Compare indices of 64 bits in 32."""
    for op in [op for op in kernel.walk() if isinstance(op, arith.Compare)]:
        if element_of(op.lhs.type) == I64:
            build = Builder.before_op(op)
            sides = [build(arith.Cast(side, I32)).out for side in op.operands]
            op.replace_with([build(arith.Compare(*sides, op.predicate)).out])


_STRIDE = r"(tensormap\.replace\.tile\.global_stride\S+ \[[^]]+\], \d, )(%rd\d+);"
_CUT_STRIDE = r"{ .reg .b32 low; .reg .b64 cut; cvt.u32.u64 low, \2; cvt.s64.s32 cut, low; \1cut; }"

_KERNELS = ("far_rows_in_turn", "far_blocks", "count_far_rows", "turn_blocks")

MUTATIONS = (
    *(
        Mutation(
            f"offsets cut to 32 bits {how}, in {kernel}",
            "an index of 64 bits is cut where it is added to a pointer",
            kernel,
            wrapping(integers.Integers, "add_pointer", _added(extend)),
        )
        for how, extend in (("with their sign", "sext"), ("without a sign", "zext"))
        for kernel in _KERNELS
    ),
    *(
        Mutation(
            f"a product in 32 bits {how}, in {kernel}",
            "an index is cast after it is multiplied with the stride",
            kernel,
            after_pass("assign_layouts", _narrow(arith.Mul, short)),
        )
        for how, short in (("with its sign", I32), ("without a sign", U32))
        for kernel in _KERNELS
    ),
    *(
        Mutation(
            f"distances in bytes cut to 32 bits {how}",
            "how far a register's address is from the first one's is cut",
            "far_blocks",
            wrapping(integers.Integers, "_distance", _moved(extend)),
        )
        for how, extend in (("with their sign", "sext"), ("without a sign", "zext"))
    ),
    Mutation(
        "a pointer that a loop moves steps by 32 bits",
        "the step of a pointer is cut",
        "add_far_rows",
        after_pass("assign_layouts", _step),
    ),
    Mutation(
        "a stride of 32 bits is extended with zeros",
        "what addresses multiply is taken for unsigned",
        "far_blocks",
        in_llvm(r"sext i32", "zext i32"),
    ),
    Mutation(
        "an index of 64 bits is compared in 32",
        "the mask is computed in the width of its tile",
        "negate_long",
        after_pass("assign_layouts", _compare_short),
    ),
    Mutation(
        "a program's first element in 32 bits",
        "its number is cast after it is multiplied with the block",
        "negate_long",
        after_pass("assign_layouts", _narrow(arith.Mul, I32)),
    ),
    Mutation(
        "strides of a map that is made are cut to 32 bits",
        "a stride in bytes is taken for one in elements",
        "add_far_groups",
        in_ptx(_STRIDE, _CUT_STRIDE),
        "sm_90a",
    ),
)
