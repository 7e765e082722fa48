"""The cost of an op to its warps: instructions, special functions, shared memory, latency.

Counted from layouts: a warp runs an instruction for each register of a tile in a thread, or for
each vector of them. Numbers of instructions are typical of LLVM and ptxas. Latencies are cycles of
a Hopper SM; other GPUs differ by little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, mbarrier, scf, thread_copy, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.types import PointerType, ScalarType, SharedType, TileType, element_of

ARITHMETIC_LATENCY = 5
SPECIAL_LATENCY = 20
SHARED_LATENCY = 30
SHUFFLE_LATENCY = 25
BARRIER_LATENCY = 30
CLUSTER_LATENCY = 200
GLOBAL_LATENCY = 600
DOT_LATENCY = 33

MACS_PER_CYCLE = 2048
"""Multiply-adds of 16-bit floats that the tensor cores of a Hopper SM do in a cycle."""

WAVEFRONT_BYTES = 128
_WARPS_OF_GROUP = 4

# Instructions of an element of 32 bits, and of the special function units.
_ARITHMETIC: dict[type[Op], tuple[float, float]] = {
    arith.Exp: (1, 1),
    arith.Exp2: (0, 1),
    arith.Log: (1, 1),
    arith.Log2: (0, 1),
    arith.Sqrt: (2, 1),
    arith.SqrtRn: (8, 1),
    arith.Rsqrt: (0, 1),
    arith.Sin: (4, 1),
    arith.Cos: (4, 1),
    arith.Erf: (20, 1),
    arith.Libdevice: (20, 1),
    arith.Div: (6, 1),
    arith.DivRn: (8, 1),
}
_INTEGER_DIVISION = (20, 2)


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of an op to one warp; `wavefronts` and `dot` are for all its warps.

    `instructions` excludes the `special` ones. Its results are ready `latency` cycles after its
    last instruction.
    """

    instructions: float = 0
    special: float = 0
    wavefronts: float = 0
    latency: float = 0
    dot: tuple[str, int] | None = None


class OpCosts:
    """The costs of the ops of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._vectors = _address_vectors(kernel)

    def of(self, op: Op, num_warps: int) -> OpCost:
        """Return the cost of an op without its blocks to each of so many warps."""
        if isinstance(op, wgmma.Wgmma | gpu.Dot):
            return _dot(op, num_warps)
        if isinstance(op, gpu.Reduce | gpu.Scan):
            return _reduction(op)
        if op.has(Trait.ELEMENTWISE):
            return self._elementwise(op)
        if isinstance(op, gpu.Convert | gpu.ShuffleConvert):
            return _conversion(op)
        if op.has(Trait.BARRIER) or isinstance(op, gpu.AsyncWait | mbarrier.MbarrierWait):
            in_cluster = "cluster" in op.opcode
            return OpCost(3, latency=CLUSTER_LATENCY if in_cluster else BARRIER_LATENCY)
        return _access(op, num_warps)

    def _elementwise(self, op: Op) -> OpCost:
        if not op.results:  # assembly may have none
            return OpCost()
        out = op.results[0]
        element = element_of(out.type)
        operand = element_of(op.operands[0].type) if op.operands else element
        count = registers(out) / self._vectors.get(out, 1)
        instructions, special = 1.0, 0.0
        if isinstance(op, arith.Cast):
            instructions, special = _cast(operand, element)
        elif isinstance(op, arith.Div | arith.Rem) and isinstance(element, ScalarType):
            instructions, special = _division(op, element)
        elif type(op) in _ARITHMETIC:
            instructions, special = _ARITHMETIC[type(op)]
        elif op.has(Trait.SAME_VALUES) or _is_fused(op):
            instructions = 0
        if isinstance(element, ScalarType) and element.is_float and element.bits < 32:
            instructions /= 32 // max(16, element.bits)
        elif element.bits == 64 and isinstance(element, ScalarType):
            instructions *= 2 if element.is_int else 32
        latency = SPECIAL_LATENCY if special else ARITHMETIC_LATENCY if instructions else 0
        return OpCost(instructions * count, special * count, latency=latency)


def registers(value: Value) -> int:
    """Return how many different elements of a tile a thread holds; 1 for a scalar."""
    kind = value.type
    if not isinstance(kind, TileType) or kind.layout is None:
        return 1
    return kind.layout.in_size("register") >> kind.layout.zero_mask("register").bit_count()


def size_bytes(value: Value) -> int:
    """Return the bytes of a tile's or buffer's elements; for pointers, of their targets."""
    kind = value.type
    element = element_of(kind)
    if isinstance(element, PointerType):
        element = element.pointee
    count = kind.num_elems if isinstance(kind, TileType) else 1
    if isinstance(kind, SharedType):
        count = 1
        for extent in kind.shape:
            count *= extent
    return count * element.size_bytes


def _cast(source: object, target: object) -> tuple[float, float]:
    if not isinstance(source, ScalarType) or not isinstance(target, ScalarType):
        return 1, 0
    if source.is_int and target.is_int:
        return (0 if target.bits <= 32 and source.bits <= 32 else 1), 0
    if source.is_int or target.is_int:
        return 0, 1
    return 1, 0


def _division(op: Op, element: ScalarType) -> tuple[float, float]:
    if element.is_float:
        return _ARITHMETIC[arith.Div]
    divisor = op.operands[1].op
    if isinstance(divisor, arith.Constant) and isinstance(divisor.value, int):
        return (1, 0) if divisor.value & (divisor.value - 1) == 0 else (4, 0)
    return _INTEGER_DIVISION


def _is_fused(op: Op) -> bool:
    """Return whether a product becomes a part of a fused multiply-add."""
    if not isinstance(op, arith.Mul) or not _is_float(op.out):
        return False
    users = [*op.out.users]
    return len(users) == 1 and isinstance(users[0], arith.Add | arith.Sub)


def _is_float(value: Value) -> bool:
    element = element_of(value.type)
    return isinstance(element, ScalarType) and element.is_float


def _dot(op: wgmma.Wgmma | gpu.Dot, num_warps: int) -> OpCost:
    a, b, out = op.a.type, op.b.type, op.out.type
    assert isinstance(out, TileType)
    assert isinstance(a, TileType | SharedType)
    assert isinstance(b, TileType | SharedType)
    rows, columns = out.shape[-2:]
    depth = a.shape[-1]
    batches = out.num_elems // (rows * columns)
    if isinstance(op, wgmma.Wgmma):
        columns, depth = op.num_columns or columns, op.size_k or depth
        groups = max(1, num_warps // _WARPS_OF_GROUP)
        # Each warpgroup reads all of b; of a, its own rows.
        size = b.element.bits // 8
        read = groups * columns * depth * size
        read += rows * depth * size if isinstance(a, SharedType) else 0
        steps = max(1, depth * size // 32) * max(1, rows // (64 * groups))
        kind = f"wgmma.{b.element}"
        cost = (rows * columns * depth, read / WAVEFRONT_BYTES)
        return OpCost(4 * steps, wavefronts=cost[1], latency=DOT_LATENCY, dot=(kind, cost[0]))
    macs = batches * rows * columns * depth
    if not op.shape:
        return OpCost(macs / (32 * num_warps), latency=ARITHMETIC_LATENCY)
    m, n, k = op.shape
    # Warps with the same part each compute it.
    issued = -(-macs // (m * n * k * num_warps)) * (m * n * k * num_warps)
    element = element_of(a)
    count = issued / (m * n * k * num_warps)
    return OpCost(count, latency=DOT_LATENCY, dot=(f"mma.{element}", issued))


def _reduction(op: gpu.Reduce | gpu.Scan) -> OpCost:
    """Registers are combined first, then lanes, by a shuffle for each bit."""
    source = op.inputs[0].type
    num_in, num_out = registers(op.inputs[0]), registers(op.outs[0])
    combine = max(1, sum(1 for _ in op.combine) - 1) * len(op.inputs)
    lane_bits = 0
    if isinstance(source, TileType) and source.layout is not None:
        lane_bits = sum(_moves(source, bit, op.axis) for bit in range(5))
    if isinstance(op, gpu.Scan):
        num_out, num_in = num_in, 2 * num_in
    shuffles = lane_bits * num_out
    instructions = (num_in - num_out if isinstance(op, gpu.Reduce) else num_in) * combine
    instructions += shuffles * (combine + len(op.inputs))
    depth = max(1, num_in // max(1, num_out)).bit_length() * ARITHMETIC_LATENCY
    return OpCost(
        max(0, instructions),
        wavefronts=shuffles * len(op.inputs) / 2,
        latency=depth + lane_bits * (SHUFFLE_LATENCY + ARITHMETIC_LATENCY * combine),
    )


def _moves(kind: TileType, bit: int, axis: int) -> bool:
    """Return whether a bit of the lane is on an axis."""
    assert kind.layout is not None
    return kind.layout.coords_table("lane")[1 << bit][axis] != 0


def _conversion(op: gpu.Convert | gpu.ShuffleConvert) -> OpCost:
    source, target = op.operands[0].type, op.results[0].type
    assert isinstance(source, TileType)
    assert isinstance(target, TileType)
    if source.layout is None or target.layout is None:
        return OpCost()
    is_local = source.layout.columns("lane") == target.layout.columns("lane")
    count = 0 if is_local else registers(op.results[0])
    words = count * max(1, element_of(target).bits // 32)
    return OpCost(2 * words, wavefronts=words, latency=SHUFFLE_LATENCY if words else 0)


def _access(op: Op, num_warps: int) -> OpCost:
    """Return the cost of a memory access, or of an op without tiles."""
    match op:
        case gpu.SharedLoad() | gpu.MaskedSharedLoad():
            return _shared(op.out, op.vector, num_warps)
        case gpu.SharedStore():
            return _shared(op.value, op.vector, num_warps)
        case gpu.Load():
            count = registers(op.out) / op.vector
            return OpCost(count, wavefronts=count * num_warps, latency=GLOBAL_LATENCY)
        case gpu.Store():
            return OpCost(registers(op.value) / op.vector)
        case gpu.AtomicRmw():
            count = registers(op.value) / op.vector
            return OpCost(2 * count, latency=GLOBAL_LATENCY if [*op.out.users] else 0)
        case gpu.AsyncCopy() | thread_copy.ThreadLoad() | thread_copy.SyncThreadLoad():
            count = registers(op.pointer) / op.vector
            return OpCost(count, wavefronts=size_bytes(op.buffer) / WAVEFRONT_BYTES)
        case tma.TmaLoad() | tma.BulkLoad() | tma.TmaStore() | tma.BulkStore() | tma.TmaReduce():
            return OpCost(4, wavefronts=size_bytes(op.buffer) / WAVEFRONT_BYTES)
        case scf.Yield() | gpu.SharedAlloc() | gpu.SharedStage() | gpu.SharedTrans():
            return OpCost()
        case _ if op.has(
            Trait.SHAPE_ONLY, Trait.SOURCE, Trait.ALIAS, Trait.VIEW, Trait.CONTROL_FLOW
        ):
            return OpCost()
        case _:
            return OpCost(
                max((registers(out) for out in op.results), default=1), latency=ARITHMETIC_LATENCY
            )


def _shared(value: Value, vector: int, num_warps: int) -> OpCost:
    count = registers(value)
    bits = element_of(value.type).bits
    wavefronts = count * num_warps * 32 * bits / 8 / WAVEFRONT_BYTES
    return OpCost(max(1.0, count / vector), wavefronts=wavefronts, latency=SHARED_LATENCY)


def is_shared_write(op: Op) -> bool:
    """Return whether a barrier waits for the op's writes to shared memory."""
    return any(
        effect.resource is Resource.SHARED and effect.access == "write" for effect in op.effects
    )


def _address_vectors(kernel: Kernel) -> Mapping[Value, int]:
    """Return the values that only address memory, with the registers of an access each covers.

    Code computes one of a vector of addresses or mask values.
    """
    vectors: dict[Value, int] = {}
    for op in reversed([*kernel.walk()]):
        addresses: list[Value] = []
        vector = 1
        if isinstance(
            op,
            gpu.Load
            | gpu.Store
            | gpu.AsyncCopy
            | thread_copy.ThreadLoad
            | thread_copy.SyncThreadLoad,
        ):
            addresses = [op.pointer, *([] if op.mask is None else [op.mask])]
            vector = op.vector
        elif op.results and (
            op.has(Trait.ELEMENTWISE, Trait.SHAPE_ONLY) or isinstance(op, gpu.Convert)
        ):
            if not _is_float(op.results[0]):
                addresses, vector = list(op.operands), vectors.get(op.results[0], 1)
        elif isinstance(op, scf.Yield):
            addresses = [v for v in op.operands if isinstance(element_of(v.type), PointerType)]
            vector = 8
        for value in op.operands:
            num_registers = vector if value in addresses else 1
            vectors[value] = min(num_registers, vectors.get(value, num_registers))
    return vectors
