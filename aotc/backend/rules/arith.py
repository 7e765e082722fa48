"""Rules for elementwise arithmetic: register by register, mostly by table.

Integers go through `Integers`, so a base plus a constant stays one. Float additions and
multiplications carry LLVM's `contract` flag: the code generator may fuse them into an fma, as
Triton does by default. bf16 arithmetic is LLVM's: native where the target has it, else
`fma.rn.bf16`, which rounds once as well. fp8 is computed in fp32 and rounded back with saturation,
except for signs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.backend import division, nvvm
from aotc.backend.integers import Component, Registers
from aotc.backend.libdevice import call_libdevice
from aotc.backend.llvm_types import GLOBAL_POINTER, constant, llvm_type
from aotc.backend.lower import Lowering, Results, lowers, num_registers
from aotc.backend.rules.cast import convert_registers
from aotc.backend.thread_map import both
from aotc.ir.core import Op, Value
from aotc.ir.dialects import arith
from aotc.ir.types import FP32, ElementType, PointerType, ScalarType, element_of

Compute = Callable[[Lowering, ScalarType, Sequence[str]], str]


def scalar_element(op: Op, value: Value) -> ScalarType:
    """Return the element type of `value`. Raises: IRError for pointers."""
    element = element_of(value.type)
    if isinstance(element, PointerType):
        op.error("is undefined on pointers")
    return element


def elementwise(
    ctx: Lowering, element: ScalarType, operands: Sequence[Registers], compute: Compute
) -> list[str]:
    """Apply `compute` to each element of operands of one type; fp8 goes through fp32."""
    columns = [ctx.operands(components, element) for components in operands]
    if element.is_float and element.bits == 8:
        return promoted(ctx, element, columns, compute)
    return [compute(ctx, element, row) for row in zip(*columns, strict=True)]


def promoted(
    ctx: Lowering, element: ScalarType, columns: Sequence[Sequence[str]], compute: Compute
) -> list[str]:
    """Apply `compute` in fp32 and round back to `element`."""
    wide = [convert_registers(ctx, column, element, FP32) for column in columns]
    rows = [compute(ctx, FP32, row) for row in zip(*wide, strict=True)]
    return convert_registers(ctx, rows, FP32, element)


# ---- constants --------------------------------------------------------------------------------


@lowers(arith.Constant)
def lower_constant(ctx: Lowering, op: arith.Constant) -> Results:
    """Lower a constant: one literal for all registers."""
    del ctx
    text = constant(op.value, scalar_element(op, op.out))
    return [(text,) * num_registers(op.out.type)]


# ---- integer sums: a base and a constant --------------------------------------------------------

IntRule = Callable[[Lowering, Component, Component, ScalarType], Component]

_SUMS: dict[type[arith.Binary], IntRule] = {
    arith.Add: lambda ctx, a, b, kind: ctx.ints.add(a, b, kind.bits),
    arith.Sub: lambda ctx, a, b, kind: ctx.fields.subtract(ctx.ints.sub(a, b, kind.bits), a, b),
    arith.Mul: lambda ctx, a, b, kind: (
        ctx.ints.mul_signed(a, b, kind.bits) if kind.is_signed else ctx.ints.mul(a, b, kind.bits)
    ),
}
_FLOAT_SUMS: dict[type[arith.Binary], str] = {
    arith.Add: "fadd contract",
    arith.Sub: "fsub contract",
    arith.Mul: "fmul contract",
}
_BOOL_SUMS: dict[type[arith.Binary], str] = {arith.Add: "xor", arith.Sub: "xor", arith.Mul: "and"}


@lowers(arith.Add, arith.Sub, arith.Mul)
def lower_sum(ctx: Lowering, op: arith.Add | arith.Sub | arith.Mul) -> Results:
    """Lower sum, difference and product."""
    element = scalar_element(op, op.lhs)
    left, right = ctx.raw(op.lhs), ctx.raw(op.rhs)
    if element.is_float:
        return [
            tuple(elementwise(ctx, element, (left, right), _instruction(_FLOAT_SUMS[type(op)])))
        ]
    if element.is_bool:
        return [tuple(elementwise(ctx, element, (left, right), _instruction(_BOOL_SUMS[type(op)])))]
    rule = _SUMS[type(op)]
    if isinstance(op, arith.Mul):
        for factor, other in ((left, right), (right, left)):
            if len({*factor}) == 1 < len(other):
                bits, signed = element.bits, element.is_signed
                scaled = (
                    ctx.ints.scale(component, factor[0], bits, signed=signed) for component in other
                )
                return [tuple(scaled)]
    return [tuple(rule(ctx, a, b, element) for a, b in zip(left, right, strict=True))]


@lowers(arith.AddPtr)
def lower_addptr(ctx: Lowering, op: arith.AddPtr) -> Results:
    """Lower pointer arithmetic: constant offsets stay separate from the base."""
    pointer = element_of(op.pointer.type)
    offset = scalar_element(op, op.offset)
    if not isinstance(pointer, PointerType):
        op.error("moves something that is not a pointer")
    size = pointer.pointee.size_bytes
    pointers, offsets = ctx.raw(op.pointer), ctx.raw(op.offset)
    return [ctx.ints.add_pointers(pointers, offsets, offset.bits, size, signed=offset.is_signed)]


# ---- other binary ops -------------------------------------------------------------------------


def _instruction(opcode: str) -> Compute:
    """Return the computation by one LLVM instruction on operands of one type."""

    def compute(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        return ctx.emit.value(f"{opcode} {llvm_type(element)} {', '.join(args)}")

    return compute


def _call(stem: str) -> Compute:
    """Return the computation by an LLVM intrinsic overloaded on its float type."""

    def compute(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        kind = llvm_type(element)
        suffix = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}.get(kind, kind)
        return ctx.emit.call(kind, f"llvm.{stem}.{suffix}", [(kind, arg) for arg in args])

    return compute


def _in_fp32(compute: Compute) -> Compute:
    """Return `compute` with 16-bit floats computed in fp32 and rounded back."""

    def narrow(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        if element.bits != 16:
            return compute(ctx, element, args)
        return promoted(ctx, element, [[arg] for arg in args], compute)[0]

    return narrow


def _div(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
    if element.bits == 32:
        return nvvm.div_full(ctx.emit, args[0], args[1])
    return _instruction("fdiv")(ctx, element, args)


def _fmod(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
    symbol = "__nv_fmod" if element.bits == 64 else "__nv_fmodf"
    return call_libdevice(ctx.emit, symbol, element, [(element, arg) for arg in args])


def _mul_high(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
    if element.bits >= 16:
        return nvvm.mul_high(ctx.emit, args[0], args[1], element.bits, signed=element.is_signed)
    opcode, kind = ("sext" if element.is_signed else "zext"), llvm_type(element)
    a, b = (ctx.emit.value(f"{opcode} {kind} {arg} to i32") for arg in args)
    product = ctx.emit.value(f"mul i32 {a}, {b}")
    high = ctx.emit.value(f"lshr i32 {product}, {element.bits}")
    return ctx.emit.value(f"trunc i32 {high} to {kind}")


# Op class -> (signed integers, unsigned integers, floats); None where the op is undefined.
_BINARY: dict[type[arith.Binary], tuple[Compute | None, Compute | None, Compute | None]] = {
    arith.Div: (_instruction("sdiv"), _instruction("udiv"), _in_fp32(_div)),
    arith.DivRn: (None, None, _in_fp32(_instruction("fdiv"))),
    arith.Rem: (_instruction("srem"), _instruction("urem"), _in_fp32(_fmod)),
    arith.MulHi: (_mul_high, _mul_high, None),
}
_BITWISE: dict[type[arith.Binary], tuple[str, Callable[[int, int], int]]] = {
    arith.And: ("and", lambda a, b: a & b),
    arith.Or: ("or", lambda a, b: a | b),
    arith.Xor: ("xor", lambda a, b: a | b),
}


@lowers(arith.Shr)
def lower_shift_right(ctx: Lowering, op: arith.Shr) -> Results:
    """Lower a shift right, and record the remaining field of a word."""
    element = scalar_element(op, op.lhs)
    compute = _instruction("ashr" if element.is_signed else "lshr")
    shifted: list[str] = []
    for value, amount in zip(ctx.registers(op.lhs), ctx.raw(op.rhs), strict=True):
        name = compute(ctx, element, [value, ctx.operand(amount, element)])
        bits, signed = element.bits, element.is_signed
        shifted.append(ctx.fields.shift(name, value, amount, bits, signed=signed))
    return [tuple(shifted)]


@lowers(arith.Shl)
def lower_shift_left(ctx: Lowering, op: arith.Shl) -> Results:
    """Lower a shift left, and note where bits of words are now."""
    element = scalar_element(op, op.lhs)
    if element.is_float:
        op.error(f"is undefined on {element}")
    shifted: list[str] = []
    for value, amount in zip(ctx.registers(op.lhs), ctx.raw(op.rhs), strict=True):
        name = _instruction("shl")(ctx, element, [value, ctx.operand(amount, element)])
        shifted.append(ctx.fields.shift_left(name, value, amount, element.bits))
    return [tuple(shifted)]


@lowers(arith.Div, arith.DivRn, arith.Rem, arith.MulHi)
def lower_binary(
    ctx: Lowering,
    op: arith.Div | arith.DivRn | arith.Rem | arith.MulHi,
) -> Results:
    """Lower the binary ops of the table."""
    element = scalar_element(op, op.lhs)
    if isinstance(op, arith.Div | arith.Rem) and element.is_int:
        divided = _by_power_of_two(ctx, op, element)
        if divided is not None:
            return [divided]
        if op in ctx.shared_divisions:
            return [_by_shared_divisor(ctx, op, element)]
    signed, unsigned, floating = _BINARY[type(op)]
    compute = floating if element.is_float else signed if element.is_signed else unsigned
    if compute is None:
        op.error(f"is undefined on {element}")
    return [tuple(elementwise(ctx, element, (ctx.raw(op.lhs), ctx.raw(op.rhs)), compute))]


def _by_shared_divisor(ctx: Lowering, op: arith.Div | arith.Rem, element: ScalarType) -> Registers:
    """Return quotients or remainders by a prepared divisor."""
    compute = division.quotient if isinstance(op, arith.Div) else division.remainder
    results: list[Component] = []
    for value, divisor in zip(ctx.registers(op.lhs), ctx.registers(op.rhs), strict=True):
        prepared = division.prepare(ctx.emit, divisor, signed=element.is_signed)
        results.append(compute(ctx.emit, value, prepared))
    return tuple(results)


def _by_power_of_two(
    ctx: Lowering, op: arith.Div | arith.Rem, element: ScalarType
) -> Registers | None:
    """Return quotients or remainders by a power of two as sums, or None if some are none."""
    bits = element.bits
    results: list[Component] = []
    for value, divisor in zip(ctx.raw(op.lhs), ctx.raw(op.rhs), strict=True):
        base, count = ctx.ints.split(divisor)
        if base or count <= 0 or count & (count - 1):
            return None
        parts = ctx.ints.divide(value, count.bit_length() - 1, bits)
        if parts is None:
            return None
        results.append(parts[isinstance(op, arith.Rem)])
    return tuple(results)


@lowers(arith.And, arith.Or, arith.Xor)
def lower_bitwise(ctx: Lowering, op: arith.And | arith.Or | arith.Xor) -> Results:
    """Lower bitwise ops, and track the bits known to be clear."""
    element = scalar_element(op, op.lhs)
    opcode, possible = _BITWISE[type(op)]

    def compute(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        if isinstance(op, arith.And) and element.is_bool:
            return both(ctx, *args) or "true"
        name = _instruction(opcode)(ctx, element, args)
        masks = [_possible(ctx, arg, element.bits) for arg in args]
        if isinstance(op, arith.And) and not ctx.ints.split(args[1])[0]:
            ctx.fields.mask(name, args[0], masks[1], element.bits)
        if isinstance(op, arith.Or):
            ctx.fields.combine(name, *args)
        return ctx.ints.learn(name, possible(*masks))

    return [tuple(elementwise(ctx, element, (ctx.raw(op.lhs), ctx.raw(op.rhs)), compute))]


def _possible(ctx: Lowering, operand: str, bits: int) -> int:
    base, offset = ctx.ints.split(operand)
    return ctx.ints.possible(base, bits) if base else offset & (1 << bits) - 1


# ---- comparisons and selections ---------------------------------------------------------------


@lowers(arith.Min, arith.Max)
def lower_min_max(ctx: Lowering, op: arith.Min | arith.Max) -> Results:
    """Lower minimum and maximum."""
    element = scalar_element(op, op.lhs)
    stem = "min" if isinstance(op, arith.Min) else "max"
    if element.is_int:
        compute = _call(f"{'s' if element.is_signed else 'u'}{stem}")
    elif not op.propagate_nan:
        compute = _call(f"{stem}num")
    else:
        compute = _nan_winning(stem)
    return [tuple(elementwise(ctx, element, (ctx.raw(op.lhs), ctx.raw(op.rhs)), compute))]


def _nan_winning(stem: str) -> Compute:
    """Return the minimum or maximum with NaN for a NaN operand."""

    def compute(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        if element.bits != 64:
            return _call(f"{stem}imum")(ctx, element, args)
        # `min.NaN` has no f64 form; a sum with a NaN is NaN.
        unordered = ctx.emit.value(f"fcmp uno double {args[0]}, {args[1]}")
        nan = ctx.emit.value(f"fadd double {args[0]}, {args[1]}")
        number = _call(f"{stem}num")(ctx, element, args)
        return ctx.emit.value(f"select i1 {unordered}, double {nan}, double {number}")

    return compute


_ORDER = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
# With fewer sums, the distance costs more than it saves. Registers in one run are one access, with
# one mask.
_MIN_SUMS = 4
_RUN = 8


@lowers(arith.Compare)
def lower_compare(ctx: Lowering, op: arith.Compare) -> Results:
    """Lower a comparison; pointers compare as unsigned numbers."""
    element = element_of(op.lhs.type)
    if isinstance(element, ScalarType) and element.is_int and element.is_signed:
        sums = _compare_sums(ctx, op, element.bits)
        if sums is not None:
            return [sums]
    left, right = ctx.registers(op.lhs), ctx.registers(op.rhs)
    if isinstance(element, ScalarType) and element.is_float:
        if element.bits == 8:
            left, right = (convert_registers(ctx, regs, element, FP32) for regs in (left, right))
            element = FP32
        code = "fcmp " + ("une" if op.predicate == "ne" else f"o{op.predicate}")
    elif op.predicate in ("eq", "ne"):
        code = f"icmp {op.predicate}"
    else:
        signed = isinstance(element, ScalarType) and element.is_signed
        code = f"icmp {'s' if signed else 'u'}{_ORDER[op.predicate]}"
    kind = llvm_type(element)
    return [
        tuple(ctx.emit.value(f"{code} {kind} {a}, {b}") for a, b in zip(left, right, strict=True))
    ]


def _compare_sums(ctx: Lowering, op: arith.Compare, bits: int) -> Registers | None:
    """Compare sums of one base with one number: compare their difference with the constants.

    If both are multiples of 2**k, so is the difference, and constants on the same side of every
    multiple are compared once: consecutive columns of a thread against an end divisible by 16.
    """
    left, right, predicate = ctx.raw(op.lhs), ctx.raw(op.rhs), op.predicate
    if len({*left}) == 1:
        left, right, predicate = right, left, _MIRRORED.get(predicate, "")
    bases, constants = zip(*(ctx.ints.split(component) for component in left), strict=True)
    if predicate not in _ORDER or len({*right}) > 1 or len({*bases}) > 1:
        return None
    if len({constant // _RUN for constant in constants}) < _MIN_SUMS:
        return None
    distance = ctx.ints.distance(bases[0], constants, right[0], bits)
    if distance is None:
        return None
    code = f"icmp s{predicate} i{bits} {distance}"
    step = 1 << min(ctx.ints.trailing_zeros(base, bits) for base in (bases[0], right[0]))
    rounded = [_to_multiple(constant, step, predicate) for constant in constants]
    return tuple(ctx.emit.value(f"{code}, {-constant}") for constant in rounded)


def _to_multiple(constant: int, step: int, predicate: str) -> int:
    """Round a constant to a multiple of `step` that gives the same comparisons.

    They compare multiples of `step` with the negative of the constant.
    """
    if predicate in ("lt", "ge"):
        return constant // step * step
    return -(-constant // step) * step


@lowers(arith.Select)
def lower_select(ctx: Lowering, op: arith.Select) -> Results:
    """Lower a selection; a constant condition, or equal operands, need no instruction."""
    element = element_of(op.if_true.type)
    kind = llvm_type(element)
    conditions = ctx.registers(op.condition)
    if len(conditions) == 1:
        conditions *= num_registers(op.out.type)
    yes, no = ctx.registers(op.if_true), ctx.registers(op.if_false)

    def choose(condition: str, a: str, b: str) -> str:
        if a == b or condition == "true":
            return a
        if condition == "false":
            return b
        return ctx.emit.value(f"select i1 {condition}, {kind} {a}, {kind} {b}")

    return [tuple(choose(*row) for row in zip(conditions, yes, no, strict=True))]


# ---- unary ------------------------------------------------------------------------------------


@lowers(arith.Neg)
def lower_neg(ctx: Lowering, op: arith.Neg) -> Results:
    """Lower a negation."""
    element = scalar_element(op, op.value)
    if element.is_float and element.bits == 8:
        return [tuple(ctx.emit.value(f"xor i8 {value}, -128") for value in ctx.registers(op.value))]
    if element.is_float:
        return [tuple(elementwise(ctx, element, [ctx.raw(op.value)], _instruction("fneg")))]
    return [tuple(ctx.ints.sub("0", value, element.bits) for value in ctx.raw(op.value))]


@lowers(arith.Abs)
def lower_abs(ctx: Lowering, op: arith.Abs) -> Results:
    """Lower an absolute value."""
    element = scalar_element(op, op.value)
    if element.is_int and not element.is_signed:
        return [ctx.raw(op.value)]
    if element.is_float and element.bits == 8:
        return [tuple(ctx.emit.value(f"and i8 {value}, 127") for value in ctx.registers(op.value))]

    def compute(ctx: Lowering, element: ScalarType, args: Sequence[str]) -> str:
        if element.is_float:
            return _call("fabs")(ctx, element, args)
        kind = llvm_type(element)
        return ctx.emit.call(kind, f"llvm.abs.{kind}", [(kind, args[0]), ("i1", "false")])

    return [tuple(elementwise(ctx, element, [ctx.raw(op.value)], compute))]


@lowers(arith.Floor, arith.Ceil)
def lower_rounding(ctx: Lowering, op: arith.Floor | arith.Ceil) -> Results:
    """Lower floor and ceiling."""
    element = scalar_element(op, op.value)
    if element.is_int:
        return [ctx.raw(op.value)]
    compute = _in_fp32(_call("floor" if isinstance(op, arith.Floor) else "ceil"))
    return [tuple(elementwise(ctx, element, [ctx.raw(op.value)], compute))]


@lowers(arith.Fma)
def lower_fma(ctx: Lowering, op: arith.Fma) -> Results:
    """Lower a fused multiply-add."""
    element = scalar_element(op, op.lhs)
    operands = [ctx.raw(value) for value in op.operands]
    if element.is_int:
        return [
            tuple(
                ctx.ints.add(ctx.ints.mul(a, b, element.bits), c, element.bits)
                for a, b, c in zip(*operands, strict=True)
            )
        ]
    return [tuple(elementwise(ctx, element, operands, _call("fma")))]


@lowers(arith.Bitcast)
def lower_bitcast(ctx: Lowering, op: arith.Bitcast) -> Results:
    """Lower a bitcast: no instruction between integers of one width."""
    source = element_of(op.value.type)
    target: ElementType = op.dtype
    before, after = llvm_type(source), llvm_type(target)
    if before == after:
        return [ctx.raw(op.value)]
    if GLOBAL_POINTER in (before, after):
        opcode = "ptrtoint" if before == GLOBAL_POINTER else "inttoptr"
    elif "i1" in (before, after):
        opcode = "zext" if before == "i1" else "trunc"
    else:
        opcode = "bitcast"
    values = ctx.registers(op.value)
    if before == "i16":
        halves = ctx.fields.to_halves(values, after)
        if halves is not None:
            return [tuple(halves)]
    return [tuple(ctx.emit.value(f"{opcode} {before} {value} to {after}") for value in values)]
