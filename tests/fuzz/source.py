"""Write tile IR as source in the kernel language, one statement for each op.

The frontend's translation of the source must compute the same as the tile IR. So a random program
also tests the frontend: type promotion, loops and their variables, combine functions, launch types.

Invariant: a program is written in full, or `Unwritable` is raised: the language lacks some ops on
some types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, assembly, descriptor, indexing, scf, tile
from aotc.ir.types import (
    FP32,
    FP64,
    U32,
    U64,
    DescriptorType,
    ScalarType,
    element_of,
    shape_of,
)

_HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

"""
_NAMES = {
    "i1": "int1",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
}
_INFIX: dict[type[Op], str] = {
    arith.Add: "+",
    arith.Sub: "-",
    arith.Mul: "*",
    arith.And: "&",
    arith.Or: "|",
    arith.Xor: "^",
    arith.Shl: "<<",
    arith.Shr: ">>",
    arith.AddPtr: "+",
}
_PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CALLS: dict[type[Op], str] = {
    arith.Abs: "tl.abs",
    arith.Select: "tl.where",
    tile.Join: "tl.join",
    tile.Split: "tl.split",
}
_FP32_CALLS: dict[type[Op], str] = {
    cls: f"tl.{cls.opcode.partition('.')[2]}"
    for cls in (
        *(arith.Exp, arith.Exp2, arith.Log, arith.Log2, arith.Sqrt, arith.Rsqrt),
        *(arith.Erf, arith.Floor, arith.Ceil, arith.Sin, arith.Cos),
    )
}
_LIBDEVICE = {
    **{f"__nv_{name}": f"libdevice.{name}" for name in ("trunc", "rint")},
    "__nv_fabs": "libdevice.abs",
    "__nv_fmax": "tl.maximum",
    "__nv_fmin": "tl.minimum",
}


class Unwritable(Exception):  # noqa: N818 - what the program is
    """Report an op without a counterpart in the language."""


def dtype(element: Any) -> str:
    """Return a scalar type as the language names it."""
    assert isinstance(element, ScalarType)
    return f"tl.{_NAMES[element.name]}"


def signature(kernel: Kernel) -> dict[str, str]:
    """Return the types of the kernel's parameters as a signature."""
    promises: dict[str, str] = {}
    for info, value in zip(kernel.params, kernel.body.args, strict=True):
        kind = value.type
        promise = f":{info.divisibility}" if info.divisibility > 1 else ""
        promises[info.name] = f"{kind}{promise}"
        if isinstance(kind, DescriptorType):
            block = ",".join(map(str, kind.block))
            fill = ",nan" if kind.fill_nan else ""
            promises[info.name] = f"tensordesc<{kind.element}[{block}]{fill}>"
    return promises


def write_source(kernel: Kernel) -> str:
    """Return source whose kernel has the name, parameters and meaning of `kernel`.

    Raises: Unwritable.
    """
    writer = _Writer()
    for info, value in zip(kernel.params, kernel.body.args, strict=True):
        writer.names[value] = info.name
    writer.block(kernel.body, 1)
    head = f"@triton.jit\ndef {kernel.name}({', '.join(info.name for info in kernel.params)}):\n"
    return _HEADER + "".join(writer.functions) + head + "\n".join(writer.lines) + "\n"


class _Writer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []
        self.functions: list[str] = []
        self._count = 0

    def fresh(self, value: Value) -> str:
        """Return a new name for a value."""
        self._count += 1
        self.names[value] = f"v{self._count}"
        return self.names[value]

    def block(self, block: Block, depth: int) -> None:
        """Write the ops of a block; its terminator is the caller's."""
        for op in block:
            if op.terminator:
                continue
            nested = _NESTED.get(type(op))
            if nested is not None:
                nested(self, op, depth)
                continue
            text = self.expression(op)
            if op.results:
                text = f"{', '.join(self.fresh(value) for value in op.results)} = {text}"
            self.line(text, depth)
        if all(op.terminator for op in block):
            self.line("pass", depth)

    def line(self, text: str, depth: int) -> None:
        self.lines.append("    " * depth + text)

    def assign(self, targets: Sequence[str], values: Sequence[Value], depth: int) -> None:
        """Write an assignment of all values at once."""
        if targets:
            sources = ", ".join(self.names[value] for value in values)
            self.line(f"{', '.join(targets)} = {sources}", depth)

    def expression(self, op: Op) -> str:
        """Return the expression for an op without blocks."""
        args = ["None" if slot is None else self.names[slot] for slot in op.slots]
        if type(op) in _INFIX:
            return f"{args[0]} {_INFIX[type(op)]} {args[1]}"
        if type(op) in _CALLS:
            return f"{_CALLS[type(op)]}({', '.join(args)})"
        if type(op) in _FP32_CALLS:
            return _in_fp32(op, f"{_FP32_CALLS[type(op)]}({{}})", args)
        write = _EXPRESSIONS.get(type(op))
        if write is None:
            raise Unwritable(op.opcode)
        return write(op, args)

    def function(self, combine: Block) -> str:
        """Write a combine block as a function; return its name."""
        inner = _Writer()
        arguments = [inner.fresh(arg) for arg in combine.args]
        inner.block(combine, 1)
        yielded = ", ".join(inner.names[value] for value in combine.terminator.operands)
        inner.line(f"return {yielded}", 1)
        self._count += 1
        name = f"combine{self._count}"
        head = f"@triton.jit\ndef {name}({', '.join(arguments)}):\n"
        self.functions.append(head + "\n".join(inner.lines) + "\n\n\n")
        return name


# ---- expressions ------------------------------------------------------------------------------


def _in_fp32(op: Op, call: str, args: Sequence[str]) -> str:
    """Return a call on fp32, cast there and back where the operand is narrower."""
    element = element_of(op.results[0].type)
    if element.bits >= 32:
        return call.format(*args)
    return call.format(*(f"{arg}.to(tl.float32)" for arg in args)) + f".to({dtype(element)})"


def _constant(op: Any, args: Sequence[str]) -> str:
    del args
    element = element_of(op.type)
    value = repr(op.value)
    return f"tl.full({list(shape_of(op.type))}, {value}, {dtype(element)})"


def _quotient(op: Any, args: Sequence[str]) -> str:
    element = element_of(op.out.type)
    assert isinstance(element, ScalarType)
    return f"{args[0]} // {args[1]}" if element.is_int else _in_fp32(op, "({} / {})", args)


def _rounded_quotient(op: Any, args: Sequence[str]) -> str:
    call = "({} / {})" if element_of(op.out.type) == FP64 else "tl.div_rn({}, {})"
    return _in_fp32(op, call, args)


def _rounded_root(op: Any, args: Sequence[str]) -> str:
    call = "tl.sqrt({})" if element_of(op.out.type) == FP64 else "tl.sqrt_rn({})"
    return _in_fp32(op, call, args)


def _fma(op: Any, args: Sequence[str]) -> str:
    element = element_of(op.out.type)
    assert isinstance(element, ScalarType)
    return f"{args[0]} * {args[1]} + {args[2]}" if element.is_int else f"tl.fma({', '.join(args)})"


def _high(op: Any, args: Sequence[str]) -> str:
    if element_of(op.out.type) not in (U32, U64):
        raise Unwritable("mulhi of signed or narrow integers")
    return f"tl.umulhi({args[0]}, {args[1]})"


def _extreme(op: Any, args: Sequence[str]) -> str:
    name = "minimum" if isinstance(op, arith.Min) else "maximum"
    how = "ALL" if op.propagate_nan else "NONE"
    return f"tl.{name}({args[0]}, {args[1]}, propagate_nan=tl.PropagateNan.{how})"


def _cast(op: Any, args: Sequence[str]) -> str:
    source, target = element_of(op.value.type), op.dtype
    assert isinstance(source, ScalarType)
    if {source.is_int, target.is_int} == {True, False} and 8 in _float_bits(source, target):
        raise Unwritable("conversion of integers to and from fp8")
    rounding = ', fp_downcast_rounding="rtz"' if op.rounding == "rtz" else ""
    return f"{args[0]}.to({dtype(op.dtype)}{rounding})"


def _float_bits(*elements: ScalarType) -> list[int]:
    return [element.bits for element in elements if element.is_float]


def _libdevice(op: Any, args: Sequence[str]) -> str:
    name = op.symbol if op.symbol in _LIBDEVICE else op.symbol.removesuffix("f")
    return f"{_LIBDEVICE[name]}({', '.join(args)})"


def _assembly(op: assembly.Assembly, args: Sequence[str]) -> str:
    types = ", ".join(map(dtype, op.dtypes))
    types = f"({types})" if len(op.dtypes) > 1 else types
    call_args = f"{op.text!r}, {op.constraints!r}, [{', '.join(args)}], {types}"
    return f"tl.inline_asm_elementwise({call_args}, is_pure={op.pure}, pack={op.pack})"


def _load(op: tile.Load, args: Sequence[str]) -> str:
    return f"tl.load({args[0]}, mask={args[1]}, other={args[2]}{_policy(op)})"


def _store(op: tile.Store, args: Sequence[str]) -> str:
    return f"tl.store({args[0]}, {args[1]}, mask={args[2]}{_policy(op)})"


def _policy(op: Any) -> str:
    text = f', cache_modifier=".{op.cache}"' if op.cache else ""
    text += f', eviction_policy="{op.eviction}"' if op.eviction else ""
    return text + (", volatile=True" if getattr(op, "volatile", False) else "")


def _atomic(op: tile.AtomicRmw, args: Sequence[str]) -> str:
    how = f'mask={args[2]}, sem="{op.sem}", scope="{op.scope}"'
    return f"tl.atomic_{op.kind}({args[0]}, {args[1]}, {how})"


def _cas(op: tile.AtomicCas, args: Sequence[str]) -> str:
    return f'tl.atomic_cas({", ".join(args)}, sem="{op.sem}", scope="{op.scope}")'


def _dot(op: tile.Dot, args: Sequence[str]) -> str:
    how = f'input_precision="{op.input_precision}"' if element_of(op.a.type) == FP32 else ""
    out = f"out_dtype={dtype(element_of(op.acc.type))}"
    return f"tl.dot({args[0]}, {args[1]}, {args[2]}, {', '.join(filter(None, (how, out)))})"


def _descriptor(op: descriptor.DescriptorOf, args: Sequence[str]) -> str:
    rank = len(op.shape)
    extents, strides = args[1 : rank + 1], [*args[rank + 1 :], "1"]
    sizes = f"[{', '.join(extents)}], [{', '.join(strides)}], {list(op.shape)}"
    padding = ', padding_option="nan"' if op.fill_nan else ""
    return f"tl.make_tensor_descriptor({args[0]}, {sizes}{padding})"


def _block_load(op: descriptor.DescriptorLoad, args: Sequence[str]) -> str:
    if op.num_dropped or op.num_merged:
        raise Unwritable("a block that lacks axes")
    return f"{args[0]}.load([{', '.join(args[1:])}])"


def _block_store(op: descriptor.DescriptorStore, args: Sequence[str]) -> str:
    del op
    return f"{args[0]}.store([{', '.join(args[2:])}], {args[1]})"


def _block_reduction(op: descriptor.DescriptorReduce, args: Sequence[str]) -> str:
    return f"{args[0]}.atomic_{op.kind}([{', '.join(args[2:])}], {args[1]})"


def _prefetch(op: descriptor.DescriptorPrefetch, args: Sequence[str]) -> str:
    del op
    return f"{args[0]}.prefetch([{', '.join(args[1:])}])"


def _scatter(op: descriptor.DescriptorScatter, args: Sequence[str]) -> str:
    del op
    return f"{args[0]}.scatter({args[1]}, {args[2]}, {args[3]})"


def _hint(op: tile.Hint, args: Sequence[str]) -> str:
    return f"tl.multiple_of({args[0]}, {list(op.divisibility)})"


_EXPRESSIONS: dict[type[Op], Callable[[Any, Sequence[str]], str]] = {
    arith.Constant: _constant,
    arith.Div: _quotient,
    arith.DivRn: _rounded_quotient,
    arith.SqrtRn: _rounded_root,
    arith.Fma: _fma,
    arith.Rem: lambda _, args: f"{args[0]} % {args[1]}",
    arith.MulHi: _high,
    arith.Min: _extreme,
    arith.Max: _extreme,
    arith.Compare: lambda op, args: f"{args[0]} {_PREDICATES[op.predicate]} {args[1]}",
    arith.Neg: lambda _, args: f"-{args[0]}",
    arith.Cast: _cast,
    arith.Bitcast: lambda op, args: f"{args[0]}.to({dtype(op.dtype)}, bitcast=True)",
    arith.Libdevice: _libdevice,
    assembly.InlineAsm: _assembly,
    assembly.VolatileAsm: _assembly,
    tile.ProgramId: lambda op, _: f"tl.program_id({op.axis})",
    tile.NumPrograms: lambda op, _: f"tl.num_programs({op.axis})",
    tile.Arange: lambda op, _: f"tl.arange({op.start}, {op.end})",
    tile.Splat: lambda op, args: f"tl.broadcast_to({args[0]}, {list(op.shape)})",
    tile.Broadcast: lambda op, args: f"tl.broadcast_to({args[0]}, {list(op.shape)})",
    tile.ExpandDims: lambda op, args: f"tl.expand_dims({args[0]}, {op.axis})",
    tile.Reshape: lambda op, args: f"tl.reshape({args[0]}, {list(op.shape)})",
    tile.Trans: lambda op, args: f"tl.permute({args[0]}, {list(op.order)})",
    tile.Load: _load,
    tile.Store: _store,
    tile.AtomicRmw: _atomic,
    tile.AtomicCas: _cas,
    tile.Dot: _dot,
    indexing.Gather: lambda op, args: f"tl.gather({args[0]}, {args[1]}, {op.axis})",
    indexing.Histogram: lambda op, args: f"tl.histogram({args[0]}, {op.num_bins}, {args[1]})",
    descriptor.DescriptorOf: _descriptor,
    descriptor.DescriptorLoad: _block_load,
    descriptor.DescriptorStore: _block_store,
    descriptor.DescriptorReduce: _block_reduction,
    descriptor.DescriptorPrefetch: _prefetch,
    descriptor.DescriptorScatter: _scatter,
    descriptor.DescriptorGather: lambda _, args: f"{args[0]}.gather({args[1]}, {args[2]})",
    descriptor.DescriptorExtent: lambda op, args: f"{args[0]}.shape[{op.axis}]",
    descriptor.DescriptorStride: lambda op, args: f"{args[0]}.strides[{op.axis}]",
    tile.Hint: _hint,
    tile.Barrier: lambda *_: "tl.debug_barrier()",
}


# ---- ops with blocks --------------------------------------------------------------------------


def _reduction(writer: _Writer, op: Any, depth: int) -> None:
    combine = writer.function(op.combine)
    names = [writer.names[value] for value in op.inputs]
    inputs = names[0] if len(names) == 1 else f"({', '.join(names)})"
    call = f"tl.reduce({inputs}, {op.axis}, {combine})"
    if isinstance(op, tile.Scan):
        call = f"tl.associative_scan({inputs}, {op.axis}, {combine}, reverse={op.reverse})"
    writer.line(f"{', '.join(writer.fresh(value) for value in op.outs)} = {call}", depth)


def _for(writer: _Writer, op: scf.For, depth: int) -> None:
    names = [writer.fresh(arg) for arg in op.carried]
    inits = [value for value in op.init if value is not None]
    writer.assign(names, inits, depth)
    bounds = ", ".join(writer.names[value] for value in (op.lower, op.upper, op.step))
    hints = f", num_stages={op.num_stages}" if op.num_stages else ""
    hints += f", loop_unroll_factor={op.unroll}" if op.unroll else ""
    hints += ", flatten=True" if op.flatten else ""
    hints += ", warp_specialize=True" if op.warp_specialize else ""
    index = writer.fresh(op.induction)
    writer.line(f"for {index} in tl.range({bounds}{hints}):", depth)
    writer.block(op.body, depth + 1)
    writer.assign(names, op.body.terminator.operands, depth + 1)
    writer.names.update(zip(op.outs, names, strict=True))


def _if(writer: _Writer, op: scf.If, depth: int) -> None:
    names = [writer.fresh(value) for value in op.outs]
    for word, block in ((f"if {writer.names[op.condition]}:", op.then), ("else:", op.orelse)):
        writer.line(word, depth)
        writer.block(block, depth + 1)
        writer.assign(names, block.terminator.operands, depth + 1)


def _while(writer: _Writer, op: scf.While, depth: int) -> None:
    """Write a loop that runs while its first carried value is above zero."""
    names = [writer.fresh(arg) for arg in op.before.args]
    condition = op.before.terminator
    assert isinstance(condition, scf.Condition)
    plain = list(condition.operands[1:]) == op.before.args
    compare = condition.proceed.op
    if not (plain and isinstance(compare, arith.Compare) and compare.predicate == "gt"):
        raise Unwritable("a loop of this form")
    writer.assign(names, [value for value in op.init if value is not None], depth)
    writer.line(f"while {names[0]} > 0:", depth)
    writer.names.update(zip(op.after.args, names, strict=True))
    writer.block(op.after, depth + 1)
    writer.assign(names, op.after.terminator.operands, depth + 1)
    writer.names.update(zip(op.outs, names, strict=True))


_NESTED: dict[type[Op], Callable[[_Writer, Any, int], None]] = {
    tile.Reduce: _reduction,
    tile.Scan: _reduction,
    scf.For: _for,
    scf.If: _if,
    scf.While: _while,
}
