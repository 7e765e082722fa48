"""Rules for dots: `mma.sync` fragment by fragment, or multiply-adds in each thread.

`ir.fragments` derives the registers of each fragment from the layouts. Here they are packed into
words and multiplied. The loop over K is outermost, so consecutive instructions add to different
accumulators and never wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.backend import nvvm
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.lower import Lowering, Results, layout_of, lowers
from aotc.backend.packing import pack
from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu
from aotc.ir.fragments import ZERO, Fragment, Fragments, fragments
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I8,
    I32,
    U8,
    ScalarType,
    element_of,
)

# Types of the operands -> how LLVM's intrinsic names them, and the type of a word.
_OPERANDS: dict[ScalarType, tuple[str, str]] = {
    BF16: ("bf16", "i32"),
    FP16: ("{acc}.{acc}", "<2 x half>"),
    FP32: ("tf32", "i32"),
    FP64: ("f64", "double"),
    I8: ("s8", "i32"),
    U8: ("u8", "i32"),
    FP8E4NV: ("{acc}.e4m3.{b}.{acc}", "i32"),
    FP8E5: ("{acc}.e5m2.{b}.{acc}", "i32"),
}
_FP8 = {FP8E4NV: "e4m3", FP8E5: "e5m2"}
_ACCUMULATORS = {FP16: "f16", FP32: "f32", FP64: "f64", I32: "s32"}


@lowers(gpu.Dot)
def lower_dot(ctx: Lowering, op: gpu.Dot) -> Results:
    """Lower a dot."""
    return _MmaLowering(ctx, op).lower() if op.shape else [_multiply_add(ctx, op)]


def _scalar_type(op: Op, value: Value) -> ScalarType:
    element = element_of(value.type)
    if not isinstance(element, ScalarType):
        op.error(f"multiplies {element}")
    return element


# ---- tensor cores -----------------------------------------------------------------------------


class _MmaLowering:
    """Lower one dot to `mma.sync`."""

    def __init__(self, ctx: Lowering, op: gpu.Dot) -> None:
        self.ctx, self.op = ctx, op
        self.element, self.acc_element = _scalar_type(op, op.a), _scalar_type(op, op.acc)
        name, self.word_type = _OPERANDS[self.element]
        other = _FP8.get(_scalar_type(op, op.b), "")
        m, n, k = op.shape
        suffix = name.format(acc=_ACCUMULATORS[self.acc_element], b=other)
        self.packs_acc = self.acc_element == FP16
        acc_type = "<2 x half>" if self.packs_acc else llvm_type(self.acc_element)
        self.kind = nvvm.Mma(f"m{m}n{n}k{k}.row.col.{suffix}", self.word_type, acc_type)
        self.zero = constant(0.0 if self.element.is_float else 0, self.element)

    def lower(self) -> Results:
        ctx, op = self.ctx, self.op
        registers = fragments(
            op.shape,
            layout_of(op.a.type),
            layout_of(op.b.type),
            layout_of(op.acc.type),
            self.element.bits,
        )
        in_copies = self._copies(registers)
        a, b, out = ctx.registers(op.a), ctx.registers(op.b), ctx.registers(op.acc)
        for a_rows, b_columns, acc_fragments in zip(
            registers.a, registers.b, registers.acc, strict=True
        ):
            acc = [[self._open(fragment, out) for fragment in row] for row in acc_fragments]
            for k in range(len(a_rows[0])):
                columns = [self._words(column[k], b, in_copies) for column in b_columns]
                for row, a_row in zip(acc, a_rows, strict=True):
                    words = self._words(a_row[k], a, in_copies)
                    for index, column in enumerate(columns):
                        row[index] = nvvm.mma(ctx.emit, self.kind, words, column, row[index])
            for row, row_places in zip(acc, acc_fragments, strict=True):
                for words, fragment in zip(row, row_places, strict=True):
                    self._close(words, fragment, out)
        return [tuple(out)]

    def _copies(self, registers: Fragments) -> str:
        """Return an i1, true in lanes with copies along K, or ""."""
        if not registers.copy_lanes:
            return ""
        emit = self.ctx.emit
        lanes = emit.thread_value(f"and i32 {self.ctx.thread}, {registers.copy_lanes}")
        return emit.thread_value(f"icmp ne i32 {lanes}, 0")

    def _words(self, fragment: Fragment, registers: Sequence[str], in_copies: str) -> list[str]:
        """Return the operands of a fragment."""
        emit, kind = self.ctx.emit, self.word_type
        words: list[str] = []
        for word in fragment:
            values = [self.zero if r == ZERO else registers[r] for r in word]
            packed = pack(emit, values, self.element)[0]
            bits = "i64" if kind == "double" else "i32"
            if in_copies:
                packed = emit.value(f"select i1 {in_copies}, {bits} 0, {bits} {packed}")
            if kind != bits:
                packed = emit.value(f"bitcast {bits} {packed} to {kind}")
            words.append(packed)
        return words

    # A fragment of the accumulator is unpacked before the first instruction and packed after the
    # last, so halves stay packed in between.

    def _open(self, fragment: Fragment, registers: Sequence[str]) -> list[str]:
        values = [registers[register] for (register,) in fragment]
        if not self.packs_acc:
            return values
        emit = self.ctx.emit
        words = [
            pack(emit, values[start : start + 2], FP16)[0] for start in range(0, len(values), 2)
        ]
        return [emit.value(f"bitcast i32 {word} to <2 x half>") for word in words]

    def _close(self, words: Sequence[str], fragment: Fragment, registers: list[str]) -> None:
        values = list(words)
        if self.packs_acc:
            emit = self.ctx.emit
            values = [
                emit.value(f"extractelement <2 x half> {word}, i32 {half}")
                for word in words
                for half in (0, 1)
            ]
        for (register,), value in zip(fragment, values, strict=True):
            registers[register] = value


# ---- threads ----------------------------------------------------------------------------------


def _multiply_add(ctx: Lowering, op: gpu.Dot) -> tuple[str, ...]:
    """Return the accumulator after a thread's multiply-adds."""
    element, acc_element = _scalar_type(op, op.a), _scalar_type(op, op.acc)
    if element != acc_element or not element.is_float:
        op.error(f"has no multiply-add of {element} to {acc_element}")
    kind = llvm_type(element)
    a, b, out = ctx.registers(op.a), ctx.registers(op.b), ctx.registers(op.acc)
    layouts = [layout_of(value.type) for value in (op.a, op.b, op.acc)]
    a_at, b_at = (
        {coords: register for register, coords in enumerate(layout.coords_table("register"))}
        for layout in layouts[:2]
    )
    for k in range(layouts[0].shape[-1]):
        for register, (*batch, row, column) in enumerate(layouts[2].coords_table("register")):
            factors = a[a_at[(*batch, row, k)]], b[b_at[(*batch, k, column)]]
            arguments = [(kind, value) for value in (*factors, out[register])]
            out[register] = ctx.emit.call(kind, f"llvm.fma.f{element.bits}", arguments)
    return tuple(out)
