"""Rules for elementary functions.

Functions of one instruction in Triton use the same one: `exp` is `ex2.approx` of the argument times
log2(e), and like `exp2`, `sqrt` and `rsqrt` it flushes subnormals. (Triton's `exp` keeps results
below 2**-126 at three more instructions per element.) Its libdevice functions (`log`, `log2`,
`sin`, `cos`, `erf`, and all in fp64) are libdevice's here too. Types narrower than fp32 are
computed in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aotc.backend import nvvm
from aotc.backend.emitter import Emitter
from aotc.backend.libdevice import call_libdevice
from aotc.backend.llvm_types import constant
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.rules.cast import convert_registers
from aotc.ir.dialects import arith
from aotc.ir.types import FP32, FP64, ScalarType, element_of

Function = Callable[[Emitter, str], str]


def _exp(emit: Emitter, value: str) -> str:
    scaled = emit.value(f"fmul contract float {value}, {constant(math.log2(math.e), FP32)}")
    return nvvm.ex2(emit, scaled)


def _libdevice(symbol: str, element: ScalarType) -> Function:
    return lambda emit, value: call_libdevice(emit, symbol, element, [(element, value)])


# Op class -> its computation in fp32 and in fp64.
_FUNCTIONS: dict[type[arith.Unary], tuple[Function, Function]] = {
    arith.Exp: (_exp, _libdevice("__nv_exp", FP64)),
    arith.Exp2: (
        nvvm.ex2,
        _libdevice("__nv_exp2", FP64),
    ),
    arith.Log: (_libdevice("__nv_logf", FP32), _libdevice("__nv_log", FP64)),
    arith.Log2: (_libdevice("__nv_log2f", FP32), _libdevice("__nv_log2", FP64)),
    arith.Sqrt: (nvvm.sqrt_approx, lambda emit, value: nvvm.sqrt_rn(emit, value, double=True)),
    arith.SqrtRn: (
        lambda emit, value: nvvm.sqrt_rn(emit, value, double=False),
        lambda emit, value: nvvm.sqrt_rn(emit, value, double=True),
    ),
    arith.Rsqrt: (nvvm.rsqrt, _libdevice("__nv_rsqrt", FP64)),
    arith.Sin: (_libdevice("__nv_sinf", FP32), _libdevice("__nv_sin", FP64)),
    arith.Cos: (_libdevice("__nv_cosf", FP32), _libdevice("__nv_cos", FP64)),
    arith.Erf: (_libdevice("__nv_erff", FP32), _libdevice("__nv_erf", FP64)),
}


@lowers(*_FUNCTIONS)
def lower_function(ctx: Lowering, op: arith.Unary) -> Results:
    """Lower an elementary function."""
    element = element_of(op.value.type)
    if not (isinstance(element, ScalarType) and element.is_float):
        op.error(f"is undefined on {element}")
    single, double = _FUNCTIONS[type(op)]
    values = ctx.registers(op.value)
    if element == FP64:
        return [tuple(double(ctx.emit, value) for value in values)]
    wide = convert_registers(ctx, values, element, FP32)
    narrowed = [single(ctx.emit, value) for value in wide]
    return [tuple(convert_registers(ctx, narrowed, FP32, element))]


@lowers(arith.Libdevice)
def lower_libdevice(ctx: Lowering, op: arith.Libdevice) -> Results:
    """Lower a call of a libdevice function on every element."""
    elements: list[ScalarType] = []
    for value in op.arguments:
        element = element_of(value.type)
        if not isinstance(element, ScalarType):
            op.error(f"passes a {element} to {op.symbol}")
        elements.append(element)
    columns = [ctx.registers(value) for value in op.arguments]
    return [
        tuple(
            call_libdevice(ctx.emit, op.symbol, op.dtype, list(zip(elements, row, strict=True)))
            for row in zip(*columns, strict=True)
        )
    ]
