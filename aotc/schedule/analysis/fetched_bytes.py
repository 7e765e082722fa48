"""Choose the bytes of a tensor's rows that tensor copies fetch into the L2 cache.

Memory is read in sectors, and a tensor map sets the fetched size around a miss: up to 256 aligned
bytes. A loop along the rows, at least 128 bytes at a time, needs the other half an iteration later.
So memory is read half as often, in pieces twice as long, and ahead of time. With fewer bytes at a
time, 128 are already ahead. If one load takes 256 bytes of a row, by adjacent boxes, nothing is
left to fetch ahead, and the boxes fetch the same twice. If the rows end with a box, or a loop walks
across them, the extra bytes are useless.

Invariant: a hint. Copies are the same for any choice. Source: CUDA driver API,
`CUtensorMapL2promotion`.
"""

from __future__ import annotations

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tma
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside
from aotc.ir.types import SharedType, TensorMapType
from aotc.ir.walks import Steps, run

FETCHED_BYTES = 128
MOST_FETCHED_BYTES = 256


def fetched_bytes(kernel: Kernel) -> dict[Value, int]:
    """Return, for each tensor map parameter, the aligned bytes fetched to the L2 cache at once."""
    maps = [arg for arg in kernel.body.args if isinstance(arg.type, TensorMapType)]
    return {
        tensor_map: MOST_FETCHED_BYTES
        if any(isinstance(user, tma.TmaLoad) and _walks_along(user) for user in tensor_map.users)
        else FETCHED_BYTES
        for tensor_map in maps
    }


def _walks_along(load: tma.TmaLoad) -> bool:
    """Return whether the innermost loop around a load moves along rows into the fetched bytes."""
    loop = _innermost_loop(load)
    memory = load.buffer.type
    assert isinstance(memory, SharedType)
    size_bytes = memory.element.size_bytes
    if loop is None or not FETCHED_BYTES <= memory.shape[-1] * size_bytes < MOST_FETCHED_BYTES:
        return False
    step = run(_step(load.coords[-1], loop, {}))
    return step is not None and 0 < abs(step) * size_bytes < MOST_FETCHED_BYTES


def _innermost_loop(op: Op) -> scf.For | None:
    loop = next((ancestor for ancestor in op.ancestors() if ancestor.has(Trait.LOOP)), None)
    return loop if isinstance(loop, scf.For) else None


def _step(value: Value, loop: scf.For, steps: dict[Value, int | None]) -> Steps[int | None]:
    """Return a scalar's increment per iteration, or None if unknown."""
    if value not in steps:
        steps[value] = yield _step_of(value, loop, steps)
    return steps[value]


def _step_of(value: Value, loop: scf.For, steps: dict[Value, int | None]) -> Steps[int | None]:
    if value is loop.induction:
        return _constant(loop.step)
    if not is_inside(value.owner, loop):
        return 0
    op = value.op
    if op is None:
        return _carried_step(value, loop)
    if isinstance(op, arith.Constant):
        return 0
    if not isinstance(op, arith.Add | arith.Sub | arith.Mul | arith.Div):
        return None
    left = yield _step(op.lhs, loop, steps)
    right = None if left is None else (yield _step(op.rhs, loop, steps))
    if left is None or right is None:
        return None
    if isinstance(op, arith.Mul | arith.Div):
        return _scaled(left, right, op)
    return left + right if isinstance(op, arith.Add) else left - right


def _scaled(left: int, right: int, op: arith.Mul | arith.Div) -> int | None:
    if left == right == 0:
        return 0
    factor = _constant(op.rhs)
    if isinstance(op, arith.Div):  # from a multiple on, as loops begin
        return None if not factor or left % factor else left // factor
    if factor is None:
        factor, left = _constant(op.lhs), right
    return None if factor is None else left * factor


def _carried_step(value: Value, loop: scf.For) -> int | None:
    """Return the increment of a loop-carried value with a constant added."""
    if value.owner is not loop.body:
        return None
    op = loop.body.terminator.operands[value.index - 1].op
    if not isinstance(op, arith.Add):
        return None
    steps = {op.lhs: _constant(op.rhs), op.rhs: _constant(op.lhs)}
    return steps.get(value)


def _constant(value: Value) -> int | None:
    op = value.op
    return op.value if isinstance(op, arith.Constant) and isinstance(op.value, int) else None
