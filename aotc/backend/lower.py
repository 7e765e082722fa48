"""gpu IR to LLVM IR: the registry of lowering rules and the driver for them.

A rule is a function `(ctx, op) -> results`, registered for an op class with `@lowers`. A value of a
tile type is a tuple of components, one for each register of its layout, broadcast registers
included; a scalar is a tuple of one. The driver walks the ops, sets the debug location and binds
the results of each rule.

Invariant: every op has exactly one rule, and a rule returns as many components for each result as
the layout of the result has registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from aotc.backend import nvvm, nvvm_tensor
from aotc.backend.bit_fields import BitFields
from aotc.backend.debug import LineTable
from aotc.backend.emitter import Emitter
from aotc.backend.integers import Component, Integers, Registers
from aotc.backend.libdevice import KEEPS_SUBNORMALS
from aotc.backend.llvm_types import GLOBAL_POINTER, llvm_type
from aotc.backend.nvvm_issue import Issuer
from aotc.backend.shared_divisors import shared_divisions
from aotc.ir.core import Block, Kernel, Op, OpT, Value
from aotc.ir.diagnostics import CompileError, IRError
from aotc.ir.dialects import roles
from aotc.ir.layout import LinearLayout
from aotc.ir.params import ParamInfo
from aotc.ir.types import PointerType, ScalarType, TensorMapType, TileType, Type, element_of
from aotc.target import MAX_PARAM_BYTES, Feature, Target

WARP_SIZE = 32
WARPGROUP_SIZE = 4 * WARP_SIZE
LANE_BITS = 5
SHARED = "@shared"
TENSOR_MAP_BYTES = 128
_MAX_PARAM_ALIGNMENT = 64  # the alignment of a tensor map

Results: TypeAlias = "Sequence[Registers]"
Rule: TypeAlias = "Callable[[Lowering, OpT], Results]"

Role = Literal["all", "consumer", "producer"]

RULES: dict[type[Op], Callable[[Lowering, Any], Results]] = {}


def lowers(*classes: type[OpT]) -> Callable[[Rule[OpT]], Rule[OpT]]:
    """Register a rule for op classes. Raises: IRError if one has a rule already."""

    def register(rule: Rule[OpT]) -> Rule[OpT]:
        for cls in classes:
            if cls in RULES:
                raise IRError(f"{cls.opcode} has two lowering rules")
            RULES[cls] = rule
        return rule

    return register


# ---- results ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """The place of one kernel parameter in the parameter buffer, naturally aligned."""

    name: str
    type: str
    offset_bytes: int
    size_bytes: int


# LLVM's flag for fusing, in the spelling of `arith.py` and `math.py`.
_CONTRACT = re.compile(r"\b(fadd|fsub|fmul) contract ")


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel as LLVM IR text, and the offsets of its launch arguments.

    `num_lines` is the length of the text without a line table. `line_table`, if any, completes the
    PTX of the text.
    """

    llvm_ir: str
    params: tuple[ParamSlot, ...]
    num_lines: int
    line_table: LineTable | None = None


def param_layout(kernel: Kernel) -> tuple[ParamSlot, ...]:
    """Return the place of each parameter in the parameter buffer."""
    slots: list[ParamSlot] = []
    end = 0
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        is_map = isinstance(arg.type, TensorMapType)
        size = TENSOR_MAP_BYTES if is_map else element_of(arg.type).size_bytes
        offset = -(-end // min(size, _MAX_PARAM_ALIGNMENT)) * min(size, _MAX_PARAM_ALIGNMENT)
        slots.append(ParamSlot(info.name, str(arg.type), offset, size))
        end = offset + size
    return tuple(slots)


def _check_params(kernel: Kernel, params: Sequence[ParamSlot]) -> None:
    """Check that all GPUs and drivers can pass the parameters. Raises: CompileError."""
    end = max((slot.offset_bytes + slot.size_bytes for slot in params), default=0)
    if end > MAX_PARAM_BYTES:
        message = f"the parameters take {end} bytes, the limit is {MAX_PARAM_BYTES}"
        remedy = "fewer arguments, or their values in an array that the kernel loads"
        raise CompileError(message, kernel.loc, remedy=remedy)


# ---- driver -----------------------------------------------------------------------------------


class Lowering:
    """State shared by the rules while one kernel is lowered."""

    def __init__(self, kernel: Kernel, target: Target, debug: LineTable | None = None) -> None:
        self.kernel = kernel
        self.target = target
        self.emit = Emitter()
        self.ints = Integers(self.emit)
        self.fields = BitFields(self.emit, self.ints)
        self.debug = debug
        self.uses_shared = False
        self.shared_divisions = shared_divisions(kernel)
        self._values: dict[Value, Registers] = {}
        group_threads = WARP_SIZE * kernel.num_warps
        consumer_threads = group_threads * kernel.num_consumer_groups
        self._role: Role = "all"
        self._producer_warps = 1
        self.group: str = ""
        """The index of this thread's consumer group, "" unless there are several."""
        self._group_bits = group_threads.bit_length() - 1
        self.emit.declare("i32", "llvm.nvvm.read.ptx.sreg.tid.x", ())
        self.thread = self.emit.thread_value(
            f"call range(i32 0, {kernel.num_threads}) i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
        )
        self.ints.learn(self.thread, (1 << (consumer_threads - 1).bit_length()) - 1)

    @property
    def thread_bits(self) -> int:
        """The number of bits of a thread's id in its role."""
        if self._role != "producer" or self._producer_warps == 1:
            return self._group_bits
        return (WARP_SIZE * self._producer_warps).bit_length() - 1

    def opaque_thread_id(self) -> None:
        """Read the thread id anew, so LLVM cannot move later uses of it before this point."""
        self.emit.start_section()
        self.thread = self.emit.thread_value(nvvm.read_thread())
        self.ints.learn(self.thread, (1 << self.thread_bits) - 1)

    # ---- values --------------------------------------------------------------

    def raw(self, value: Value) -> Registers:
        """Return the registers of `value`; sums of a base and a constant stay as they are."""
        return self._values[value]

    def registers(self, value: Value) -> list[str]:
        """Return the registers of `value` as operands."""
        return self.operands(self._values[value], element_of(value.type))

    def scalar(self, value: Value) -> str:
        """Return a scalar as an operand."""
        return self.operand(self._values[value][0], element_of(value.type))

    def operand(self, component: Component, element: ScalarType | PointerType) -> str:
        """Return a component as an operand."""
        if isinstance(component, str):
            return component
        if isinstance(element, PointerType):
            return self.ints.materialize_pointer(component)
        return self.ints.materialize(component, element.bits)

    def operands(
        self, components: Sequence[Component], element: ScalarType | PointerType
    ) -> list[str]:
        """Return components of one type as operands; most are already."""
        return [
            component if isinstance(component, str) else self.operand(component, element)
            for component in components
        ]

    def bind(self, value: Value, registers: Registers) -> None:
        """Set the registers of `value`."""
        self._values[value] = registers

    # ---- roles ---------------------------------------------------------------

    @contextmanager
    def role(self, role: Role, num_warps: int = 1) -> Generator[None]:
        """Lower the ops of the `with` block for the threads of a role.

        With several consumer groups, the threads of each are numbered from 0, as if it were the
        only one. The same holds for a producer of `num_warps` warps, if there are several.
        """
        before: tuple[Role, str, str] = self._role, self.thread, self.group
        warps = self._producer_warps
        self._role, self._producer_warps = role, num_warps
        if role == "consumer" and self.kernel.num_consumer_groups > 1:
            self._number_in_group()
        if role == "producer" and num_warps > 1:
            self._number_in_producer()
        try:
            yield
        finally:
            self._role, self.thread, self.group = before
            self._producer_warps = warps

    def _number_in_producer(self) -> None:
        """Compute this thread's id within the producer."""
        first = self.kernel.num_threads - WARP_SIZE * self.kernel.producer_warps
        self.thread = self.emit.thread_value(f"sub i32 {self.thread}, {first}")
        self.ints.learn(self.thread, (1 << self.thread_bits) - 1)

    def _number_in_group(self) -> None:
        """Compute this thread's consumer group, and its thread id in the group."""
        highest, mask = self.kernel.num_consumer_groups - 1, (1 << self.thread_bits) - 1
        number = self.emit.thread_value(f"lshr i32 {self.thread}, {self.thread_bits}")
        # Read from one lane, so ptxas knows it to be warp-uniform.
        self.group = self.emit.thread_value(nvvm.first_lane(self.emit, number))
        self.ints.learn(self.group, (1 << highest.bit_length()) - 1)
        self.thread = self.emit.thread_value(f"and i32 {self.thread}, {mask}")
        self.ints.learn(self.thread, mask)

    @property
    def warp(self) -> str:
        """The index of this thread's warp in its role, a warp-uniform i32."""
        number = self.emit.thread_value(f"lshr i32 {self.thread}, {LANE_BITS}")
        # Read from one lane, so ptxas knows it to be warp-uniform.
        return self.emit.thread_value(nvvm.first_lane(self.emit, number))

    @property
    def issuer(self) -> Issuer:
        """The thread to issue copies: one of the role's first warp."""
        if self._role != "all" and self.role_warps == 1:
            return Issuer()
        return Issuer(self.emit.thread_value(f"icmp eq i32 {self.warp}, 0"))

    @property
    def first_lane(self) -> str:
        """An i1, true in the first lane of each warp, computed ahead of loops."""
        lane = self.emit.thread_value(f"and i32 {self.thread}, {WARP_SIZE - 1}")
        return self.emit.thread_value(f"icmp eq i32 {lane}, 0")

    @property
    def role_warps(self) -> int:
        """The number of warps that run the lowered code, each of them all of it."""
        return self._producer_warps if self._role == "producer" else self.kernel.num_warps

    @property
    def barrier_threads(self) -> int:
        """The number of threads at a barrier of this role; 0 stands for all of the CTA."""
        return WARP_SIZE * self.kernel.num_warps if self._role == "consumer" else 0

    # ---- blocks --------------------------------------------------------------

    def lower_ops(self, block: Block) -> list[Registers]:
        """Lower a nested block with bound arguments; return its terminator's operands.

        The terminator itself is lowered by the enclosing op.
        """
        for op in block:
            if op is block.last and op.terminator:
                break
            self.lower_op(op)
        return [self.raw(value) for value in block.terminator.operands]

    def inline(self, block: Block, arguments: Sequence[Component]) -> list[Component]:
        """Lower a block of scalar ops with these arguments; return the yielded values."""
        for arg, component in zip(block.args, arguments, strict=True):
            self.bind(arg, (component,))
        return [registers[0] for registers in self.lower_ops(block)]

    def lower_op(self, op: Op) -> None:
        """Apply the rule of `op` and bind its results."""
        rule = RULES.get(type(op))
        if rule is None:
            op.error("has no lowering rule")
        if self.debug is not None:
            self.emit.debug_suffix = self.debug.suffix(op.loc)
        results = rule(self, op)
        if len(results) != len(op.results):
            op.error(f"lowered to {len(results)} results, not {len(op.results)}")
        for value, registers in zip(op.results, results, strict=True):
            if len(registers) != num_registers(value.type):
                op.error(f"lowered to {len(registers)} registers, not {num_registers(value.type)}")
            self._values[value] = registers


def num_registers(type_: Type) -> int:
    """Return the number of registers per thread of a value of `type_`."""
    return layout_of(type_).in_size("register") if isinstance(type_, TileType) else 1


def layout_of(type_: Type) -> LinearLayout:
    """Return the layout of a tile type. Raises: IRError if it is not a tile or has no layout."""
    if not isinstance(type_, TileType) or type_.layout is None:
        raise IRError(f"{type_} has no layout")
    return type_.layout


# ---- the whole kernel -------------------------------------------------------------------------


def lower_kernel(
    kernel: Kernel,
    target: Target,
    *,
    debug_lines: bool = False,
    line_root: str | None = None,
    owns_sm: bool = False,
    fuses_multiplies: bool = True,
    reflects_ftz: bool = True,
) -> Lowered:
    """Lower a kernel of gpu IR to LLVM IR text.

    `debug_lines` adds a line table of the kernel's own lines, files without folders. `line_root`
    adds one for profilers, files relative to this folder (debug.py). `owns_sm` asks for all
    registers of an SM for a single CTA. Unless `fuses_multiplies`, only the kernel's own fma ops
    fuse a product and a sum. Unless `reflects_ftz`, libdevice keeps subnormals.

    Raises: CompileError if it has more parameters than a launch can pass; IRError if an op has no rule or
        violates its rule's requirements.
    """
    _check_cluster(kernel, target)
    params = param_layout(kernel)
    _check_params(kernel, params)
    has_lines = debug_lines or line_root is not None
    debug = LineTable(kernel, line_root) if has_lines else None
    ctx = Lowering(kernel, target, debug)
    header = [_bind_param(ctx, *param) for param in enumerate(kernel.params)]
    _prefetch_maps(ctx)
    ctx.lower_ops(kernel.body)
    ctx.lower_op(kernel.body.terminator)
    emit = ctx.emit
    emit.release()
    shared = [f"{SHARED} = external addrspace(3) global [0 x i8], align 1024"]
    define = f"define ptx_kernel void @{kernel.name}({', '.join(header)}) {_attributes(kernel, owns_sm=owns_sm)}"
    lines = [
        'target triple = "nvptx64-nvidia-cuda"',
        *(shared if ctx.uses_shared else []),
        *(f"{name} = type {content}" for content, name in emit.structs.items()),
        *(f"{name} = {content}" for content, name in emit.globals.items()),
        *emit.declarations,
        define + (debug.function_suffix() if debug else "") + " {",
        "entry:",
        *emit.own_buffer(),
        *emit.sections,
        *emit.prologue,
        *emit.lines,
        "}",
        "attributes #0 = { convergent nounwind }",
        *emit.metadata,
    ]
    code = "\n".join(lines) + "\n"
    if not fuses_multiplies:
        code = _CONTRACT.sub(r"\1 ", code)
    if not reflects_ftz:
        code += f"{KEEPS_SUBNORMALS}\n"
    table = "".join(f"{line}\n" for line in debug.metadata()) if debug else ""
    return Lowered(code + table, params, code.count("\n"), debug)


def _check_cluster(kernel: Kernel, target: Target) -> None:
    """Raise IRError unless the target can have clusters of this size."""
    count = kernel.num_ctas
    is_power = count > 0 and count & (count - 1) == 0
    if not is_power or count > target.max_ctas_per_cluster:
        raise IRError(f"clusters of {count} CTAs", kernel.loc)
    if count > 1 and Feature.CLUSTERS not in target.features:
        raise IRError(f"clusters of {count} CTAs on {target}", kernel.loc)


def _attributes(kernel: Kernel, *, owns_sm: bool) -> str:
    attributes = {"nvvm.reqntid": str(kernel.num_threads)}
    if kernel.maxnreg:
        attributes["nvvm.maxnreg"] = str(kernel.maxnreg)
    # `setmaxnreg` requires a known number of registers per thread at launch.
    moves = any(isinstance(op, roles.Specialize) and op.consumer_registers for op in kernel.body)
    if moves or (owns_sm and not kernel.maxnreg):
        attributes["nvvm.minctasm"] = "1"
    elif kernel.min_ctas_per_sm:
        attributes["nvvm.minctasm"] = str(kernel.min_ctas_per_sm)
    if kernel.num_ctas > 1:
        attributes["nvvm.cluster_dim"] = f"{kernel.num_ctas},1,1"
    return " ".join(["nounwind", *(f'"{name}"="{text}"' for name, text in attributes.items())])


def _prefetch_maps(ctx: Lowering) -> None:
    """Prefetch tensor maps in another thread than the one initializing mbarriers."""
    args = ctx.kernel.body.args
    maps = [arg for arg in args if isinstance(arg.type, TensorMapType) and arg.users]
    if maps:
        is_last = f"icmp eq i32 {ctx.warp}, {ctx.kernel.num_threads // WARP_SIZE - 1}"
        issuer = Issuer(ctx.emit.thread_value(is_last))
        nvvm_tensor.prefetch_maps(ctx.emit, [ctx.scalar(arg) for arg in maps], issuer)


def _range(bits: int, first: int, last: int) -> str:
    """Return LLVM's attribute for the values from `first` to `last`, "" for all of the type."""
    end = last + 1
    if last - first + 1 >= 1 << bits:
        return ""
    half = 1 << (bits - 1)
    low, high = ((value + half) % (1 << bits) - half for value in (first, end))
    return f"range(i{bits} {low}, {high}) "


def _bind_param(ctx: Lowering, index: int, info: ParamInfo) -> str:
    """Bind a parameter to its value; return its text in the function's header."""
    arg = ctx.kernel.body.args[index]
    name = f"%p{index}"
    if isinstance(arg.type, TensorMapType):
        ctx.bind(arg, (name,))
        kind = f"[{TENSOR_MAP_BYTES} x i8]"
        return f'ptr byval({kind}) align {_MAX_PARAM_ALIGNMENT} "nvvm.grid_constant" {name}'
    element = element_of(arg.type)
    if isinstance(element, PointerType):
        ctx.bind(arg, (name,))
        # LLVM's alignment is the largest power of two dividing the promised divisibility.
        return f"{GLOBAL_POINTER} noundef align {info.divisibility & -info.divisibility} {name}"
    if element.is_bool:
        ctx.bind(arg, (ctx.emit.value(f"trunc i8 {name} to i1"),))
        return f"i8 noundef {name}"
    if element.is_int:
        low = info.divisibility & -info.divisibility
        ctx.ints.learn(name, (1 << element.bits) - low)
    ctx.bind(arg, (name,))
    if info.bounds is None:
        return f"{llvm_type(element)} noundef {name}"
    first, last = info.bounds
    if first >= 0:
        ctx.ints.learn(name, (1 << last.bit_length()) - 1)
    return f"{llvm_type(element)} noundef {_range(element.bits, first, last)}{name}"
